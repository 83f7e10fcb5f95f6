"""Folders that `save_to_disk` wrote, here and elsewhere."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.resolve.library import SourceListing
from pipelines.prepare.sources.resolve.resolve import resolve
from tfrecord_io.errors import OutputError, SourceError

TEXTS = [f"row {index} é" for index in range(30)]


def _dataset(texts: Sequence[str] = TEXTS, **options: Any) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": list(texts)}, **options)


def _resolve(folder: Path | str) -> SourceListing:
    return resolve(SourceConfig(dataset=str(folder)))


@pytest.mark.parametrize(
    ("split", "name"), [(None, "train"), ("test", "test"), ("test[:10]", "test"), ("train+test", "train")]
)
def test_a_dataset_alone_has_the_name_that_it_had(tmp_path: Path, split: str | None, name: str) -> None:
    _dataset(split=split and datasets.Split(split)).save_to_disk(tmp_path / "saved")
    assert list(_resolve(tmp_path / "saved").splits) == [name]


def test_a_split_whose_name_cannot_be_that_of_a_file_is_refused(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": _dataset()}).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "train").rename(tmp_path / "saved" / "a b")
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["a b"]}')
    with pytest.raises(SourceError, match="split 'a b', expected a name of letters"):
        _resolve(tmp_path / "saved")


def test_a_dict_has_its_splits_by_name_here_and_elsewhere(tmp_path: Path, memory: MemoryFileSystem) -> None:
    datasets.DatasetDict({"b": _dataset(), "a": _dataset(TEXTS[:2])}).save_to_disk(tmp_path / "saved", num_shards=None)
    memory.put(str(tmp_path / "saved"), "/bucket/saved", recursive=True)
    here, there = _resolve(tmp_path / "saved"), _resolve("memory://bucket/saved")
    names = [f"{split}/data-00000-of-00001.arrow" for split in ("b", "a")]
    assert [entry["name"] for entry in here.identity["files"]] == names
    assert here.identity == there.identity
    assert here.features_of("a") == there.features_of("a")
    assert [f.path for part in there.splits.values() for f in part] == [f"memory://bucket/saved/{n}" for n in names]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"_data_files": [{"filename": "../../x.arrow"}]}, "'../../x.arrow', expected a plain file name"),
        ({"_data_files": [{"filename": "/etc/passwd"}]}, "'/etc/passwd', expected a plain file name"),
        ({"_data_files": [{}]}, "filename"),
        ({"_data_files": None}, "None, expected a list"),
        ({"_indices_data_files": [{"filename": "i.arrow"}]}, "reordered by an indices file"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path, changes: dict[str, Any], cause: str) -> None:
    datasets.DatasetDict({"train": _dataset()}).save_to_disk(tmp_path / "saved")
    state = tmp_path / "saved/train/state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), **changes}))
    with pytest.raises(SourceError, match=cause) as caught:
        _resolve(tmp_path / "saved")
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["dataset_dict.json", "train/state.json", "train/dataset_info.json"])
def test_what_is_no_json_is_named(tmp_path: Path, name: str) -> None:
    datasets.DatasetDict({"train": _dataset()}).save_to_disk(tmp_path / "saved")
    for content in (b"{", b"[]", b"\xff"):
        (tmp_path / "saved" / name).write_bytes(content)
        with pytest.raises(SourceError, match=f"{name} is missing or not as `save_to_disk` writes it"):
            _resolve(tmp_path / "saved")


@pytest.mark.parametrize(
    "linked", ["train/data-00000-of-00001.arrow", "train", "train/state.json", "dataset_dict.json"]
)
def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path, linked: str) -> None:
    datasets.DatasetDict({"train": _dataset()}).save_to_disk(tmp_path / "saved", num_shards=None)
    (tmp_path / "saved" / linked).rename(tmp_path / "mine")
    (tmp_path / "saved" / linked).symlink_to(tmp_path / "mine")
    with pytest.raises((SourceError, OutputError), match=r"its card or a link leads to|a link, exp"):
        _resolve(tmp_path / "saved")


def test_a_folder_that_is_a_link_itself_and_links_inside_of_it_are_read(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": _dataset()}).save_to_disk(tmp_path / "saved", num_shards=None)
    (tmp_path / "saved" / "train").rename(tmp_path / "saved" / "kept")
    (tmp_path / "saved" / "train").symlink_to("kept")
    (tmp_path / "link").symlink_to("saved")
    assert list(_resolve(tmp_path / "link").splits) == ["train"]
