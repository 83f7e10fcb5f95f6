"""A folder has the splits, and they have the rows, that `load_dataset` gives for it; or it is refused."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import datasets
import pytest

from pipelines.prepare import data_files
from pipelines.prepare.config import SourceConfig
from pipelines.prepare.loading import open_source
from tfrecord_io.errors import SourceError

# Each is a folder: the files in it, each with one row of its own.
SHAPES = [
    ["a.jsonl"],
    ["b.jsonl", "a.jsonl"],
    ["x/a.jsonl", "y/z/b.jsonl"],
    ["train.jsonl"],
    ["train.jsonl", "test.jsonl"],
    ["train.jsonl", "dev.jsonl", "eval.jsonl"],
    ["training.jsonl", "valid.jsonl", "testing.jsonl"],
    ["train.jsonl", "validation.jsonl", "evaluation.jsonl"],
    ["en.train.jsonl", "en.valid.jsonl"],
    ["train.en.jsonl", "train.de.jsonl", "val.en.jsonl"],
    ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "test-00000-of-00001.jsonl"],
    ["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "data/test-00000-of-00001.jsonl"],
    ["data/random-00000-of-00001.jsonl", "data/train-00000-of-00001.jsonl", "data/a_b-00000-of-00001.jsonl"],
    ["data/train.v2-00000-of-00001.jsonl"],
    ["data/train-00000-of-00001-abcdef0123.jsonl", "data/test-00000-of-00001-0123abcdef.jsonl"],
    ["data/train/0.jsonl", "data/test/0.jsonl"],
    ["train/0.jsonl", "train/1.jsonl", "validation/0.jsonl"],
    ["train/a/0.jsonl", "train/b/0.jsonl", "dev/0.jsonl"],
    ["my-train/0.jsonl", "my-test/0.jsonl"],
    ["train-2020/0.jsonl", "dev_2021/0.jsonl"],
    ["my_train_set/0.jsonl", "my.val.set/0.jsonl"],
    ["en/train.jsonl", "de/train.jsonl", "de/test.jsonl"],
    ["train/test.jsonl", "train/other.jsonl"],
    ["test/train-0.jsonl", "test/train-1.jsonl"],
    ["0_train_0.jsonl", "train_0.jsonl", "1-train.jsonl"],
    ["train1.jsonl", "train2.jsonl", "test1.jsonl"],
    ["1train.jsonl", "2test.jsonl"],
    ["my train.jsonl", "my test.jsonl"],
    ["latest.jsonl", "device.jsonl"],
    ["trainer.jsonl", "contest.jsonl", "evaluator.jsonl"],
    ["pretraining.jsonl"],
    ["dev.jsonl"],
    ["test.jsonl"],
    ["a.b.c/x.jsonl", "a.b.d/y.jsonl"],
    ["valid.jsonl", "val.jsonl", "validation.jsonl", "dev.jsonl", "train.jsonl"],
    ["b/train.jsonl", "a-train.jsonl", "train.jsonl", "c/train-1.jsonl"],
    [".hidden/test.jsonl", "train.jsonl"],
    ["__pycache__/test.jsonl", "train.jsonl"],
    [".test.jsonl", "train.jsonl"],
    ["deep/er/and/deep/er/test/x.jsonl", "deep/er/train/x.jsonl"],
    ["data/default/train/0001.jsonl", "data/default/test/0001.jsonl"],
    ["v[1]/train-[2].jsonl", "v[1]/test-{3}.jsonl"],
    ["TRAINER.jsonl", "Contest.jsonl"],
]
REFUSED = [
    (["train.jsonl", "extra.jsonl"], "extra.jsonl belongs to no split by its name"),
    (["data/train/0.jsonl", "data/extra.jsonl"], "data/extra.jsonl belongs to no split"),
    (["data/train-00000-of-00001.jsonl", "test.jsonl"], "test.jsonl belongs to no split"),
    (["train-test.jsonl"], "train-test.jsonl belongs to the splits train and test"),
    (["train/dev/0.jsonl"], "train/dev/0.jsonl belongs to the splits train and validation"),
]


def write(folder: Path, names: Sequence[str]) -> Path:
    """The files, each with its own name as a row."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": name}) + "\n", encoding="utf-8")
    return folder


