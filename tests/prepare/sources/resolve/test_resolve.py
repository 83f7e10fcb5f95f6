"""Every name of a dataset leads to its files, in the order in which `datasets` reads them."""

import bz2
import gzip
import inspect
import io
import json
import logging
import lzma
import os
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import datasets
import fsspec
import pytest
import xxhash
from backports import zstd
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.resolve import data_files
from pipelines.prepare.sources.resolve.data_files import DataFile, stamp_of
from pipelines.prepare.sources.resolve.library import SourceListing
from pipelines.prepare.sources.resolve.resolve import resolve
from tfrecord_io.errors import ConfigError, SourceError

TEXTS = [f"row {index} é" for index in range(30)]
ROW = b'{"text": "a"}\n'


def _resolve(dataset: Path | str, *more: Path | str, **options: Any) -> SourceListing:
    return resolve(SourceConfig(dataset=str(dataset), more_paths=tuple(map(str, more)), **options))


def _paths(listing: SourceListing, folder: Path | None = None) -> dict[str, list[str]]:
    return {
        split: [os.path.relpath(file.path, folder) if folder else file.path for file in files]
        for split, files in listing.splits.items()
    }


def _write(folder: Path, *names: str, content: bytes = ROW) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("other", ["./a.jsonl", "../here/a.jsonl", "{}/a.jsonl", "*.jsonl", ".", "file://{}/a.jsonl"])
def test_a_file_named_in_two_ways_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    here = _write(tmp_path / "here", "a.jsonl")
    monkeypatch.chdir(here)
    assert _paths(_resolve("a.jsonl", other.format(here)), here) == {"train": ["a.jsonl"]}


def test_a_folder_is_searched_in_depth_without_hidden_files_and_metadata(tmp_path: Path) -> None:
    _write(tmp_path, "a/b/train.jsonl", "a/test.jsonl", ".cache/train.jsonl", "a/.train.jsonl", "__x/train.jsonl")
    _write(tmp_path, "a/dataset_info.json", "README.md", "metadata.json", content=b"{}")
    assert _paths(_resolve(tmp_path), tmp_path) == {"train": ["a/b/train.jsonl"], "test": ["a/test.jsonl"]}


def test_a_folder_is_listed_once_for_all_patterns_of_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, "a/train.jsonl", "a/test.jsonl")
    listed, ls = list[str](), LocalFileSystem.ls

    def noted(self: LocalFileSystem, path: str, **options: Any) -> Any:
        listed.append(os.fspath(path).rstrip("/"))
        return ls(self, path, **options)

    monkeypatch.setattr(LocalFileSystem, "ls", noted)
    _resolve(tmp_path)
    assert listed.count(f"{tmp_path}/a") < 10, "`datasets` has 66 patterns of names"
    assert fsspec.get_filesystem_class("file") is LocalFileSystem


@pytest.mark.parametrize("where", ["local", "remote"])
def test_an_output_below_the_source_is_no_part_of_it(tmp_path: Path, memory: MemoryFileSystem, where: str) -> None:
    names = ["train.jsonl", "out/.prep/lock", "out/features.json", "out/rejected/a.jsonl", "out/x.tfrecord"]
    for name in names:
        memory.pipe(f"/data/{name}", ROW)
    _write(tmp_path / "data", *names)
    listing = _resolve(tmp_path / "data" if where == "local" else "memory://data")
    assert [file.name for files in listing.splits.values() for file in files] == ["train.jsonl"]


