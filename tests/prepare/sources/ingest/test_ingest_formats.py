"""Ingested rows and types are those of `load_dataset`, whatever the format, the compression and the text."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from pipelines.prepare.sources.files.data_files import DataFile, FileKind
from tests.prepare.sources.ingest.ingesting import PACKERS, as_datasets, data_file, ingested, json_lines, tasks, written

JSON = {
    "plain": json_lines({"id": 1, "text": "x"}, {"id": 2, "text": "a\u2028b\x85c"}),
    "crlf": json_lines({"id": 1, "text": "x"}, {"id": 2, "text": "y"}, end="\r\n"),
    "no newline at the end": json_lines({"id": 1}, {"id": 2})[:-1],
    "blank lines": b"\n" + json_lines({"id": 1}) + b"\n\n" + json_lines({"id": 2}) + b"  \n",
    "byte order mark": b"\xef\xbb\xbf" + json_lines({"id": 1}, {"id": 2}),
    "mixed types": json_lines({"a": 1}, {"a": "x"}, {"a": None}, {"a": [1]}),
    "mixed structs": json_lines({"a": {"x": 1}}, {"a": {"y": "z"}}),
    "nested": json_lines(
        {"m": [{"role": "u", "content": "hi"}, {"content": "b", "role": "x"}]}, {"m": []}, {"m": None}
    ),
    "missing keys": json_lines({"a": 1, "b": "x"}, {"a": 2}, {"b": "z"}),
    "nulls only": json_lines({"a": None, "b": 1}, {"a": None, "b": 2}),
    "huge integers": json_lines({"a": 2**63 - 1}, {"a": 2**70}, {"a": 1.5}),
    "dates": json_lines({"a": "2020-01-01T00:00:00", "b": "2020-01-01"}, {"a": "2021-05-05 10:10:10", "b": None}),
    "booleans and floats": json_lines({"a": True, "f": 1}, {"a": False, "f": 2.5}),
    "an array": json.dumps([{"a": 1, "b": "x"}, {"a": 2, "b": None}]).encode(),
    "an array, indented": json.dumps([{"a": 1, "b": "x"}, {"a": 2, "b": None}], indent=1).encode(),
    "one object, indented": json.dumps({"a": 1, "b": ["x"]}, indent=1).encode(),
    "columns": json.dumps({"a": {"0": 1, "1": 2}}, indent=1).encode(),
    "an array of texts": json.dumps(["x", "y"]).encode(),
}
OTHERS: dict[str, tuple[FileKind, bytes]] = {
    "csv, quoted newlines": ("csv", b'a,t\n1,"x\ny"\n2,z\n'),
    "csv, missing values": ("csv", b"a,t\n1,\n,z\n"),
    "csv, byte order mark": ("csv", b"\xef\xbb\xbfa,t\r\n1,q\r\n2,z"),
    "csv, missing numbers far below": ("csv", b"a,t\n" + b"".join(b"%d,t\n" % row for row in range(10_500)) + b",x\n"),
    "csv, dates": ("csv", b"a,t\n2020-01-01,true\n2020-01-02,false\n"),
    "tsv": ("tsv", b'a\tt\n1\tx,y\n2\t"q\tr"\n'),
    "text": ("text", "a\nb\u2028c\x85d\x0be\r\nf\rg\n\nh".encode()),
}
SUFFIXES = {"json": ".jsonl", "csv": ".csv", "tsv": ".tsv", "text": ".txt"}


def assert_same(files: list[DataFile], folder: Path) -> None:
    expected = as_datasets(files, folder / "cache")
    found = ingested(files, folder / "rows")
    assert datasets.Features.from_arrow_schema(found.schema) == expected.features
    assert found.schema.equals(expected.features.arrow_schema, check_metadata=True)
    assert found.to_pylist() == expected.data.table.to_pylist()


@pytest.mark.parametrize("name", JSON)
def test_json_is_read_as_load_dataset_reads_it(name: str, tmp_path: Path) -> None:
    assert_same([written(tmp_path / "a.jsonl", JSON[name])], tmp_path)


@pytest.mark.parametrize("name", OTHERS)
def test_other_text_is_read_as_load_dataset_reads_it(name: str, tmp_path: Path) -> None:
    kind, content = OTHERS[name]
    assert_same([written(tmp_path / f"a{SUFFIXES[kind]}", content, kind)], tmp_path)


@pytest.mark.parametrize("packed", [suffix for suffix in PACKERS if suffix])
@pytest.mark.parametrize("kind", SUFFIXES)
def test_packed_files_are_read_as_load_dataset_reads_them(kind: FileKind, packed: str, tmp_path: Path) -> None:
    content = JSON["nested"] if kind == "json" else next(content for of, content in OTHERS.values() if of == kind)
    assert_same([written(tmp_path / f"a{SUFFIXES[kind]}{packed}", content, kind)], tmp_path)


@pytest.mark.parametrize("packed", PACKERS)
def test_a_byte_order_mark_is_no_text(packed: str, tmp_path: Path) -> None:
    file = written(tmp_path / f"a.txt{packed}", "\ufeffa\n\ufeffb\n".encode(), "text")
    assert ingested([file], tmp_path / "rows")["text"].to_pylist() == ["a", "\ufeffb"]


def test_texts_that_look_like_dates_in_a_later_file_stay_as_they_are(tmp_path: Path) -> None:
    files = [
        written(tmp_path / "a.jsonl", json_lines({"text": "hello"})),
        written(tmp_path / "b.jsonl", json_lines({"text": "2020-01-01T00:00:00"})),
    ]
    assert ingested(files, tmp_path / "rows")["text"].to_pylist() == ["hello", "2020-01-01T00:00:00"]


@pytest.mark.parametrize(
    "second",
    [
        json_lines({"a": "y"}, {"a": None}),
        json_lines({"b": "y"}),
        json_lines({"a": 7}, {"a": 8}),
        json_lines({"a": True}),
        json_lines({"a": 1.5}),
    ],
)
def test_a_second_file_is_read_as_load_dataset_reads_it(second: bytes, tmp_path: Path) -> None:
    first = written(tmp_path / "a.jsonl", json_lines({"a": "x", "b": "y"}))
    assert_same([first, written(tmp_path / "b.jsonl", second)], tmp_path)


def test_whole_numbers_are_read_into_floats_and_back(tmp_path: Path) -> None:
    floats, whole = json_lines({"a": 1.5}), json_lines({"a": 2})
    both = [written(tmp_path / "a.jsonl", floats), written(tmp_path / "b.jsonl", whole)]
    assert_same(both, tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    assert_same([both[1], written(other / "c.jsonl", json_lines({"a": 3.0}))], other)


def test_the_type_of_a_column_without_values_comes_from_another_file(tmp_path: Path) -> None:
    files = [
        written(tmp_path / "a.jsonl", json_lines({"a": None, "m": []})),
        written(tmp_path / "b.jsonl.gz", json_lines({"a": "x", "m": [{"role": "u"}]})),
    ]
    found = ingested(files, tmp_path / "rows")
    assert found.schema.field("a").type == pa.string()
    assert found["m"].to_pylist() == [[], [{"role": "u"}]]


@pytest.mark.parametrize("writer", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_files_are_read_as_load_dataset_reads_them(writer: object, tmp_path: Path) -> None:
    table = pa.table({"text": [f"row {row}" for row in range(2500)], "label": list(range(2500))})
    with writer(tmp_path / "a.arrow", table.schema) as opened:  # type: ignore[operator]
        opened.write_table(table, max_chunksize=7)
    file = data_file(tmp_path / "a.arrow", "arrow")
    expected = as_datasets([file], tmp_path / "cache")
    found = ingested([file], tmp_path / "rows", expected.features.arrow_schema)
    assert found.schema == expected.features.arrow_schema
    assert found.equals(expected.data.table.combine_chunks())


def test_parquet_with_large_row_groups_is_cut_into_runs_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.prepare.sources.formats.plain_tables._RANGE_BYTES", 20_000)
    table = pa.table({"text": [f"row {row}" * 9 for row in range(6000)], "label": pa.array(range(6000), pa.int32())})
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=500)
    file = data_file(tmp_path / "a.parquet", "parquet")
    found = ingested([file], tmp_path / "rows", table.schema)
    assert found.equals(table)
    assert len(list((tmp_path / "rows").glob("*.arrow"))) > 2


@pytest.mark.parametrize(("name", "blank"), [("csv", b""), ("csv", b"a,t\n"), ("json", b"\n\n"), ("tsv", b"")])
def test_files_without_rows_are_no_matter(name: FileKind, blank: bytes, tmp_path: Path) -> None:
    content = {"csv": b"a,t\n1,x\n", "tsv": b"a\tt\n1\tx\n", "json": json_lines({"a": 1, "t": "x"})}[name]
    files = [
        written(tmp_path / f"{number}{SUFFIXES[name]}", each, name)
        for number, each in enumerate([blank, content, blank, content, blank])
    ]
    assert ingested(files, tmp_path / "rows").to_pylist() == [{"a": 1, "t": "x"}] * 2


@pytest.mark.slow
def test_files_with_types_of_their_own_are_read_without_datasets(tmp_path: Path) -> None:
    table = pa.table({"text": ["x", "y"]})
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as opened:
        opened.write_table(table)
    (task,) = tasks([data_file(tmp_path / "a.arrow", "arrow")], tmp_path / "rows", table.schema)
    (tmp_path / "task").write_bytes(pickle.dumps(task))
    program = (
        "import pickle, sys; from pipelines.prepare.sources.ingest import ingest; "
        "receipt = ingest.run(pickle.load(open(sys.argv[1], 'rb'))); "
        "print(receipt.num_rows, 'datasets' in sys.modules, 'pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "task")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "2 False False\n"
