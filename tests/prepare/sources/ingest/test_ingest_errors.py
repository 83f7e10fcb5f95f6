"""What is wrong with a source file is told with the file and the place, in two lines, and nothing is left behind."""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.prepare.sources.files.data_files import DataFile, FileKind
from pipelines.prepare.sources.formats import type_inference
from pipelines.prepare.sources.ingest import ingest
from tests.prepare.sources.ingest.ingesting import PACKERS, data_file, ingested, json_lines, tasks, written
from tfrecord_io.errors import ColumnError, SourceError

TYPES = pa.schema({"text": pa.string(), "label": pa.int64()})
ROWS = [{"text": f"row {row}", "label": row} for row in range(5000)]
TEXT = "\n".join(random.Random(0).randbytes(20).hex() for _ in range(20_000)).encode()


def refused(files: list[DataFile], folder: Path, types: pa.Schema | None = TYPES) -> SourceError:
    with pytest.raises(SourceError) as caught:
        ingested(files, folder / "rows", types)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    assert not list((folder / "rows").glob("*.arrow"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": 5, "label": 1}, "column 'text' holds int64, expected string"),
        ({"text": "x", "label": 1.5}, "column 'label' holds double, expected int64"),
        ({"text": "x", "label": "one"}, "column 'label' holds string, expected int64"),
        ({"text": {"a": 1}, "label": 1}, "column 'text' holds struct<a: int64>, expected string"),
        ({"text": "x", "label": 1, "more": 2}, "column 'more', expected only 'text', 'label'"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_value_of_another_type_is_named_with_its_row(
    row: dict[str, object], said: str, end: str, tmp_path: Path
) -> None:
    content = b"\n" + json_lines(*ROWS[:4321], row, *ROWS[4321:], end=end)
    error = refused([written(tmp_path / "a.jsonl", content)], tmp_path)
    assert error.cause == f"{tmp_path}/a.jsonl, row 4,321: {said}"


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    content = json_lines(*ROWS[:70]) + b'{"text": "cut o\n' + json_lines(*ROWS[70:])
    error = refused([written(tmp_path / "a.jsonl.gz", content)], tmp_path)
    assert error.cause.startswith(f"{tmp_path}/a.jsonl.gz, row 70: not a JSON object")


def test_in_a_part_of_a_file_the_place_is_a_byte(tmp_path: Path) -> None:
    before = json_lines(*ROWS[:70])
    file = written(tmp_path / "a.jsonl", before + json_lines({"text": 1}, *ROWS[70:]))
    (task,) = tasks([file], tmp_path / "rows", TYPES)
    part = dataclasses.replace(task, part=1, parts=2, start=500)
    with pytest.raises(SourceError, match=f"the row at byte {len(before):,}: column 'text'"):
        ingest.run(part)


@pytest.mark.parametrize(("name", "kind"), [("a.csv", "csv"), ("a.tsv", "tsv")])
def test_a_csv_value_of_another_type_is_named_with_its_row(name: str, kind: FileKind, tmp_path: Path) -> None:
    separator = "," if kind == "csv" else "\t"
    lines = [f"x{separator}{row}" for row in range(12_000)]
    lines[10_500] = f"x{separator}many"
    content = "\n".join([f"text{separator}label", *lines]).encode()
    error = refused([written(tmp_path / name, content, kind)], tmp_path, None)
    assert f"{name}, row 10,500: column 'label' holds" in error.cause
    assert "expected int64" in error.cause


def test_csv_rows_of_other_lengths_are_named(tmp_path: Path) -> None:
    error = refused([written(tmp_path / "a.csv", b"text,label\nx,1\ny,2,3\n", "csv")], tmp_path)
    assert "line 3" in error.cause


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    error = refused([written(tmp_path / "a.txt", b"caf\xe9\n", "text")], tmp_path, pa.schema({"text": pa.string()}))
    assert "a.txt" in error.cause
    assert "not UTF-8" in error.cause


@pytest.mark.parametrize(("name", "kind"), [("a.jsonl", "json"), ("a.csv", "csv")])
def test_a_reader_of_any_kind_says_that_a_file_was_cut_off(name: str, kind: FileKind, tmp_path: Path) -> None:
    lines = [f'{{"text": "{line}"}}' if kind == "json" else line for line in ["text", *TEXT.decode().split()]]
    path = tmp_path / f"{name}.zst"
    path.write_bytes(PACKERS[".zst"]("\n".join(lines).encode())[:-50])
    error = refused([data_file(path, kind)], tmp_path, pa.schema({"text": pa.string()}))
    assert error.cause.startswith(f"{path}: cannot be decompressed: it ends in the middle")


@pytest.mark.parametrize("suffix", [suffix for suffix in PACKERS if suffix])
@pytest.mark.parametrize("kept", [0.3, 0.9, -1])
def test_a_packed_file_that_was_cut_off_is_an_error(suffix: str, kept: float, tmp_path: Path) -> None:
    packed = PACKERS[suffix](TEXT)
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(packed[: int(kept * len(packed)) if kept > 0 else -1])
    error = refused([data_file(path, "text")], tmp_path, pa.schema({"text": pa.string()}))
    assert error.cause.startswith(f"{path}: cannot be decompressed: it ends in the middle, at about byte ")


@pytest.mark.parametrize("suffix", [suffix for suffix in PACKERS if suffix])
def test_a_packed_file_that_is_damaged_is_an_error_with_its_place(suffix: str, tmp_path: Path) -> None:
    packed = bytearray(PACKERS[suffix](TEXT))
    middle = len(packed) // 2
    packed[middle : middle + 64] = bytes(64)
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(packed)
    error = refused([data_file(path, "text")], tmp_path, pa.schema({"text": pa.string()}))
    assert str(path) in error.cause


@pytest.mark.parametrize("kept", [100, 5000, -1])
def test_an_arrow_file_that_was_cut_off_is_an_error(kept: int, tmp_path: Path) -> None:
    table = pa.table({"text": [f"row {row}" for row in range(2500)], "label": list(range(2500))})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as opened:
        opened.write_table(table)
    content = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(content[:kept])
    assert "a.arrow" in refused([data_file(tmp_path / "a.arrow", "arrow")], tmp_path).cause


def test_arrow_files_with_other_types_are_named(tmp_path: Path) -> None:
    table = pa.table({"text": ["x"], "label": ["one"]})
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as opened:
        opened.write_table(table)
    error = refused([data_file(tmp_path / "a.arrow", "arrow")], tmp_path)
    assert "column 'label' holds string, expected int64" in error.cause


@pytest.mark.parametrize("change", ["size", "time", "gone"])
def test_a_file_that_has_changed_is_an_error(change: str, tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", json_lines(*ROWS))
    if change == "size":
        (tmp_path / "a.jsonl").write_bytes(json_lines(*ROWS[:100]))
    elif change == "time":
        os.utime(tmp_path / "a.jsonl", ns=(0, 0))
    else:
        (tmp_path / "a.jsonl").unlink()
    assert "a.jsonl" in refused([file], tmp_path).cause


def test_two_columns_of_one_name_are_refused_if_they_are_wanted(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", b"text,text,b\n1,2,3\n", "csv")
    type_inference.check_header(file, wanted=["b"], addresses={})
    with pytest.raises(ColumnError, match="several columns 'text'"):
        type_inference.check_header(file, wanted=["text"], addresses={})


def test_more_fields_than_names_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", b"text,b\n1,2,3\n", "csv")
    with pytest.raises(SourceError, match="3 fields in the first row, but 2 names"):
        type_inference.text_types({"train": [file]}, "csv", addresses={})


def test_a_head_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", b'{"text": "x"}\n{"text": \n')
    with pytest.raises(SourceError, match=r"a\.jsonl, row 1: not a JSON object") as caught:
        type_inference.text_types({"train": [file]}, "json", addresses={})
    assert "\n" not in str(caught.value)


def test_a_head_that_is_no_json_is_named_with_its_row(tmp_path: Path) -> None:
    content = b"\n" + json_lines(*ROWS) + b'{"text": oops}\n' + json_lines(*ROWS)
    file = written(tmp_path / "a.jsonl", content)
    with pytest.raises(SourceError) as caught:
        type_inference.text_types({"train": [file]}, "json", addresses={})
    assert (
        caught.value.cause
        == f"{tmp_path}/a.jsonl, row 5,000: not a JSON object (Expecting value: line 1 column 10 (char 9))"
    )


def test_json_that_is_not_utf8_is_named_with_the_row_before(tmp_path: Path) -> None:
    content = json_lines(*ROWS[:70]) + b'{"text": "caf\xe9", "label": 1}\n' + json_lines(*ROWS[70:])
    error = refused([written(tmp_path / "a.jsonl", content)], tmp_path)
    assert error.cause.startswith(f"{tmp_path}/a.jsonl, after row 70: cannot be read: not UTF-8, ")
    assert "iconv" in error.remedy