def test_a_folder_behind_a_link_has_no_unused_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`datasets` names the files by the path after following the link."""
    _write(tmp_path / "data", "a.jsonl")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with caplog.at_level(logging.WARNING, logger="pipelines"):
        assert list(_resolve(tmp_path / "link").splits) == ["train"]
    assert not caplog.text


def _archive(path: Path, *names: str) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as packed:
            for name in names:
                packed.writestr(name, ROW)
        return
    with tarfile.open(path, "w") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(ROW)
            tar.addfile(entry, io.BytesIO(ROW))


@pytest.mark.parametrize(
    ("name", "members", "words"),
    [
        ("data.zip", ["test.jsonl", "train.jsonl"], "data.zip holds test.jsonl, train.jsonl, all in train; unpack"),
        ("data.tar", ["x/train.jsonl", "x/dev.jsonl"], "holds x/dev.jsonl, x/train.jsonl, all in train; unpack"),
        ("train-and-test.zip", ["train.jsonl", "test.jsonl"], "test.jsonl, train.jsonl, all in train and in test"),
        (
            "train-or-test.zip",
            ["a.jsonl"],
            "train-or-test.zip are in train and in test, because of the file's name; rename",
        ),
        ("data.zip", ["a.jsonl", "b.jsonl"], ""),
    ],
)
def test_an_archive_of_several_splits_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, members: list[str], words: str
) -> None:
    """`datasets` takes the split from the name of the archive."""
    _archive(tmp_path / name, *members)
    with caplog.at_level(logging.WARNING, logger="pipelines"):
        _resolve(tmp_path / name, format="json")
    assert words in caplog.text
    assert bool(words) == bool(caplog.text)


@pytest.mark.parametrize("suffix", ["txt", "md"])
def test_lines_of_several_text_files_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str) -> None:
    _write(tmp_path, f"a.{suffix}", f"b.{suffix}", content=b"one\ntwo\n")
    with caplog.at_level(logging.WARNING, logger="pipelines"):
        _resolve(tmp_path, format="text", sample_by="document")
        assert not caplog.text
        _resolve(tmp_path, format="text")
    assert "each line of 2 text files becomes a row; add --sample-by document for one row per file" in caplog.text


def test_folders_that_look_like_values_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither `datasets` nor we turn them into splits or columns."""
    _write(tmp_path / "lang=en", "split=train/a.jsonl", "split=test/a.jsonl")
    with caplog.at_level(logging.WARNING, logger="pipelines"):
        files = ("train=split=train/*", "test=split=test/*")
        assert [*_resolve(tmp_path / "lang=en", data_files=files).splits] == ["train", "test"]
        assert not caplog.text
        assert len(_paths(_resolve(tmp_path / "lang=en"))["train"]) == 2
    message = "lang=en: the folders split=test, split=train become neither splits nor a column; add --data-files SPLIT="
    assert message in caplog.text


@pytest.mark.parametrize(
    "names", [[".notes.jsonl"], [".a/notes.jsonl", "b.jsonl"], ["__a/notes.jsonl", "b.jsonl"], ["..a.jsonl", "b.jsonl"]]
)
def test_hidden_files_that_the_user_names_are_read(tmp_path: Path, names: list[str]) -> None:
    _write(tmp_path, *names)
    assert _paths(_resolve(*(tmp_path / name for name in names)), tmp_path) == {"train": names}
    assert _paths(_resolve(*(tmp_path / name for name in names), format="json"), tmp_path) == {"train": names}


