"""Ingest from a bucket into a bucket, and from this machine by way of one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pipelines.prepare.sources.formats import type_inference

from pipelines.prepare import storage
from pipelines.prepare.sources.ingest import ingest, ingest_receipts
from pipelines.prepare.sources.ingest.tasks import tasks_of
from pipelines.prepare.sources.parquet.relay import relay
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.sources.rows.reading import RowReader
from tests.cloud.emulator import Gcs
from tests.prepare.sources.ingest.ingesting import PACKERS, json_lines, written

ROWS = [{"text": f"row {row}", "label": row} for row in range(3000)]


def put(gcs: Gcs, bucket: str, name: str, content: bytes) -> DataFile:
    gcs.write(bucket, name, content)
    path = f"gs://{bucket}/{name}"
    version = storage.generations([path])[path]
    return DataFile(path=path, name=name, kind="json", size=len(content), version=str(version))


@pytest.fixture
def bucket(gcs: Gcs) -> str:
    return gcs.bucket()


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_rows_go_from_bucket_to_bucket(gcs: Gcs, bucket: str, packed: str) -> None:
    file = put(gcs, bucket, f"a.jsonl{packed}", PACKERS[packed](json_lines(*ROWS)))
    types = type_inference.text_types({"train": [file]}, "json", addresses={})
    made = tasks_of({"train": [file]}, types, folder=f"gs://{bucket}/rows")
    assert ingest_receipts.find_receipts(made) == [None]
    (receipt,) = ingest.ingest_all(made, threads=1)
    (found,) = ingest_receipts.find_receipts(made)
    assert found is not None
    assert found.dump() == receipt.dump()
    groups = ingest_receipts.groups_of([found], types.names)
    batches = [
        batch for _, batch in RowReader(split="train", types=types).read(groups.pieces([(0, 3000)]), types.names)
    ]
    assert pa.Table.from_batches(batches).to_pylist() == ROWS


def test_local_files_are_ingested_from_their_copies_in_the_bucket(gcs: Gcs, bucket: str, tmp_path: Path) -> None:
    files = [written(tmp_path / f"{number}.jsonl.gz", json_lines(*ROWS)) for number in range(6)]
    folder = f"gs://{bucket}/rows"
    copies = relay(files, folder=folder, addresses={})
    for file in files:
        Path(file.path).unlink()
    made = tasks_of(
        {"train": files}, pa.schema({"text": pa.string(), "label": pa.int64()}), folder=folder, copies=copies
    )
    assert sum(receipt.num_rows for receipt in ingest.ingest_all(made, threads=2)) == 6 * len(ROWS)
