"""Cells of CSV and TSV files keep their text, in any of the reader's chunks."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.prepare.sources.stored import rows_in
from tfrecord_io.errors import ConfigError, SourceError

# `datasets` chooses types for each 10,000 rows.
CHUNK = 10_000


def cells(path: Path, *lines: str, header: str = "text,label,kept", **options: Any) -> dict[str, list[Any]]:
    path.write_text("\n".join([header, *lines]) + "\n")
    rows = rows_in(path, **{"label_column": "label", "keep_columns": ("kept",), **options})
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_texts_and_strings_are_the_characters_of_the_file_in_every_chunk(tmp_path: Path) -> None:
    first = ["a,007,abc"] + ["12,008,7"] * (CHUNK - 1)
    columns = cells(tmp_path / "a.csv", *first, "0012345.50,007,True", "1e5,8,01", ",,")
    assert [columns[name][-3:] for name in columns] == [
        ["0012345.50", "1e5", None],
        ["007", "8", None],
        ["True", "01", None],
    ]
    assert columns["label"][:2] == ["007", "008"]


@pytest.mark.parametrize(
    ("written", "values"),
    [
        *((["7", "", "-12"], [7, None, -12]), (["0.5", "1", ""], [0.5, 1.0, None]), (["1e3", "2"], [1000.0, 2.0])),
        *((["True", "false", "TRUE"], [True, False, True]), (["", ""], [None, None])),
        *((["7", "007"],) * 2, (["+7", "8"],) * 2, (["00.5", "1"],) * 2, (["True", "1"],) * 2, (["7", "x"],) * 2),
        *((["9223372036854775808", "1"],) * 2, (["2024-01-31", "2024-02-01"],) * 2),
    ],
)
def test_a_label_is_a_number_only_if_all_first_cells_are_written_as_one(
    tmp_path: Path, written: list[str], values: list[Any]
) -> None:
    assert cells(tmp_path / "a.csv", *(f"a,{cell},x" for cell in written))["label"] == values


def test_columns_that_nothing_names_are_read_as_text(tmp_path: Path) -> None:
    lines = ["a,1,0.5"] * CHUNK + ["a,x,y"]
    columns = cells(tmp_path / "a.csv", *lines, label_column=None, keep_columns=())
    assert (columns["label"][0], columns["label"][-1], columns["kept"][-1]) == ("1", "x", "y")


def test_a_number_that_is_written_otherwise_later_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="pipelines"):
        columns = cells(tmp_path / "a.csv", *["a,7,1.5"] * CHUNK, "b,007,2")
    assert columns["label"][-1] == 7
    message = (
        "a.csv: column 'label' holds '007', read as the number 7; to read the column as text, add --source-option "
        '\'dtype={"label": "str"}\''
    )
    assert message in caplog.text
    columns = cells(tmp_path / "a.csv", *["a,7,1.5"] * CHUNK, "b,007,2", source_options=('dtype={"label": "str"}',))
    assert columns["label"][-2:] == ["7", "007"]


def test_a_later_cell_that_is_no_number_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"row 10,001 of column 'label' is 'abc', expected int64 .*dtype="):
        cells(tmp_path / "a.csv", *["a,7,1.5"] * (CHUNK + 1), "b,abc,2")


def test_a_dtype_that_is_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'dtype={"label": "int"}, expected a JSON object of columns to read as text'):
        cells(tmp_path / "a.csv", "a,7,1", source_options=('dtype={"label": "int"}',))


def test_spellings_of_numbers_are_left_to_the_reader(tmp_path: Path) -> None:
    columns = cells(
        tmp_path / "a.csv",
        "1;1.000,5;9",
        header="text;label;kept",
        source_options=("sep=;", "decimal=,", "thousands=."),
    )
    assert columns == {"text": ["1"], "label": [1000.5], "kept": [9]}


@pytest.mark.parametrize(
    ("header", "lines", "options", "is_said"),
    [
        ("text\tlabel", ['"a\t1', 'b"\t0', "c\t1", "d\t0", "e\t0"], {}, True),
        ("text\tlabel", ['"a\t1', 'b"\t0', "c\t1", "d\t0", "e\t0"], {"source_options": ("quoting=3",)}, False),
        ("text\tlabel", ['"a', 'b"\t0', "c\t1", "d\t0"], {}, False),
        ("text,label", ['"Hello, you', 'there",1', "c,1", "d,0", "e,0"], {}, False),
        ("label,text", ['1,"a', '0,b"', "0,c", "1,d"], {}, True),
    ],
)
def test_lines_that_a_quote_joins_are_said_where_they_look_like_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, header: str, lines: list[str], options: Any, is_said: bool
) -> None:
    with caplog.at_level(logging.WARNING, logger="pipelines"):
        name = "a.tsv" if "\t" in header else "a.csv"
        columns = cells(tmp_path / name, *lines, header=header, keep_columns=(), **options)
    assert len(columns["text"]) == len(lines) - ("source_options" not in options)
    assert ("joined by quotes, though each line looks like a row" in caplog.text) == is_said


def test_a_quote_that_nothing_closes_has_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="if quotes are plain characters in the file, add --source-option quoting=3"):
        cells(tmp_path / "a.tsv", "a\t1\t1", '"b\t1\t1', header="text\tlabel\tkept")