GZIP = gzip.compress(ROW, mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "end"),
    [
        *((f"a.{form}", GZIP, ".gz") for form in ("jsonl", "json", "csv", "tsv", "txt")),
        *(("a.jsonl", content, end) for content, end in ((bz2.compress(ROW), ".bz2"), (zstd.compress(ROW), ".zst"))),
        ("a.jsonl", lzma.compress(ROW), ".xz"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_compressed_files_with_another_name_are_refused(tmp_path: Path, name: str, content: bytes, end: str) -> None:
    _write(tmp_path, name, content=content)
    with pytest.raises(SourceError, match=f"{name}: compressed, but its name does not end in {end}; add {end} to"):
        _resolve(tmp_path)


def test_names_that_datasets_reads_otherwise_are_refused(tmp_path: Path, memory: MemoryFileSystem) -> None:
    _write(tmp_path / "a::b", "a.jsonl")
    (tmp_path / "link").symlink_to(tmp_path / "a::b")
    for name in ("a::b", "a::b/a.jsonl", "link"):
        with pytest.raises(
            SourceError, match="its name has '::', which joins addresses in `datasets`; rename this file or folder"
        ):
            _resolve(tmp_path / name)
    memory.pipe("/b//x/a.jsonl", ROW)
    with pytest.raises(
        SourceError, match="'//' in its name, which `datasets` reads as '/'; copy the file to a name without '//'"
    ):
        _resolve("memory://b//x")


def test_an_output_is_no_source_itself(tmp_path: Path) -> None:
    _write(tmp_path, "manifest.json", "features.json", ".prep/lock")
    with pytest.raises(SourceError, match=r"the output of a build, .*; name the files to build the dataset from"):
        _resolve(tmp_path)


@pytest.mark.parametrize("name", ["missing.jsonl", "missing/*.csv", "missing/folder/of/data"])
@pytest.mark.parametrize("root", ["{}", ".", "memory://bucket"])
def test_a_path_that_is_not_there_is_a_clear_error(tmp_path: Path, memory: Any, root: str, name: str) -> None:
    memory.pipe("/bucket/data/a.jsonl", ROW)
    with pytest.raises(SourceError, match=r"no such file or folder; check the path"):
        _resolve(f"{root.format(tmp_path)}/{name}")


def test_several_paths_are_one_dataset(tmp_path: Path) -> None:
    """As after a glob in the shell. The splits equal those from the same files in a folder."""
    names = ["b/train.jsonl", "b/test.jsonl", "a/train.jsonl"]
    _write(tmp_path, *names)
    listing = _resolve(*(tmp_path / name for name in names))
    assert _paths(listing, tmp_path) == {"train": ["a/train.jsonl", "b/train.jsonl"], "test": ["b/test.jsonl"]}
    assert listing.identity == _resolve(tmp_path / "*/*.jsonl").identity == _resolve(tmp_path).identity
    assert str(tmp_path) not in json.dumps(listing.identity)


@pytest.mark.parametrize("reader", ["json", "csv", "parquet", "text", "arrow", "imagefolder"])
def test_the_name_of_a_reader_is_no_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    """`datasets` would read all files in the current folder."""
    monkeypatch.chdir(_write(tmp_path, "train.jsonl"))
    with pytest.raises(SourceError, match=rf"'{reader}' is the name of a reader of `datasets`.* such as 'data/\*\."):
        _resolve(reader)
    _write(tmp_path, f"{reader}/a.jsonl")
    assert _paths(_resolve(reader), tmp_path) == {"train": [f"{reader}/a.jsonl"]}, "a folder of that name is the folder"


def test_a_misspelt_path_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    _write(tmp_path, "reviews/train.jsonl")
    with pytest.raises(SourceError, match="/reveiws: no such file or folder") as caught:
        _resolve(tmp_path / "reveiws")
    assert caught.value.remedy == f"did you mean {tmp_path / 'reviews'}?"


def test_several_names_are_files(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="imdb: no such file; several datasets can be given only as files"):
        _resolve(_write(tmp_path, "a.jsonl") / "a.jsonl", "imdb")
    with pytest.raises(SourceError, match="an address on the Hub cannot be combined with other paths"):
        _resolve(tmp_path / "a.jsonl", "hf://datasets/me/data/a.jsonl")


@pytest.mark.parametrize(
    ("option", "cause"),
    [
        ({"config": "en"}, "BuilderConfig 'en' not found.*another --config|--config chooses"),
        ({"revision": "main"}, "--revision is for datasets on the Hub.*leave --revision out"),
    ],
)
@pytest.mark.parametrize("named", ["folder", "saved", "file"])
def test_options_that_choose_nothing_are_errors(tmp_path: Path, option: dict[str, str], cause: str, named: str) -> None:
    if named == "saved":
        datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "data")
    else:
        _write(tmp_path, "data/a.jsonl")
    with pytest.raises(SourceError, match=cause):
        _resolve(tmp_path / ("data/a.jsonl" if named == "file" else "data"), **option)


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


@pytest.mark.parametrize("where", ["local", "remote"])
def test_a_glob_finds_hidden_files_only_where_it_says_so(tmp_path: Path, memory: MemoryFileSystem, where: str) -> None:
    names = ["__a.jsonl", ".b.jsonl", "__c/d.jsonl", ".e/f.jsonl", "g/h.jsonl"]
    _write(tmp_path, *names)
    for name in names:
        memory.pipe(f"/data/{name}", ROW)
    root = str(tmp_path) if where == "local" else "memory://data"

    def names_of(pattern: str) -> list[str]:
        return [file.path.rpartition("/")[2] for file in _resolve(f"{root}/{pattern}").splits["train"]]

    assert names_of("**/*.jsonl") == ["__a.jsonl", "h.jsonl"]
    assert names_of("__c/*.jsonl") == ["d.jsonl"]
    assert names_of(".e/*.jsonl") == ["f.jsonl"]


def test_code_beside_the_data_is_not_run(tmp_path: Path) -> None:
    _write(tmp_path, "data/train.jsonl")
    _write(tmp_path, "data/data.py", content=b"raise SystemExit('this code must not run')")
    with pytest.raises(SourceError, match="Dataset scripts are no longer supported"):
        _resolve(tmp_path / "data")
    assert list(_resolve(tmp_path / "data/*.jsonl").splits) == ["train"]


@pytest.mark.parametrize("names", [["a.jsonl", "b.jsonl", "c.csv"], ["train.jsonl", "test.jsonl", "more.jsonl"]])
def test_what_datasets_leaves_out_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture, names: list[str]) -> None:
    _write(tmp_path, *names, "notes.md", "README.md")
    listing = _resolve(tmp_path)
    assert sorted(path for some in _paths(listing, tmp_path).values() for path in some) == sorted(names[:2])
    assert f"{tmp_path}: not used: {names[2]}, notes.md" in caplog.text


