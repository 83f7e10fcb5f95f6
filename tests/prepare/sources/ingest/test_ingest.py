"""Ingested files: record batches that can be read by themselves, receipts, and no work that is done twice."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipelines.prepare.sources.files.data_files import DataFile, SourceListing
from pipelines.prepare.sources.formats.groups import Groups
from pipelines.prepare.sources.formats.row_files import MOST_BYTES, MOST_ROWS, even_batches
from pipelines.prepare.sources.ingest import ingest, ingest_receipts, ingest_tasks
from pipelines.prepare.sources.ingest.ingest_tasks import IngestTask
from pipelines.prepare.sources.rows.reading import RowReader
from tests.prepare.sources.ingest.ingesting import json_lines, rows_of, tasks, written

SHORT = [{"text": f"row {row}", "label": row if row % 7 else None} for row in range(2500)]


def some_tasks(folder: Path) -> tuple[IngestTask, ...]:
    long = [{"text": "x" * random.Random(row).randrange(20_000), "label": row} for row in range(300)]
    files = [
        written(folder / "a.jsonl", json_lines(*SHORT)),
        written(folder / "b.jsonl.zst", json_lines(*long, {"text": "y" * 3_000_000, "label": 1})),
    ]
    return tasks(files, folder / "rows")


def test_each_batch_is_read_by_its_place_alone(tmp_path: Path) -> None:
    receipts = ingest.ingest_all(some_tasks(tmp_path), threads=1)
    for receipt in receipts:
        table, content = pa.ipc.open_file(receipt.path).read_all(), Path(receipt.path).read_bytes()
        schema = table.schema.serialize().to_pybytes()
        messages = [
            content[at : at + size] for at, size in zip(receipt.batches.at, receipt.batches.length, strict=True)
        ]
        alone = [pa.ipc.open_stream(schema + message).read_all() for message in messages]
        assert [len(each) for each in alone] == receipt.batches.num_rows.tolist()
        assert pa.concat_tables(alone).equals(table)


def test_groups_of_receipts_are_read_as_rows_of_a_split(tmp_path: Path) -> None:
    made = some_tasks(tmp_path)
    receipts = ingest.ingest_all(made, threads=1)
    groups = Groups.joined([ingest_receipts.groups_of([receipt], ["text"]) for receipt in receipts])
    reader = RowReader(split="train", types=made[0].types)
    found = list(reader.read(groups.pieces([(2490, 2600), (3, 5)]), ["text"]))
    table = rows_of(receipts)
    texts = [text for _, batch in found for text in batch["text"].to_pylist()]
    assert texts == table["text"].to_pylist()[2490:2600] + table["text"].to_pylist()[3:5]


def test_groups_know_rows_bytes_and_nulls_of_the_columns_that_are_read(tmp_path: Path) -> None:
    made = some_tasks(tmp_path)
    receipts = ingest.ingest_all(made, threads=1)
    table = rows_of(receipts)
    groups = ingest_receipts.groups_of(receipts, ["label"])
    assert groups.total_rows == len(table)
    assert groups.num_bytes.sum() == pytest.approx(8 * len(table), rel=0.05)
    assert groups.nulls["label"].sum() == table["label"].null_count
    both = ingest_receipts.groups_of(receipts, ["text", "label"])
    assert both.num_bytes.sum() == pytest.approx(table.nbytes, rel=0.01)
    assert (groups.stored_bytes <= both.stored_bytes).all()
    assert np.array_equal(both.stored_bytes, both.length)


def test_batches_have_no_more_than_1000_rows_and_about_a_megabyte(tmp_path: Path) -> None:
    for receipt in ingest.ingest_all(some_tasks(tmp_path), threads=1):
        num_bytes = sum(receipt.batches.num_bytes.values())
        assert receipt.batches.num_rows.max() <= MOST_ROWS
        assert ((num_bytes <= 1.25 * MOST_BYTES) | (receipt.batches.num_rows == 1)).all()


def test_small_tables_are_put_together() -> None:
    tables = [pa.table({"a": [number]}) for number in range(2500)]
    found = list(even_batches(tables))
    assert [batch.num_rows for batch in found] == [833, 833, 834]
    assert pa.Table.from_batches(found)["a"].to_pylist() == list(range(2500))


def test_files_are_the_same_whoever_writes_them_and_when(tmp_path: Path) -> None:
    digests = []
    for threads in (1, 3):
        folder = tmp_path / str(threads)
        folder.mkdir()
        ingest.ingest_all(some_tasks(folder), threads=threads)
        files = sorted((folder / "rows").iterdir())
        digests.append([(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files])
    assert digests[0] == digests[1]


def test_a_task_is_small_and_travels(tmp_path: Path) -> None:
    for task in some_tasks(tmp_path):
        packed = pickle.dumps(task)
        assert pickle.loads(packed) == task
        assert len(packed) < 3000


def test_only_what_is_missing_is_ingested(tmp_path: Path) -> None:
    made = some_tasks(tmp_path)
    first = ingest.ingest_all(made, threads=1)
    stamp = Path(made[0].path).stat().st_mtime_ns
    Path(made[1].receipt_path).unlink()
    assert [receipt is None for receipt in ingest_receipts.find_receipts(made)] == [False, True]
    again = ingest.ingest_all(made, threads=1)
    assert Path(made[0].path).stat().st_mtime_ns == stamp
    assert [receipt.dump() for receipt in again] == [receipt.dump() for receipt in first]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: text[:-20],
        lambda text: text.replace(b'"rows":', b'"rows":1'),
        lambda text: text.replace(b'"task":"', b'"task":"0'),
        lambda text: text.replace(b'"at":[', b'"at":[-'),
        lambda text: text.replace(b'"at":[', b'"at":[7,'),
        lambda text: text.replace(b'"version":1', b'"version":0'),
        lambda text: b"[]",
        lambda text: b"null",
        lambda text: b"\xff\xfe",
    ],
)
def test_a_damaged_receipt_is_none(damage: object, tmp_path: Path) -> None:
    made = some_tasks(tmp_path)
    ingest.run(made[0])
    receipt = Path(made[0].receipt_path)
    text = receipt.read_bytes()
    receipt.write_bytes(damage(text))  # type: ignore[operator]
    assert receipt.read_bytes() != text
    assert ingest_receipts.find_receipts(made) == [None, None]


def test_a_file_that_lacks_bytes_is_not_there(tmp_path: Path) -> None:
    made = some_tasks(tmp_path)
    ingest.run(made[0])
    path = Path(made[0].path)
    path.write_bytes(path.read_bytes()[:-1])
    assert ingest_receipts.find_receipts(made)[0] is None


def test_the_receipt_of_another_source_is_none(tmp_path: Path) -> None:
    made = some_tasks(tmp_path)
    ingest.run(made[0])
    others = [
        dataclasses.replace(made[0], version="2"),
        dataclasses.replace(made[0], types=pa.schema({"text": pa.string()})),
        dataclasses.replace(made[0], parts=2),
    ]
    assert ingest_receipts.find_receipts(others) == [None, None, None]
    assert ingest_receipts.find_receipts([made[0]]) != [None]


def test_the_first_error_ends_the_others(tmp_path: Path) -> None:
    files = [written(tmp_path / f"{name}.jsonl", json_lines(*SHORT)) for name in "abcd"]
    made = list(tasks(files, tmp_path / "rows"))
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(Exception, match=r"a\.jsonl"):
        ingest.ingest_all(made, threads=2)
    assert not list((tmp_path / "rows").glob(".partial*"))


def listing(**changes: object) -> SourceListing:
    file = DataFile(path="/a/b.jsonl", name="b.jsonl", kind="json", size=5, version="xxh3:1", stamp=7)
    splits = {"train": [dataclasses.replace(file, **changes)]}  # type: ignore[arg-type]
    return SourceListing(kind="files", splits=splits, identity={"files": []})


def test_the_folder_is_that_of_the_content_wherever_it_lies() -> None:
    types = {"train": pa.schema({"text": pa.string()})}
    folder = ingest_tasks.folder_of("/out/.prep", listing(), types)
    assert folder.startswith("/out/.prep/rows-")
    assert len(folder) == len("/out/.prep/rows-") + 16
    assert ingest_tasks.folder_of("/out/.prep", listing(path="gs://bucket/b.jsonl", stamp=None), types) == folder
    assert ingest_tasks.folder_of("/out/.prep", listing(version="xxh3:2"), types) != folder
    assert ingest_tasks.folder_of("/out/.prep", listing(), {"train": pa.schema({"text": pa.int64()})}) != folder


def test_a_receipt_is_short_json(tmp_path: Path) -> None:
    made = some_tasks(tmp_path)
    ingest.run(made[0])
    document = json.loads(Path(made[0].receipt_path).read_text())
    assert document["rows"] == 2500
    assert document["source"] == {"name": "a.jsonl", "bytes": made[0].file.size, "version": ""}
