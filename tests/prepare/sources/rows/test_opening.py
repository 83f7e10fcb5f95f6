"""Datasets with their rows, opened as builds open them: the rows that `datasets` gives, in the same order."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Sequence
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
from tests.prepare.sources.ingest.ingesting import PACKERS
from tfrecord_io.errors import ColumnError, SourceError, SplitNotFoundError

TEXTS = [f"row {index} é" for index in range(30)]


def _open(dataset: Path | str, **options: Any) -> Source:
    return building.opened(SourceConfig(dataset=str(dataset), **options))


def _texts(split: SplitSource) -> list[str]:
    return [text for _, batch in split.read(split.ranges, ["text"]) for text in batch.column(0).to_pylist()]


def _jsonl(texts: Sequence[str]) -> bytes:
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


def _csv(texts: Sequence[str], separator: str) -> bytes:
    return "".join(f"{text}{separator}{index}\n" for index, text in enumerate(["text", *texts])).encode()


def _arrow(path: Path, opener: Callable[..., Any] = pa.ipc.new_stream) -> None:
    table = pa.table({"text": TEXTS})
    with opener(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def _write(path: Path) -> Path:
    """A file that holds TEXTS, of the kind that its name says."""
    texts = {
        ".jsonl": _jsonl(TEXTS),
        ".csv": _csv(TEXTS, ","),
        ".tsv": _csv(TEXTS, "\t"),
        ".txt": "".join(f"{text}\n" for text in TEXTS).encode(),
        ".json": json.dumps([{"text": text} for text in TEXTS]).encode(),
    }
    kind, packed = path.suffixes[-2:] if path.suffix in PACKERS else (path.suffix, "")
    if kind == ".parquet":
        pq.write_table(pa.table({"text": TEXTS}), path, row_group_size=8)
    elif kind == ".arrow":
        _arrow(path)
    else:
        path.write_bytes(PACKERS[packed](texts[kind]))
    return path


@pytest.mark.parametrize(
    "name",
    [
        *("a.parquet", "a.arrow", "a.jsonl", "a.json", "a.csv", "a.tsv", "a.txt"),
        *("a.jsonl.gz", "a.csv.bz2", "a.tsv.xz", "a.txt.zst"),
    ],
)
def test_a_file_of_each_kind_gives_its_rows_as_split_train(tmp_path: Path, name: str) -> None:
    source = _open(_write(tmp_path / name))
    assert list(source.splits) == ["train"]
    assert _texts(source.splits["train"]) == TEXTS


def test_both_formats_of_arrow_files_are_read(tmp_path: Path) -> None:
    _arrow(tmp_path / "a.arrow", pa.ipc.new_file)
    assert _texts(_open(tmp_path / "a.arrow").splits["train"]) == TEXTS


def test_a_dataset_that_was_shuffled_and_filtered_before_saving_keeps_that_order(tmp_path: Path) -> None:
    made = datasets.Dataset.from_dict({"text": TEXTS}).shuffle(seed=3)
    made = made.filter(lambda row: "1" in row["text"], keep_in_memory=True)
    made.save_to_disk(tmp_path / "saved")
    assert made["text"][:] != sorted(made["text"][:])
    assert _texts(_open(tmp_path / "saved").splits["train"]) == made["text"][:]


def test_a_dataset_that_was_sliced_before_saving_has_only_that_slice(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": TEXTS}).select(range(5, 9)).save_to_disk(tmp_path / "saved")
    assert _texts(_open(tmp_path / "saved").splits["train"]) == TEXTS[5:9]


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


def test_row_numbers_are_those_of_the_whole_split(tmp_path: Path) -> None:
    split = _open(_write(tmp_path / "a.jsonl"), splits=("train[20:22]+train[3:5]",)).splits["train"]
    assert [(row, batch.num_rows) for row, batch in split.read(split.ranges, ["text"])] == [(20, 2), (3, 2)]


def test_only_the_splits_that_are_asked_for_are_chosen_but_all_stay_known(tmp_path: Path) -> None:
    for name in ("train.jsonl", "test.jsonl"):
        _write(tmp_path / name)
    source = _open(tmp_path, splits=("test[:2]",), limit=1)
    assert {name: split.num_rows for name, split in source.splits.items()} == {"test": 1}
    assert {name: split.num_rows for name, split in source.all_splits.items()} == {"train": 30, "test": 30}


@pytest.mark.parametrize("spec", ["tset", "tran[:3]"])
def test_a_split_that_is_not_there_is_named_with_those_that_are(tmp_path: Path, spec: str) -> None:
    for name in ("train.jsonl", "test.jsonl"):
        _write(tmp_path / name)
    with pytest.raises(SplitNotFoundError, match="choose among test, train"):
        _open(tmp_path, splits=(spec,))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "txt", "parquet"])
def test_an_empty_part_file_adds_no_rows_and_stops_nothing(tmp_path: Path, kind: str) -> None:
    _write(tmp_path / f"train-1.{kind}")
    if kind == "parquet":
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "train-0.parquet")
    else:
        (tmp_path / f"train-0.{kind}").write_bytes(b"")
    assert _texts(_open(tmp_path).splits["train"]) == TEXTS


def test_a_split_of_empty_parquet_files_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _write(tmp_path / "train.parquet")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "test.parquet")
    with caplog.at_level(logging.WARNING, logger="pipelines"):
        assert list(_open(tmp_path).splits) == ["train"]
    assert "split 'test' has no rows and is left out" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("bad.jsonl", _jsonl(TEXTS) + b'{"text": "a"\n', "row 30: not a JSON object"),
        ("bad.jsonl.gz", b"not packed", "cannot be decompressed"),
        ("bad.jsonl.zst", b"not packed", "cannot be decompressed"),
        ("bad.parquet", b"PAR1 no it is not" * 10, "cannot be read as a Parquet file"),
        ("bad.arrow", b"ARROW1 no it is not" * 10, "cannot be read"),
        ("bad.csv", b'text,0\n"a",1\n"b",2,3\n', "line 3"),
        ("bad.txt", b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_a_damaged_file_among_others_is_named_with_the_reason(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    suffix = "".join(Path(name).suffixes)
    for good in ("a-good", "z-good"):
        _write(tmp_path / f"{good}{suffix}")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=reason) as caught:
        _open(tmp_path)
    assert str(tmp_path / name) in caught.value.cause
    assert caught.value.remedy


def test_files_with_other_columns_are_an_error_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + "a,1\n" * 12)
    (tmp_path / "b.csv").write_text("text;label\n" + "a;1\n" * 12)
    with pytest.raises(SourceError, match=r"b\.csv, row 0: column 'text;label', expected only 'text', 'label'"):
        _open(tmp_path)


def test_a_file_in_utf_16_is_not_taken_for_latin_1(tmp_path: Path) -> None:
    (tmp_path / "excel.csv").write_bytes("text\nun café noir\n".encode("utf-16"))
    with pytest.raises(SourceError, match=r"not UTF-8, .*`iconv -f utf-16 -t utf-8 OLD > NEW`"):
        _open(tmp_path)


def test_a_parquet_file_of_other_types_is_refused_before_a_row_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": [1], "n": ["x"]}), tmp_path / "b.parquet")
    found = opening.open_source(SourceConfig(dataset=str(tmp_path)), columns=("text",))
    with pytest.raises(SourceError, match=r"b\.parquet: column 'text' holds int64, expected string"):
        opening.locate_rows(
            found, ["train"], folder=str(tmp_path / "rows"), inside=None, columns=("text",), run=_not_run
        )


def test_a_name_that_a_header_has_twice_is_refused_if_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,n,n\na,1,2\n")
    config = SourceConfig(dataset=str(tmp_path))
    assert opening.open_source(config, columns=("text",))
    with pytest.raises(ColumnError, match="several columns 'n'"):
        opening.open_source(config, columns=("text", "n"))


def test_what_travels_to_a_worker_of_a_split_is_small(tmp_path: Path) -> None:
    split = _open(_write(tmp_path / "a.jsonl"), splits=("train[3:9]",)).splits["train"]
    packed = pickle.dumps((split.reader, split.groups.pieces(split.ranges)))
    assert len(packed) < 4000
    reader, pieces = pickle.loads(packed)
    assert [text for _, batch in reader.read(pieces, ["text"]) for text in batch.column(0).to_pylist()] == TEXTS[3:9]


def _not_run(tasks: object) -> None:
    raise AssertionError("Parquet is read in place")