def test_a_file_in_capitals_that_is_taken_for_training_is_named(tmp_path: Path, caplog: Any) -> None:
    assert list(_resolve(_write(tmp_path, "TRAIN.jsonl", "TEST.jsonl")).splits) == ["train"]
    assert "TEST.jsonl is in split train" in caplog.text


@pytest.mark.parametrize("name", ["data", "da[t]a", "with an output", "two", "glob"])
def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    _write(tmp_path, f"{name}/a.jsonl", "elsewhere/secret.jsonl", "more/c.jsonl")
    if name == "with an output":
        _write(tmp_path / name, "out/.prep/x/job.json")
    (tmp_path / name / "b.jsonl").symlink_to(tmp_path / "elsewhere/secret.jsonl")
    with pytest.raises(SourceError, match=r"its card or a link leads to .*b\.jsonl, expected only files inside"):
        _resolve(tmp_path / name / ("*.jsonl" if name == "glob" else ""), *[tmp_path / "more"] * (name == "two"))


def test_a_link_that_the_user_names_is_followed(tmp_path: Path) -> None:
    _write(tmp_path, "elsewhere/a.jsonl", "data/b.jsonl")
    (tmp_path / "data/a.jsonl").symlink_to(tmp_path / "elsewhere/a.jsonl")
    assert _paths(_resolve(tmp_path / "data/a.jsonl"), tmp_path) == {"train": ["data/a.jsonl"]}


def test_data_files_say_the_splits(tmp_path: Path) -> None:
    _write(tmp_path, "x/a.jsonl", "x/b.jsonl", "y/c.jsonl")
    listing = _resolve(tmp_path, data_files=("x/*.jsonl", "held=y/*"))
    assert _paths(listing, tmp_path) == {"train": ["x/a.jsonl", "x/b.jsonl"], "held": ["y/c.jsonl"]}
    assert listing.identity["data_files"] == ["x/*.jsonl", "held=y/*"]


def test_a_format_reads_files_of_any_name(tmp_path: Path) -> None:
    _write(tmp_path, "a.log", "notes.md")
    listing = _resolve(tmp_path, format="text", sample_by="document")
    assert (listing.kind, _paths(listing, tmp_path)) == ("text", {"train": ["a.log", "notes.md"]})


