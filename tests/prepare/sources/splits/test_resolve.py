"""Every way of naming a dataset leads to its files, in the order in which `datasets` reads them."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.files.data_files import SourceListing
from pipelines.prepare.sources.splits.resolve import resolve
from tests import building
from tfrecord_io.errors import SourceError

TEXTS = [f"row {index} é" for index in range(30)]
ROW = b'{"text": "a"}\n'


def _resolve(dataset: Path | str, *more: Path | str, **options: Any) -> SourceListing:
    return resolve(SourceConfig(dataset=str(dataset), more_paths=tuple(map(str, more)), **options))


def _paths(listing: SourceListing, folder: Path | None = None) -> dict[str, list[str]]:
    """Where the files of each split are, below a folder."""
    return {
        split: [os.path.relpath(file.path, folder) if folder else file.path for file in files]
        for split, files in listing.splits.items()
    }


def _write(folder: Path, *names: str, content: bytes = ROW) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.parquet", "parquet"),
        ("a.arrow", "arrow"),
        ("a.ndjson", "json"),
        ("a.JSON.gz", "json"),
        ("a.csv.zst", "csv"),
        ("a.tsv.xz", "tsv"),
        ("a.txt.bz2", "text"),
    ],
)
def test_a_file_is_of_the_kind_that_its_name_says(tmp_path: Path, name: str, kind: str) -> None:
    (file,) = _resolve(_write(tmp_path, name) / name).splits["train"]
    assert (file.kind, file.name, file.path, file.size) == (kind, name, str(tmp_path / name), len(ROW))


def test_files_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    _write(tmp_path, "train-00001-of-00002.jsonl", "train-00000-of-00002.jsonl")
    expected = {"train": ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"]}
    assert _paths(_resolve(tmp_path / "*.jsonl"), tmp_path) == expected


@pytest.mark.parametrize("other", ["./a.jsonl", "../here/a.jsonl", "{}/a.jsonl", "*.jsonl", ".", "file://{}/a.jsonl"])
def test_a_file_that_is_named_in_two_ways_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    here = _write(tmp_path / "here", "a.jsonl")
    monkeypatch.chdir(here)
    assert _paths(_resolve("a.jsonl", other.format(here)), here) == {"train": ["a.jsonl"]}


@pytest.mark.parametrize("dataset", ["", "*.jsonl"])
def test_a_link_beside_its_file_is_not_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dataset: str
) -> None:
    _write(tmp_path / "data", "b.jsonl")
    _write(tmp_path / "elsewhere", "c.jsonl")
    (tmp_path / "data/a.jsonl").symlink_to("b.jsonl")
    (tmp_path / "data/c.jsonl").symlink_to(tmp_path / "elsewhere/c.jsonl")
    (tmp_path / "data/gone.jsonl").symlink_to("nowhere")
    (tmp_path / "data/again").symlink_to(tmp_path / "elsewhere")
    found = _resolve(tmp_path / "data" / dataset)
    assert _paths(found, tmp_path / "data") == {"train": ["b.jsonl", "c.jsonl"]}
    assert "a.jsonl: left out, a link to another file" in caplog.text


def test_a_folder_is_searched_in_depth_without_hidden_files_and_metadata(tmp_path: Path) -> None:
    _write(tmp_path, "a/b/train.jsonl", "a/test.jsonl", ".cache/train.jsonl", "a/.train.jsonl", "__x/train.jsonl")
    _write(tmp_path, "a/dataset_info.json", "README.md", "metadata.json", content=b"{}")
    assert _paths(_resolve(tmp_path), tmp_path) == {"train": ["a/b/train.jsonl"], "test": ["a/test.jsonl"]}


@pytest.mark.parametrize("left", [".prep/lock", "manifest.json"])
@pytest.mark.parametrize("where", ["local", "remote"])
def test_an_output_below_the_source_is_no_part_of_it(
    tmp_path: Path, memory: MemoryFileSystem, left: str, where: str
) -> None:
    names = ["train.jsonl", *(f"out/{name}" for name in (left, "features.json", "rejected/a.jsonl", "x.tfrecord"))]
    for name in names:
        memory.pipe(f"/data/{name}", ROW)
    _write(tmp_path / "data", *names)
    found = _resolve(tmp_path / "data" if where == "local" else "memory://data")
    assert [file.name for files in found.splits.values() for file in files] == ["train.jsonl"]


def test_a_manifest_alone_does_not_make_a_folder_an_output(tmp_path: Path) -> None:
    _write(tmp_path, "a/rows.jsonl", "a/manifest.json")
    assert _paths(_resolve(tmp_path), tmp_path) == {"train": ["a/manifest.json", "a/rows.jsonl"]}


def test_an_output_is_no_source_itself(tmp_path: Path) -> None:
    _write(tmp_path, "manifest.json", "features.json", "x-train-00000-of-00001.tfrecord")
    with pytest.raises(
        SourceError, match=r"the output of a build, .*; name the files that the dataset is to be made from"
    ):
        _resolve(tmp_path)


def test_a_folder_below_a_hidden_one_is_read_when_it_is_named(tmp_path: Path) -> None:
    _write(tmp_path, ".hidden/data/train.jsonl")
    assert list(_resolve(tmp_path / ".hidden/data").splits) == ["train"]


def test_signs_of_a_glob_in_existing_names_mean_themselves(tmp_path: Path) -> None:
    _write(tmp_path, "v[1]/train-[2]*.jsonl", "v[1]/train-2.jsonl", "v1/train.jsonl")
    assert _paths(_resolve(tmp_path / "v[1]/train-[2]*.jsonl"), tmp_path) == {"train": ["v[1]/train-[2]*.jsonl"]}
    assert _paths(_resolve(tmp_path / "v[1]"), tmp_path) == {"train": ["v[1]/train-2.jsonl", "v[1]/train-[2]*.jsonl"]}


def test_a_file_address_is_the_local_file(tmp_path: Path) -> None:
    _write(tmp_path, "train.jsonl")
    assert _resolve(f"file://{tmp_path}/train.jsonl") == _resolve(tmp_path / "train.jsonl")


@pytest.mark.parametrize(
    ("name", "split"), [("dev.jsonl", "validation"), ("en.valid.jsonl", "validation"), ("device.jsonl", "train")]
)
def test_a_file_name_says_its_split_as_a_word(tmp_path: Path, name: str, split: str) -> None:
    assert list(_resolve(_write(tmp_path, name) / name).splits) == [split]


@pytest.mark.parametrize("content", [b"", b"[]", b" \n"])
def test_an_empty_file_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    _write(tmp_path, "train-1.jsonl")
    _write(tmp_path, "train-0.jsonl", "test.jsonl", content=content)
    assert _paths(_resolve(tmp_path), tmp_path) == {"train": ["train-1.jsonl"]}
    assert "split 'test' has no rows and is left out" in caplog.text


def test_a_table_of_nothing_but_its_header_is_left_out(tmp_path: Path) -> None:
    _write(tmp_path, "train-0.csv", content=b"text,label\n\n")
    _write(tmp_path, "train-1.csv", content=b"text,label\na,1\n")
    assert _paths(_resolve(tmp_path), tmp_path) == {"train": ["train-1.csv"]}


def test_a_dataset_without_any_row_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SourceError, match=r"a\.jsonl: no rows, expected at least one; "):
        _resolve(_write(tmp_path, "a.jsonl", content=b"") / "a.jsonl")
    assert not caplog.records


@pytest.mark.parametrize("name", ["missing.jsonl", "missing/*.csv", "missing/folder/of/data", "./missing"])
def test_a_path_that_is_not_there_is_a_clear_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match=r"no such file") as caught:
        _resolve(name if name.startswith("./") else tmp_path / name)
    assert caught.value.remedy


def test_a_glob_of_folders_alone_is_an_error(tmp_path: Path) -> None:
    _write(tmp_path, "a/x.jsonl", "b/x.jsonl")
    with pytest.raises(SourceError, match="matches folders only, expected files"):
        _resolve(tmp_path / "*")


def test_a_folder_without_data_files_says_what_would_be_data(tmp_path: Path) -> None:
    _write(tmp_path, "README.md")
    with pytest.raises(SourceError, match=r"no data file, expected \.arrow, \.csv"):
        _resolve(tmp_path)


@pytest.mark.parametrize("names", [("a.jsonl", "b.csv"), ("a.csv", "b.tsv"), ("a.parquet", "b.txt.gz")])
def test_files_of_two_kinds_are_not_mixed(tmp_path: Path, names: Sequence[str]) -> None:
    _write(tmp_path, *names)
    with pytest.raises(
        SourceError, match=r"files of several kinds: 1 \w+ \(such as a\..*, 1 .*, expected one"
    ) as caught:
        _resolve(tmp_path)
    for name, glob in zip(names, re.findall(r"'(.*?)'", caught.value.remedy), strict=True):
        assert sorted(Path(tmp_path).glob(glob.removeprefix(f"{tmp_path}/"))) == [tmp_path / name]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a.xlsx", "save the sheet as CSV"),
        ("a.zip", "unpack it"),
        ("a.tfrecord", "made from"),
        ("a.doc", "other files"),
    ],
)
def test_a_file_of_an_unknown_kind_is_named_with_what_to_do(tmp_path: Path, name: str, remedy: str) -> None:
    with pytest.raises(SourceError, match=f"{name}: a file of an unknown kind, expected .arrow, .csv") as caught:
        _resolve(_write(tmp_path, name) / name)
    assert remedy in caught.value.remedy


def test_several_paths_are_one_dataset(tmp_path: Path) -> None:
    """As where the shell has resolved a glob. The splits are those of the same files in a folder."""
    names = ["b/train.jsonl", "b/test.jsonl", "a/train.jsonl"]
    _write(tmp_path, *names)
    found = _resolve(*(tmp_path / name for name in names))
    assert _paths(found, tmp_path) == {"train": ["a/train.jsonl", "b/train.jsonl"], "test": ["b/test.jsonl"]}
    assert found.identity == _resolve(tmp_path / "*/*.jsonl").identity == _resolve(tmp_path).identity


@pytest.mark.parametrize("reader", ["json", "csv", "parquet", "text", "arrow", "imagefolder"])
def test_the_name_of_a_reader_is_no_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    """`datasets` would read whatever is in the current folder."""
    monkeypatch.chdir(_write(tmp_path, "train.jsonl"))
    with pytest.raises(
        SourceError, match=f"'{reader}' is the name of a reader of `datasets`, expected the files"
    ) as caught:
        _resolve(reader)
    assert "data/*." in caught.value.remedy
    _write(tmp_path, f"{reader}/a.jsonl")
    assert _paths(_resolve(reader), tmp_path) == {"train": [f"{reader}/a.jsonl"]}, "a folder of that name is the folder"


def test_a_misspelt_path_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    _write(tmp_path, "reviews/train.jsonl")
    with pytest.raises(SourceError, match="/reveiws: no such file or folder") as caught:
        _resolve(tmp_path / "reveiws")
    assert caught.value.remedy == f"did you mean {tmp_path / 'reviews'}?"


def test_several_names_are_files(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="imdb: no such file; only files can be named together"):
        _resolve(_write(tmp_path, "a.jsonl") / "a.jsonl", "imdb")
    with pytest.raises(SourceError, match="an address of the hub with other paths"):
        _resolve(tmp_path / "a.jsonl", "hf://datasets/me/data/a.jsonl")


@pytest.mark.parametrize(
    ("option", "cause"),
    [({"config": "en"}, "no configuration 'en'|--config chooses"), ({"revision": "main"}, "--revision is for hub")],
)
@pytest.mark.parametrize("named", ["folder", "saved", "file"])
def test_options_that_choose_nothing_are_refused(
    tmp_path: Path, option: dict[str, str], cause: str, named: str
) -> None:
    if named == "saved":
        datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "data")
    else:
        _write(tmp_path, "data/a.jsonl")
    with pytest.raises(SourceError, match=cause):
        _resolve(tmp_path / ("data/a.jsonl" if named == "file" else "data"), **option)


@pytest.mark.parametrize("saved", [False, True])
def test_identity_is_the_content_wherever_it_lies(tmp_path: Path, saved: bool) -> None:
    first, second = tmp_path / "first", tmp_path / "elsewhere" / "second"
    if saved:
        one = datasets.Dataset.from_dict({"text": TEXTS})
        datasets.DatasetDict({"train": one, "test": one}).save_to_disk(first)
    else:
        _write(first, "train.jsonl", "sub/test.jsonl")
    shutil.copytree(first, second)
    assert _resolve(first).identity == _resolve(second).identity
    assert str(tmp_path) not in json.dumps(dict(_resolve(first).identity))


def test_identity_says_which_files_are_of_which_split(tmp_path: Path) -> None:
    _write(tmp_path, "train/0.jsonl", "test/0.jsonl")
    before = _resolve(tmp_path).identity
    (tmp_path / "test").rename(tmp_path / "valid")
    assert _resolve(tmp_path).identity != before


def test_one_changed_byte_changes_the_identity(tmp_path: Path) -> None:
    before = _resolve(_write(tmp_path, "a.jsonl")).identity
    _write(tmp_path, "a.jsonl", content=ROW.replace(b"a", b"b"))
    assert _resolve(tmp_path).identity != before


def test_a_remote_folder_is_read_like_a_local_one(tmp_path: Path, memory: MemoryFileSystem) -> None:
    files = b"[{split: a, path: 'en/*'}, {split: b, path: de/0.jsonl}]"
    card = b"---\nconfigs:\n- config_name: x\n  data_files: " + files + b"\n---\n"
    for name in ("en/1.jsonl", "en/0.jsonl", "de/0.jsonl", ".hidden/x.jsonl", "__x/x.jsonl"):
        memory.pipe(f"/bucket/data/{name}", ROW)
        _write(tmp_path, name)
    for _ in range(2):
        here, there = _resolve(tmp_path), _resolve("memory://bucket/data/")
        assert here.identity == there.identity
        assert _paths(there) == {
            split: [path.replace(str(tmp_path), "memory:///bucket/data") for path in some]
            for split, some in _paths(here).items()
        }
        memory.pipe("/bucket/data/README.md", card)
        _write(tmp_path, "README.md", content=card)
    assert list(there.splits) == ["a", "b"]


def test_a_remote_glob_is_resolved_in_order(memory: MemoryFileSystem) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.txt"):
        memory.pipe(f"/bucket/data/{name}", ROW)
    found = {"train": ["memory:///bucket/data/a.jsonl", "memory:///bucket/data/b.jsonl"]}
    assert _paths(_resolve("memory://bucket/data/*.jsonl")) == found


@pytest.mark.parametrize("where", ["local", "remote"])
def test_a_glob_finds_what_is_hidden_or_special_only_where_it_says_so(
    tmp_path: Path, memory: MemoryFileSystem, where: str
) -> None:
    names = ["__a.jsonl", ".b.jsonl", "__c/d.jsonl", ".e/f.jsonl", "g/h.jsonl"]
    _write(tmp_path, *names)
    for name in names:
        memory.pipe(f"/data/{name}", ROW)
    root = str(tmp_path) if where == "local" else "memory://data"

    def found(pattern: str) -> list[str]:
        return [file.path.rpartition("/")[2] for file in _resolve(f"{root}/{pattern}").splits["train"]]

    assert found("**/*.jsonl") == ["__a.jsonl", "h.jsonl"]
    assert found("__c/*.jsonl") == ["d.jsonl"]
    assert found(".e/*.jsonl") == ["f.jsonl"]
    assert found(".*.jsonl") == [".b.jsonl"]


def test_an_address_without_a_file_is_an_error(memory: MemoryFileSystem) -> None:
    memory.pipe("/bucket/data/a.jsonl", ROW)
    for address in ("memory://bucket/data/none.jsonl", "memory://bucket/none/*.jsonl", "memory://bucket/none"):
        with pytest.raises(SourceError, match=r"no such file; check the address"):
            _resolve(address)


@pytest.mark.parametrize(
    ("asked", "address"), [("info", "memory://box/a.csv"), ("find", "memory://box"), ("glob", "memory://box/*.csv")]
)
def test_nothing_but_a_missing_file_is_missing(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, asked: str, address: str
) -> None:
    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    memory.pipe("/box/a.csv", b"text\na\n")
    monkeypatch.setattr(MemoryFileSystem, asked, deny)
    with pytest.raises(SourceError, match="cannot be read: Permission denied") as caught:
        _resolve(address)
    assert caught.value.remedy


def test_one_listing_tells_all_of_a_remote_folder(memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    find, info = MemoryFileSystem.find, MemoryFileSystem.info

    def listed(self: Any, path: str, **options: Any) -> Any:
        found = find(self, path, **options)
        return {name: {**one, "etag": name} for name, one in found.items()}

    def told(self: Any, path: str, **options: Any) -> Any:
        asked.append(path)
        return info(self, path, **options)

    for index in range(20):
        memory.pipe(f"/data/{index}.jsonl", ROW)
    found = _resolve_with(monkeypatch, listed, told)
    assert len(found.splits["train"]) == 20
    assert not [path for path in asked if path.endswith(".jsonl")]


def _resolve_with(monkeypatch: pytest.MonkeyPatch, find: Any, info: Any) -> SourceListing:
    monkeypatch.setattr(MemoryFileSystem, "find", find)
    monkeypatch.setattr(MemoryFileSystem, "info", info)
    return _resolve("memory://data")


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_neither_datasets_nor_beam_is_imported(tmp_path: Path, kind: str) -> None:
    if kind == "saved":
        datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path)
    elif kind == "parquet":
        pq.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet")
    else:
        _write(tmp_path, "a.jsonl")
        _write(tmp_path, "README.md", content=b"---\nlicense: mit\n---\n")
    program = (
        "import sys\n"
        "from pipelines.prepare.options.config import SourceConfig\n"
        "from pipelines.prepare.sources.splits.resolve import resolve\n"
        "assert resolve(SourceConfig(dataset=sys.argv[1])).splits\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=building.environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert not set(done.stdout.split()) & {"datasets", "transformers", "apache_beam", "huggingface_hub", "tensorflow"}


def test_code_beside_the_data_is_not_run(tmp_path: Path) -> None:
    _write(tmp_path, "data/train.jsonl")
    _write(tmp_path, "data/data.py", content=b"raise SystemExit('this code must not run')")
    assert list(_resolve(tmp_path / "data").splits) == ["train"]


def test_an_empty_split_of_binary_files_is_left_to_their_footers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
    with caplog.at_level(logging.WARNING):
        assert len(_resolve(tmp_path).splits["train"]) == 1
    assert not caplog.text
