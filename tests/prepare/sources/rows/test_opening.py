"""Datasets opened like in a build: the rows of `datasets`, in the same order; splits and slices that the user requests,
under chosen names.
"""

import dataclasses
import gzip
import json
import logging
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.parquet import access
from pipelines.prepare.sources.rows import opening, selection
from pipelines.prepare.sources.rows.reading import RowReader, Source, SplitSource
from tests import building
from tests.prepare.sources import stored
from tfrecord_io.errors import ConfigError, SourceError, SplitNotFoundError

TEXTS = [f"row {index} é" for index in range(30)]


def _open(dataset: Path | str, **options: Any) -> Source:
    return building.opened(SourceConfig(dataset=str(dataset), **options))


def _texts(split: SplitSource) -> list[str]:
    return [text for _, batch in split.read(split.ranges, ["text"]) for text in batch.column(0).to_pylist()]


def _jsonl(texts: Sequence[str]) -> bytes:
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


def _write(path: Path) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": TEXTS}), path, row_group_size=8)
    else:
        path.write_bytes(_jsonl(TEXTS))
    return path


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        *((spec, "parquet") for spec in ("train", "train[5:7]+train[1:3]", "train[-4:]")),
        *(("train[90%:]+train[:50%]", kind) for kind in ("parquet", "jsonl")),
    ],
)
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
        ("bad.csv", b'text,0\n"a",1\n"b",2,3\n', "line 3 has 3 cells, expected 2"),
        ("bad.txt", b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
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
    source = opening.open_source(SourceConfig(dataset=str(folder)), columns=columns)
    groups = opening.locate_rows(source, splits, folder="", inside=None, columns=columns, run=lambda *_: None)
    return sum(of_split.total_rows for of_split in groups.values())


@pytest.mark.parametrize(
    ("table", "cause"),
    [
        (pa.table({"text": [[3]], "n": [1]}), r"train-1.parquet: column 'text' holds list<.*>, expected string"),
        (pa.table({"n": [1]}), r"train-1.parquet: no column 'text'"),
    ],
)
def test_a_parquet_file_with_other_columns_is_named_before_reading(tmp_path: Path, table: pa.Table, cause: str) -> None:
    stored.parquet(tmp_path / "train-0.parquet", pa.table({"text": ["x"], "n": [1]}))
    stored.parquet(tmp_path / "train-1.parquet", table)
    stored.parquet(tmp_path / "test-0.parquet", pa.table({"text": ["x"], "n": [1]}))
    with pytest.raises(SourceError, match=cause):
        located(tmp_path, ["train", "test"], ["text"])
    assert located(tmp_path, ["train"], ["n"]) == 2, "a column that nobody reads"
    assert located(tmp_path, ["test"], ["text"]) == 1, "a split that nobody reads"


def test_rows_are_read_from_the_copies_of_files_that_workers_cannot_read(tmp_path: Path) -> None:
    files = [stored.parquet(tmp_path / f"train-{n}.parquet", pa.table({"text": TEXTS[n::2]})) for n in (0, 1)]
    source = opening.open_source(SourceConfig(dataset=str(tmp_path)), columns=None)
    copies = access.relay(files[:1], folder=str(tmp_path / "rows"), addresses={})
    source = dataclasses.replace(source, copies=copies)
    groups = opening.locate_rows(source, ["train"], folder="", inside=None, columns=None, run=lambda *_: None)["train"]
    Path(files[0].path).unlink()
    read = RowReader(split="train", types=source.types("train")).read(groups.pieces([(0, 30)]), ["text"])
    assert [text for _, batch in read for text in batch.column(0).to_pylist()] == TEXTS[0::2] + TEXTS[1::2]


def choose(lengths: Mapping[str, int], *splits: str, limit: int | None = None) -> dict[str, selection.Chosen]:
    return selection.select_ranges(SourceConfig(dataset="data", splits=splits, limit=limit), lengths)


class TestSlices:
    def test_without_options_every_split_that_has_rows(self) -> None:
        chosen = choose({"train": 30, "empty": 0, "my-split.v2": 5})
        assert chosen == {"train": ("train", ((0, 30),)), "my-split.v2": ("my-split.v2", ((0, 5),))}

    def test_joined_slices_keep_their_order(self) -> None:
        chosen = choose({"train": 1000}, "train[90%:]+train[:10%]")
        assert chosen == {"train": ("train", ((900, 1000), (0, 100)))}

    def test_a_slice_under_a_name_of_its_own(self) -> None:
        chosen = choose({"train": 1000}, "validation=train[:1%]", "train=train[1%:]")
        assert chosen == {"validation": ("train", ((0, 10),)), "train": ("train", ((10, 1000),))}

    def test_a_limit_is_of_each_split(self) -> None:
        chosen = choose({"train": 30, "test": 2}, "train[5:7]+train[1:3]", "a=train[10:]", "test", limit=3)
        assert [ranges for _, ranges in chosen.values()] == [((5, 7), (1, 2)), ((10, 13),), ((0, 2),)]

    def test_rows_in_two_splits_are_counted(self, caplog: pytest.LogCaptureFixture) -> None:
        assert len(choose({"train": 30}, "a=train[:5]+train[7:9]", "b=train[4:8]")) == 2
        assert "2 rows of split 'train' will be in 'a' and in 'b'" in caplog.text


class TestRefusals:
    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("tset", r"--split 'tset': Unknown split .tset..*did you mean 'test'\? choose among test, train"),
            ("train[", r"--split 'train\[': .*choose among"),
            ("train[5:5]", r"--split 'train\[5:5\]' has no rows, expected at least one.*another slice"),
            ("a=train[200:]", r"has no rows, expected at least one.*another slice"),
            ("a=tran[:3]", r"did you mean 'train'\? choose among test, train"),
            ("train,test", r"name each split separately: --split train --split test"),
            ("train+test", r"joins the splits test, train,.*--split once for each"),
            ("train[:500%]", r"Percent slice boundaries must be"),
        ],
    )
    def test_what_is_not_there_is_named_with_what_is(self, spec: str, message: str) -> None:
        with pytest.raises(SplitNotFoundError, match=message):
            choose({"train": 30, "test": 30}, spec)

    @pytest.mark.parametrize(
        "specs", [("train[:2]", "train[4:]"), ("a=train[:2]", "a=train[4:]"), ("train", "train=test")]
    )
    def test_a_name_that_is_given_twice(self, specs: Sequence[str]) -> None:
        with pytest.raises(SplitNotFoundError, match=r"already a split '\w+'.*a different name.*plus sign"):
            choose({"train": 30, "test": 30}, *specs)

    @pytest.mark.parametrize("spec", ["=train", "a b=train", "a/b=train", "a=", ".a=train", "a= "])
    def test_a_name_that_is_none_is_refused_before_anything_is_opened(self, spec: str) -> None:
        with pytest.raises(ConfigError, match="expected NAME=SPLIT"):
            SourceConfig(dataset="data", splits=(spec,))

    def test_a_source_without_rows(self) -> None:
        with pytest.raises(SourceError, match="data: no rows, expected at least one"):
            choose({"train": 0})


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ((), ("train", "test", "my-split")),
        (("a=train[:5%]", "b=train[5%:]"), ("train",)),
        (("my-split", "test[:3]"), ("my-split", "test")),
    ],
)
def test_the_splits_that_rows_are_taken_from(specs: tuple[str, ...], expected: tuple[str, ...]) -> None:
    config = SourceConfig(dataset="data", splits=specs)
    assert selection.needed_source_splits(config, ("train", "test", "my-split")) == expected
