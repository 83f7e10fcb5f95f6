"""Rejected rows are counted, the first ones named, and all written down as JSON lines that people can read."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import prep_tfrecords
from pipelines.prepare.dataset.rejected_rows import RejectedRows
from pipelines.prepare.sources.rows.unused_rows import RejectedRow, words_of
from tests import building
from tfrecord_io.errors import RowsRejectedError

_SEGMENTS = ((0, 60), (100, 103))


def _rejects(columns: dict[str, Any], reasons: list[str], *, first: int = 0) -> RejectedRows:
    rejects = RejectedRows(_SEGMENTS)
    batch = pa.RecordBatch.from_pydict(columns)
    rejects.add(batch, np.array(reasons, object), np.arange(first, first + len(reasons)), {})
    return rejects


def _written(rejects: RejectedRows, folder: Path) -> list[dict[str, Any]]:
    rejects.write(str(folder / "rejected" / "train-00000.jsonl"))
    lines = (folder / "rejected" / "train-00000.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_every_rejected_row_is_a_line_with_its_number_reason_and_content(tmp_path: Path) -> None:
    columns = {"text": ["good", None, "größe\n"], "label": [1, 2, None]}
    lines = _written(_rejects(columns, ["", "text_null", "label_null"], first=100), tmp_path)
    assert [(line["row"], line["reason"]) for line in lines] == [(101, "text_null"), (102, "label_null")]
    assert [line["block"] for line in lines] == [[100, 103], [100, 103]]
    assert [json.loads(line["content"]) for line in lines] == [
        {"text": None, "label": 2},
        {"text": "größe\n", "label": None},
    ]


def test_counts_are_by_reason_and_the_first_three_are_named() -> None:
    rejects = _rejects({"text": ["a", "b", "c", "d", "e"]}, ["x", "", "y", "x", "x"], first=7)
    assert rejects.rejected == {"x": 3, "y": 1}
    assert rejects.first == [RejectedRow(row=row, reason=reason) for row, reason in ((7, "x"), (9, "y"), (10, "x"))]


def test_content_is_cut_to_4_kilobytes_between_characters(tmp_path: Path) -> None:
    (line,) = _written(_rejects({"text": ["ü" * 5000]}, ["too_long"]), tmp_path)
    shown = line["content"]
    assert len(shown.encode()) in (4095, 4096)
    assert shown == json.dumps({"text": "ü" * 5000}, ensure_ascii=False)[: len(shown)]


def test_content_that_is_no_json_is_shown_as_text(tmp_path: Path) -> None:
    columns = {"text": ["a"], "when": pa.array([0], pa.timestamp("s")), "raw": pa.array([b"\xff"])}
    (line,) = _written(_rejects(columns, ["x"]), tmp_path)
    assert json.loads(line["content"]) == {"text": "a", "when": "1970-01-01 00:00:00", "raw": "b'\\xff'"}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_text_that_is_no_utf8_is_shown_with_its_bytes(tmp_path: Path, kind: pa.DataType) -> None:
    raw = pa.array([b"caf\xe9", None], pa.large_binary() if pa.types.is_large_string(kind) else pa.binary())
    batch = pa.RecordBatch.from_arrays([raw.view(kind), pa.array([None, 1])], names=["text", "label"])
    rejects = RejectedRows(_SEGMENTS)
    rejects.add(batch, np.array(["label_null", "text_null"], object), np.arange(2), {})
    contents = [json.loads(line["content"]) for line in _written(rejects, tmp_path)]
    assert contents == [{"text": "caf\\xe9", "label": None}, {"text": None, "label": 1}]


def test_without_rejected_rows_an_earlier_file_goes(tmp_path: Path) -> None:
    path = tmp_path / "rejected" / "train-00000.jsonl"
    path.parent.mkdir()
    path.write_text("from an earlier run")
    _rejects({"text": ["good"]}, [""]).write(str(path))
    assert not path.exists()


LONG = {"max_length": 3, "truncation": "do_not_truncate"}


@pytest.mark.parametrize(
    ("rows", "changes", "reasons", "advice"),
    [
        ([{"text": "a", "label": None}] * 2, {"label_column": "label"}, r"label is null in 2", "--label-column"),
        ([{"text": None, "label": 1}], {}, r"text is null in 1", "check --text-column"),
        ([{"text": "far too long", "label": 1}], LONG, r".* in 1", "a larger --max-length"),
    ],
)
def test_a_split_without_a_usable_row_says_why(
    tmp_path: Path, rows: Sequence[dict[str, object]], changes: dict[str, object], reasons: str, advice: str
) -> None:
    data = building.source(tmp_path / "data", train=[{"text": "a", "label": 1}], test=rows)
    changes = {"label_column": None, **changes}
    cause, remedy = building.command("build", data, *building.options(tmp_path / "out", **changes)).error
    assert re.search(rf"split 'test': none of the sampled rows can be used \({reasons}\)", cause)
    assert advice in remedy


def test_every_documented_reason_has_words_of_its_own() -> None:
    page = (building.REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    table = page.partition("The reasons of rejected")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.M)
    reasons = [reason for cell in cells for reason in re.findall(r"`(\w+)`", cell)]
    words = {words_of(reason) for reason in reasons}
    assert len(words) == len(reasons) > 30
    assert not [word for word in words if "_" in word]


ROWS = [{"text": "one"}, {"text": "two"}, {"text": None}]


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (("train.jsonl",), "row 3 of train.jsonl (text is null)"),
        (("train.parquet",), "row 3 of train.parquet (text is null)"),
        (("train-a.jsonl", "train-b.jsonl"), "row 3 of train-a.jsonl (text is null), row 3 of train-b.jsonl"),
        (("one/train.jsonl", "two/train.jsonl"), "one/train.jsonl (text is null)"),
    ],
)
def test_a_rejected_row_is_named_by_its_file_and_number(tmp_path: Path, files: tuple[str, ...], named: str) -> None:
    for name in files:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(ROWS), path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    assert named in building.command("build", tmp_path / "in", *building.options(tmp_path / "out")).error[0]


def test_a_rejected_row_of_a_table_is_named_by_its_number(tmp_path: Path) -> None:
    with pytest.raises(RowsRejectedError, match=r"train\[2\] \(text is null\)"):
        prep_tfrecords.build(pa.Table.from_pylist(ROWS), output=tmp_path / "out", tokenizer=building.tokenizer())
