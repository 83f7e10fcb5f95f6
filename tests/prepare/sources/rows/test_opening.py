"""Datasets with their rows, opened as builds open them: the rows that `datasets` gives, in the same order."""

import gzip
import json
import logging
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.rows import opening
from pipelines.prepare.sources.rows.reading import Source, SplitSource
from tests import building
from tests.prepare.sources import stored
from tfrecord_io.errors import SourceError

TEXTS = [f"row {index} é" for index in range(30)]


def _open(dataset: Path | str, **options: Any) -> Source:
    return building.opened(SourceConfig(dataset=str(dataset), **options))


def _texts(split: SplitSource) -> list[str]:
    return [text for _, batch in split.read(split.ranges, ["text"]) for text in batch.column(0).to_pylist()]


def _jsonl(texts: Sequence[str]) -> bytes:
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


def _write(path: Path) -> Path:
    """A file that holds TEXTS, of the kind that its name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": TEXTS}), path, row_group_size=8)
    else:
        path.write_bytes(_jsonl(TEXTS))
    return path


@pytest.mark.parametrize(
    "spec", ["train", "train[10%:]", "train[5:7]+train[1:3]", "train[-4:]", "train[90%:]+train[:50%]"]
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_slicing_gives_the_rows_of_datasets_in_their_order(tmp_path: Path, spec: str, kind: str) -> None:
    files = [tmp_path / f"train-{index}.{kind}" for index in range(3)]  # slices run across files
    for index, file in enumerate(files):
        texts = TEXTS[index * 10 : index * 10 + 10]
        if kind == "parquet":
            pq.write_table(pa.table({"text": texts}), file, row_group_size=4)
        else:
            file.write_bytes(_jsonl(texts))
    reader = "json" if kind == "jsonl" else kind
    expected = datasets.load_dataset(reader, data_files={"train": [str(path) for path in files]}, split=spec)
    split = _open(tmp_path / f"*.{kind}", splits=(spec,)).splits["train"]
    assert _texts(split) == expected["text"][:]
    assert split.num_rows == len(expected)


def test_only_the_splits_that_are_asked_for_are_chosen_but_all_stay_known(tmp_path: Path) -> None:
    for name in ("train.jsonl", "test.jsonl"):
        _write(tmp_path / name)
    source = _open(tmp_path, splits=("test[:2]",), limit=1)
    assert {name: split.num_rows for name, split in source.splits.items()} == {"test": 1}
    assert {name: split.num_rows for name, split in source.all_splits.items()} == {"train": 30, "test": 30}


def test_a_split_of_empty_parquet_files_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _write(tmp_path / "train.parquet")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "test.parquet")
    with caplog.at_level(logging.WARNING, logger="pipelines"):
        assert list(_open(tmp_path).splits) == ["train"]
    assert "split 'test' has no rows and is left out" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("bad.jsonl", _jsonl(TEXTS) + b'{"text": "a"\n', "after row 0: cannot be read"),
        ("bad.jsonl.gz", b"not packed", "cannot be read"),
        ("bad.parquet", b"PAR1 no it is not" * 10, "cannot be read as a Parquet file"),
        ("bad.csv", b'text,0\n"a",1\n"b",2,3\n', "cannot be read: .* line 3"),
        ("bad.txt", b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_a_damaged_file_among_others_is_named_with_the_reason(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    good = {".jsonl": _jsonl(TEXTS), ".gz": gzip.compress(_jsonl(TEXTS)), ".csv": b"text,0\na,1\n", ".txt": b"a\n"}
    suffix = "".join(Path(name).suffixes)
    for stem in ("a-good", "z-good"):
        _write(tmp_path / f"{stem}{suffix}")
        if (known := good.get(Path(name).suffix)) is not None:
            (tmp_path / f"{stem}{suffix}").write_bytes(known)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=reason) as caught:
        _open(tmp_path)
    assert str(tmp_path / name) in caught.value.cause
    assert caught.value.remedy


def test_what_travels_to_a_worker_of_a_split_is_small(tmp_path: Path) -> None:
    split = _open(_write(tmp_path / "a.jsonl"), splits=("train[3:9]",)).splits["train"]
    packed = pickle.dumps((split.reader, split.groups.pieces(split.ranges)))
    assert len(packed) < 4000
    reader, pieces = pickle.loads(packed)
    assert [text for _, batch in reader.read(pieces, ["text"]) for text in batch.column(0).to_pylist()] == TEXTS[3:9]


def located(folder: Path, splits: list[str], columns: list[str] | None) -> int:
    """How many rows there are."""
    found = opening.open_source(SourceConfig(dataset=str(folder)), columns=columns)
    groups = opening.locate_rows(found, splits, folder="", inside=None, columns=columns, run=lambda *_: None)
    return sum(each.total_rows for each in groups.values())


@pytest.mark.parametrize(
    ("table", "cause"),
    [
        (pa.table({"text": [[3]], "n": [1]}), r"train-1.parquet: column 'text' holds list<.*>, expected string"),
        (pa.table({"n": [1]}), r"train-1.parquet: no column 'text'"),
    ],
)
def test_a_parquet_file_with_other_columns_is_named_before_rows_are_read(
    tmp_path: Path, table: pa.Table, cause: str
) -> None:
    stored.parquet(tmp_path / "train-0.parquet", pa.table({"text": ["x"], "n": [1]}))
    stored.parquet(tmp_path / "train-1.parquet", table)
    stored.parquet(tmp_path / "test-0.parquet", pa.table({"text": ["x"], "n": [1]}))
    with pytest.raises(SourceError, match=cause):
        located(tmp_path, ["train", "test"], ["text"])
    assert located(tmp_path, ["train"], ["n"]) == 2, "a column that nobody reads"
    assert located(tmp_path, ["test"], ["text"]) == 1, "a split that nobody reads"