def test_nothing_of_the_users_settings_of_datasets_is_changed(tmp_path: Path) -> None:
    before = (datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled(), dict(vars(datasets.config)))
    _resolve(_write(tmp_path, "a.jsonl"))
    after = (datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled(), dict(vars(datasets.config)))
    assert after == before


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("a.md", {}, r"Markdown files.*add --format text --sample-by document"),
        (
            "a.jsonl",
            {"data_files": ("b.jsonl",)},
            r"Unable to find '[^']*/b\.jsonl'\); name the files with --data-files",
        ),
        ("a.jsonl", {"source_options": ("fild=data",)}, r"its reader does not accept these options .*: fild"),
        # `datasets` would look for it on the Hub.
        ("a.jsonl", {"format": "jsno"}, r"--format jsno: no such reader.*did you mean 'json'\?"),
        ("a.jsonl", {"format": "sql"}, r"--format sql: no such reader.*text reads lines"),
    ],
)
def test_what_no_reader_can_make_sense_of_is_refused_with_a_remedy(
    tmp_path: Path, name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises((ConfigError, SourceError), match=words):
        _resolve(_write(tmp_path, name), **options)


LIBRARY = [name for name in inspect.signature(datasets.load_dataset_builder).parameters if name != "config_kwargs"]


@pytest.mark.parametrize(
    "option", [*(f"{name}=x" for name in LIBRARY if name != "data_dir"), "password=x", "api_key=x"]
)
def test_an_option_that_names_a_place_or_a_secret_is_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(ConfigError, match="expected an option of the reader without credentials or places"):
        _resolve(_write(tmp_path, "a.jsonl"), source_options=(option,))


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("token=hf_notforyou12345678", "set HF_TOKEN in the environment"),
        ('storage_options={"password": "hush"}', "set FSSPEC_S3_PASSWORD in the environment instead"),
        ('catalog={"uri": "https://me:hush@host/x"}', "leave it out"),
    ],
)
def test_the_remedy_for_a_secret_names_the_environment_and_shows_nothing(option: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _resolve("s3://bucket/a.csv", source_options=(option,))
    assert remedy in caught.value.remedy
    assert not {"hush", "notforyou"} & set(re.findall(r"\w+", str(caught.value)))


# Identity of a file's content, in any place.


def test_a_local_file_is_known_by_all_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 5_000_000)
    (data,) = data_files.identify([data_files.describe(str(path), name="a.txt")])
    digest = xxhash.xxh3_128(path.read_bytes()).hexdigest()
    assert data.entry == {"name": "a.txt", "bytes": 5_000_000, "xxh3": digest}
    assert (data.version, data.size) == (f"xxh3:{digest}", 5_000_000)
    assert data.stamp == stamp_of(path.stat())


def test_a_local_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"before")
    described = data_files.describe(str(path), name="a.txt")
    path.write_bytes(b"longer than before")
    with pytest.raises(SourceError, match=r"a\.txt: changed while it was read"):
        data_files.identify([described])


def test_a_remote_file_is_known_by_its_bytes_if_its_service_has_no_mark(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/digests/7", b"x" * 7)
    (tmp_path / "7").write_bytes(b"x" * 7)
    files = [DataFile(path="memory://digests/7", name="7", size=7), data_files.describe(str(tmp_path / "7"), name="7")]
    there, here = data_files.identify(files)
    assert there.entry == here.entry


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (PermissionError("denied"), "cannot be read: denied"),
        (FileNotFoundError("gone"), "existed when the files were listed, but no longer exists"),
    ],
)
def test_errors_of_a_service_have_a_remedy(monkeypatch: pytest.MonkeyPatch, error: Exception, cause: str) -> None:
    def info(self: Any, path: str, **options: Any) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "info", info)
    with pytest.raises(SourceError, match=f"memory://digests/0: .*{cause}") as caught:
        data_files.identify([DataFile(path="memory://digests/0", name="0", size=1)])
    assert caught.value.remedy
