"""Ingest from a bucket into a bucket."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.ingest.ingest import IngestSource
from pipelines.prepare.sources.rows import opening
from pipelines.prepare.sources.rows.reading import RowReader
from tests.cloud.emulator import Gcs

ROWS = [{"text": f"row {row}", "label": row} for row in range(3000)]


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_rows_go_from_bucket_to_bucket(gcs: Gcs, packed: str) -> None:
    bucket = gcs.bucket()
    content = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    gcs.write(bucket, f"data/a.jsonl{packed}", gzip.compress(content) if packed else content)
    found = opening.open_source(SourceConfig(dataset=f"gs://{bucket}/data"), columns=None)
    source = IngestSource(streams=found.streams(["train"]), folder=f"gs://{bucket}/rows")
    assert not ingest.find_parts(source, source.tasks())
    for task in source.tasks():
        ingest.run(source, task)
    (groups,) = ingest.read_groups(ingest.find_parts(source, source.tasks()), None).values()
    reader = RowReader(split="train", types=found.types("train"))
    batches = [batch for _, batch in reader.read(groups.pieces([(0, 3000)]), ["text", "label"])]
    assert pa.Table.from_batches(batches).to_pylist() == ROWS