def ours(folder: Path | str) -> dict[str, list[str]]:
    source = open_source(SourceConfig(dataset=str(folder)))
    return {
        name: [text for _, batch in split.read(split.ranges, ["text"]) for text in batch.column(0).to_pylist()]
        for name, split in source.splits.items()
    }


def theirs(folder: Path) -> dict[str, list[str]]:
    return {name: split["text"][:] for name, split in datasets.load_dataset(str(folder)).items()}


@pytest.mark.parametrize("names", SHAPES, ids=str)
def test_a_folder_has_the_splits_and_rows_of_load_dataset(tmp_path: Path, names: list[str]) -> None:
    write(tmp_path / "data-of-mine", names)
    found = ours(tmp_path / "data-of-mine")
    expected = theirs(tmp_path / "data-of-mine")
    assert found == expected
    assert list(found) == list(expected)


def test_the_name_of_the_folder_itself_says_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "test" / "eval", ["a.jsonl", "b.jsonl"])
    assert ours(folder) == theirs(folder) == {"train": ["a.jsonl", "b.jsonl"]}


@pytest.mark.parametrize(("names", "cause"), REFUSED, ids=str)
def test_a_file_of_no_split_or_of_two_is_refused(tmp_path: Path, names: list[str], cause: str) -> None:
    """`datasets` leaves such a file out, or reads it twice."""
    write(tmp_path, names)
    with pytest.raises(SourceError, match=cause) as caught:
        ours(tmp_path)
    assert caught.value.remedy
    assert sorted(itertools.chain(*theirs(tmp_path).values())) != sorted(names)


@pytest.mark.parametrize("names", [["TRAIN.jsonl", "TEST.jsonl"], ["Train/0.jsonl", "Test/0.jsonl"], ["Dev.jsonl"]])
def test_a_name_in_capitals_is_refused(tmp_path: Path, names: list[str]) -> None:
    """`datasets` takes all of them for training rows."""
    write(tmp_path, names)
    with pytest.raises(SourceError, match="a split's name in capitals, which `datasets` takes for none") as caught:
        ours(tmp_path)
    assert "lower case" in caught.value.remedy
    assert theirs(tmp_path) == {"train": sorted(names)}


def test_a_glob_follows_the_same_rules_from_the_folder_that_its_files_share(tmp_path: Path) -> None:
    write(tmp_path / "test", ["a/train/0.jsonl", "a/dev/0.jsonl", "a/other.csv"])
    assert ours(tmp_path / "test" / "**" / "*.jsonl") == {"train": ["a/train/0.jsonl"], "validation": ["a/dev/0.jsonl"]}


def test_the_name_of_a_bucket_says_nothing() -> None:
    paths = ["gs://my-test/eval/a/0.parquet", "gs://my-test/eval/b/0.parquet"]
    assert data_files.by_split(paths, dataset="gs://my-test/eval/*/*.parquet") == {"train": paths}
    assert data_files.by_split(paths[:1], dataset=paths[0]) == {"train": paths[:1]}


@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
def test_a_card_that_says_the_splits_itself_is_refused(tmp_path: Path, name: str) -> None:
    """`datasets` goes by the card, where it has one."""
    write(tmp_path, ["a.jsonl", "b.jsonl"])
    yaml = "configs:\n- config_name: default\n  data_files:\n  - split: test\n    path: b.jsonl\n"
    (tmp_path / name).write_text(f"---\n{yaml}---\n# A dataset\n" if name == "README.md" else yaml)
    assert theirs(tmp_path) == {"test": ["b.jsonl"]}
    with pytest.raises(SourceError, match=f"{name} says which files belong to which split"):
        ours(tmp_path)


def test_a_card_without_splits_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, ["train.jsonl", "test.jsonl"])
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\nconfigs: none of these are\n")
    with caplog.at_level(logging.WARNING):
        assert ours(tmp_path) == theirs(tmp_path)
