"""Files that workers elsewhere cannot read are refused before any work, with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.prepare.launch import ingesting
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.resolve.data_files import DataFile, SourceListing
from pipelines.prepare.sources.rows import opening
from pipelines.prepare.sources.rows.opening import OpenedSource
from tests.prepare.sources.stored import parquet
from tfrecord_io.errors import SourceError

BUCKET = "gs://bucket/out"


def listed(*, needs_token: bool) -> Any:
    stream: Any = None
    listing = SourceListing(kind="json", splits={}, described={}, stream=stream, needs_token=needs_token)
    return OpenedSource(listing=listing, columns={}, footers={}, addresses={})


@pytest.mark.parametrize(
    ("path", "needs_token", "expected"),
    [
        ("gs://bucket/a.jsonl", True, True),
        ("hf://datasets/me/it@abc/a.jsonl", False, True),
        ("hf://datasets/me/it@abc/a.jsonl", True, False),
        ("https://host/a.jsonl", False, True),
        ("https://host/a.jsonl?X-Goog-Signature=abc", False, False),
        ("https://me:secret@host/a.jsonl", False, False),
        ("s3://bucket/a.jsonl", False, False),
        ("/data/a.jsonl", False, False),
    ],
)
def test_workers_read_what_needs_no_credentials(path: str, needs_token: bool, expected: bool) -> None:
    file = DataFile(path=path, name="a.jsonl", size=1, version="")
    assert ingesting.is_readable(file, listed(needs_token=needs_token), root=BUCKET) is expected


def test_parquet_of_this_machine_is_refused_where_the_output_is_elsewhere(tmp_path: Path) -> None:
    parquet(tmp_path / "train.parquet", pa.table({"text": ["a"]}))
    found = opening.open_source(SourceConfig(dataset=str(tmp_path)), columns=None)
    ingesting._require_readable(found, ["train"], root=str(tmp_path / "out"))
    with pytest.raises(SourceError, match=r"train\.parquet: workers elsewhere cannot read it") as caught:
        ingesting._require_readable(found, ["train"], root=BUCKET)
    assert "gcloud storage cp -r DATA gs://BUCKET/" in caught.value.remedy
