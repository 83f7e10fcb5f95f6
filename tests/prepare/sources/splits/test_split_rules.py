"""A folder has the splits, and they have the rows, that `load_dataset` gives for it; or it is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import datasets
import fsspec
import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.splits import file_kinds
from pipelines.prepare.sources.splits.resolve import resolve
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
    (["train/train-1/0.jsonl", "train/1.jsonl"], "train/train-1/0.jsonl has the word of split train twice"),
    (["train-1-train.jsonl"], "train-1-train.jsonl has the word of split train twice"),
    (["a.jsonl", "B.JSONL"], "`datasets` would leave out B.JSONL"),
]
# Each with files that are no data here, and would be for `datasets`, or would make it read other ones.
STRANGE = [
    (["a.jsonl", "a.json.bak"], "`datasets` would take a.json.bak for data"),
    (["a.jsonl", "b.png", "c.png"], "`datasets` would take b.png for data"),
    (["train.jsonl", "pictures/test/0.jpg"], "`datasets` would take pictures/test/0.jpg for data"),
    (["train.jsonl", "runs/0.eval"], "`datasets` would take runs/0.eval for data"),
    (["train.jsonl", "task.toml"], "`datasets` would take task.toml for data"),
]
# What stands beside the data and changes nothing.
BESIDE = [
    ["a.jsonl", "LICENSE"],
    ["a.jsonl", "notes.md"],
    ["a.jsonl", "make.py", "run.sh", "data.py"],
    ["train.jsonl", "test.jsonl", "logo.png"],
    ["train/0.jsonl", "test/0.jsonl", "scripts/make.py"],
    ["a.jsonl", "config.json"],
    ["a.jsonl", "train/README.md"],
    ["data/train-00000-of-00001.jsonl", "extra/notes.md"],
]


def write(folder: Path, names: Sequence[str]) -> Path:
    """The files, each with its own name as a row."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": name}) + "\n", encoding="utf-8")
    return folder


def ours(folder: Path | str, config: str | None = None) -> dict[str, list[str]]:
    """The rows of each split, read line by line from its files."""
    splits = resolve(SourceConfig(dataset=str(folder), config=config)).splits
    return {name: [json.loads(Path(file.path).read_text())["text"] for file in files] for name, files in splits.items()}


def theirs(folder: Path, config: str | None = None) -> dict[str, list[str]]:
    return {name: split["text"][:] for name, split in datasets.load_dataset(str(folder), config).items()}


@pytest.mark.parametrize("names", [*SHAPES, *BESIDE], ids=str)
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


@pytest.mark.parametrize(("names", "cause"), STRANGE, ids=str)
def test_a_folder_of_which_datasets_reads_other_files_is_refused(tmp_path: Path, names: list[str], cause: str) -> None:
    write(tmp_path, names)
    with pytest.raises(SourceError, match=cause) as caught:
        ours(tmp_path)
    assert "a glob" in caught.value.remedy


@pytest.mark.parametrize("name", ["my-split", "é", "a b"])
def test_a_split_whose_name_cannot_be_that_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, [f"data/{name}-00000-of-00001.jsonl"])
    with pytest.raises(SourceError, match=f"split '{name}', expected letters"):
        ours(tmp_path)


def test_every_suffix_has_the_reader_that_it_has_for_datasets() -> None:
    from datasets.packaged_modules import _EXTENSION_TO_MODULE

    ours = {suffix: reader for suffix, reader in file_kinds.READERS.items() if reader}
    theirs = {suffix.lower(): module for suffix, (module, _) in _EXTENSION_TO_MODULE.items()}
    assert file_kinds.READERS.keys() == theirs.keys()
    assert ours == {suffix: "tsv" if suffix == ".tsv" else theirs[suffix] for suffix in ours}


@pytest.mark.parametrize("names", [["TRAIN.jsonl", "TEST.jsonl"], ["Train/0.jsonl", "Test/0.jsonl"], ["Dev.jsonl"]])
def test_a_name_in_capitals_is_refused(tmp_path: Path, names: list[str]) -> None:
    """`datasets` takes all of them for training rows."""
    write(tmp_path, names)
    with pytest.raises(SourceError, match="a split's name in capitals, which `datasets` ignores") as caught:
        ours(tmp_path)
    assert "lower case" in caught.value.remedy
    assert theirs(tmp_path) == {"train": sorted(names)}


def test_a_glob_follows_the_same_rules_from_the_folder_that_its_files_share(tmp_path: Path) -> None:
    write(tmp_path / "test", ["a/train/0.jsonl", "a/dev/0.jsonl", "a/other.csv"])
    assert ours(tmp_path / "test" / "**" / "*.jsonl") == {"train": ["a/train/0.jsonl"], "validation": ["a/dev/0.jsonl"]}


def test_the_name_of_a_bucket_says_nothing() -> None:
    fs = fsspec.filesystem("memory")
    for name in ("a", "b"):
        fs.pipe(f"/my-test/eval/{name}/0.jsonl", json.dumps({"text": name}).encode())
    try:
        for dataset in ("memory://my-test/eval/*/*.jsonl", "memory://my-test/eval", "memory://my-test/eval/a/0.jsonl"):
            assert list(resolve(SourceConfig(dataset=dataset)).splits) == ["train"]
    finally:
        fs.rm("/my-test", recursive=True)
