"""Public reports of changed values: the rows of `load_dataset` and ours, as in docs/reference/difficult-data.md."""

import datetime
import gzip
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.rows import opening
from pipelines.prepare.sources.rows.reading import RowReader
from tests.building import REPOSITORY
from tfrecord_io.errors import SourceError

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
QUOTED = 'text\tlabel\none\t0\n"two\t1\nthree\t0\nfour"\t1\nfive\t0\n'
# Files, the column `text` of `datasets` 5.2, and ours or the beginning of our error.
REPORTS: dict[str, tuple[Mapping[str, str | bytes], Any, Any]] = {
    "dates in a later file": (
        {"train-a.jsonl": '{"text": "a"}\n', "train-b.jsonl": '{"text": "2024-02-01T10:30:00Z"}\n'},
        ["a", "2024-02-01 10:30:00"],
        ["a", "2024-02-01T10:30:00Z"],
    ),
    "dates only": ({"train.jsonl": '{"text": "2024-02-01"}\n'}, [datetime.datetime(2024, 2, 1)], ["2024-02-01"]),
    "leading zeros": ({"train.csv": "text,label\n007,1\n12.50,0\n"}, [7.0, 12.5], ["007", "12.50"]),
    "delimiters at the ends of rows": ({"train.csv": "text,stars\ngood,5,\nbad,1,\n"}, [5, 1], ["good", "bad"]),
    "an id, and delimiters at the ends of rows": (
        {"train.csv": "id,text,label\n1,good,1,\n2,bad,0,\n"},
        [1, 0],
        ["good", "bad"],
    ),
    "a byte order mark in a text": ({"train.txt": "\ufeffgood\n"}, ["\ufeffgood"], ["good"]),
    "a pointer of git-lfs": ({"train.txt": POINTER}, POINTER.splitlines(), "a git-lfs pointer"),
    "gzip under a plain name": (
        {"train.jsonl": gzip.compress(b'{"text": "good"}\n')},
        ["good"],
        "compressed, but its name does not end in",
    ),
    "a delimiter at the end of later rows": (
        {"train.csv": "text,label\na,5\nb,7,\n"},
        "Expected 2 fields in line 3, saw 3",
        "line 3 has 3 cells, expected 2",
    ),
    "a quote that is a plain character": (
        {"train.tsv": QUOTED},
        ["one", "two\t1\nthree\t0\nfour", "five"],
        ["one", "two\t1\nthree\t0\nfour", "five"],
    ),
}


def theirs(folder: Path) -> Any:
    try:
        dataset = datasets.load_dataset(str(folder), split="train", cache_dir=str(folder / ".cache"))
    except datasets.exceptions.DatasetGenerationError as error:
        return str(error.__cause__)
    return dataset["text"][:]


def ours(folder: Path, **options: Any) -> Any:
    try:
        source = opening.open_source(SourceConfig(dataset=str(folder), **options), columns=None)
        with tempfile.TemporaryDirectory() as parts:
            run = ingest.run_here
            groups = opening.locate_rows(source, ["train"], folder=parts, inside=None, columns=None, run=run)["train"]
            reader = RowReader(split="train", types=source.types("train"))
            batches = [batch for _, batch in reader.read(groups.pieces([(0, groups.total_rows)]), ["text"])]
    except SourceError as error:
        return str(error)
    return [text for batch in batches for text in batch.column("text").to_pylist()]


@pytest.mark.parametrize("report", REPORTS)
def test_a_public_report(report: str, tmp_path: Path) -> None:
    files, expected_theirs, expected_ours = REPORTS[report]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for outcome, expected in ((ours(tmp_path), expected_ours), (theirs(tmp_path), expected_theirs)):
        assert expected in outcome if isinstance(expected, str) else outcome == expected
    assert f"| {report} |" in (REPOSITORY / "docs/reference/difficult-data.md").read_text(encoding="utf-8")


def test_filters_of_the_parquet_reader_leave_out_the_same_rows(tmp_path: Path) -> None:
    table = pa.table({"text": list("abcd"), "label": [0, 1, 1, 0]})
    pq.write_table(table, tmp_path / "train.parquet", row_group_size=2)
    filters = [["label", "=", 1]]
    options: dict[str, Any] = {"split": "train", "cache_dir": str(tmp_path / ".cache"), "filters": filters}
    assert datasets.load_dataset(str(tmp_path), **options)["text"][:] == ["b", "c"]
    assert ours(tmp_path, source_options=(f"filters={json.dumps(filters)}",)) == ["b", "c"]
