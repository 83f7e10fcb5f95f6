"""Files appear whole or not at all, and errors of the file system are explained."""

import errno
import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import fsspec
import pytest

from pipelines.prepare import storage
from pipelines.prepare.options.addresses import ADDRESS
from tests.support import seams
from tfrecord_io.errors import ConfigError, OutputError


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder that does not exist yet, on a local disk and behind an fsspec scheme."""
    if request.param == "local":
        yield str(tmp_path / "root")
        return
    yield "memory://storage-test"
    fsspec.filesystem("memory").store.clear()


def broken(chunk: bytes, error: type[BaseException] = ArithmeticError) -> Iterator[bytes]:
    yield chunk
    raise error("while making the second chunk")


@pytest.mark.parametrize("parts", [("a", "b.json"), ("b",), ()])
def test_join_puts_one_slash_between_parts(parts: tuple[str, ...]) -> None:
    for folder in ("gs://bucket/out", "/data/out", "out"):
        assert storage.join(folder + "/", *parts) == storage.join(folder, *parts) == "/".join([folder, *parts])


@pytest.mark.parametrize(
    ("path", "local"),
    [
        *(("/data/out/", "/data/out"), ("/data/../out", "/data/../out"), ("file:///data/out", "/data/out")),
        *(("out", "/here/out"), ("./out/", "/here/out"), (".//data", "/here/data"), ("a/.//b", "/here/a/b")),
        *(("file://.//data", "/here/data"), ("local:///data/out", "/data/out"), (".", "/here"), ("/", "/")),
        *(("~/out", "/home/me/out"), ("a*[b]?c", "/here/a*[b]?c")),
        *((f"{scheme}://bucket/out", None) for scheme in ("gs", "s3", "simplecache::gs")),
    ],
)
def test_a_local_path_is_known_by_its_form(path: str, local: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(os, "getcwd", lambda: "/here")
    assert storage.local_path(path) == local


def test_what_is_written_is_read(root: str) -> None:
    path = storage.join(root, "deep", "file")
    storage.write_atomic(path, [b"ab", memoryview(b"cd"), b""])
    assert storage.read_bytes(path) == b"abcd"
    assert storage.size(path) == 4
    assert storage.exists(path)
    assert storage.exists(storage.join(root, "deep"))
    with storage.read_stream(path) as stream:
        assert (stream.read(1), stream.read()) == (b"a", b"bcd")


def test_a_folder_is_listed_by_names_by_sizes_and_with_the_folders_below(root: str) -> None:
    for name in ("b", "a/inner", "a/deep/c", "c"):
        storage.write_bytes(storage.join(root, name), b"x" * ord(name[0]))
    assert storage.list_names(root) == storage.list_names(root + "/") == ["a", "b", "c"]
    assert sorted(storage.read_folder(root)) == ["a/deep/c", "a/inner", "b", "c"]
    assert storage.sizes(root) == {"b": 98, "c": 99}
    for name in ("nothing", "b"):
        path = storage.join(root, name)
        assert (storage.list_names(path), storage.read_folder(path), storage.sizes(path)) == ([], {}, {})


def test_what_is_not_there_has_no_size(root: str) -> None:
    path = storage.join(root, "nothing")
    assert storage.size(path) is None
    assert not storage.exists(path)
    with pytest.raises(FileNotFoundError):
        storage.read_bytes(path)
    with pytest.raises(FileNotFoundError), storage.read_stream(path):
        pass


def test_many_files_are_read_in_the_order_asked_for(root: str) -> None:
    paths = [storage.join(root, str(number)) for number in range(40)]
    for number in range(0, 40, 2):
        storage.write_bytes(paths[number], str(number).encode())
    assert storage.read_many(paths) == [None if number % 2 else str(number).encode() for number in range(40)]
    assert storage.read_many([]) == []


def test_what_is_longer_than_a_block_is_read_in_any_steps(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, block_bytes=1000)
    content = bytes(number % 251 for number in range(10_500))
    path = storage.join(root, "file")
    storage.write_atomic(path, [content[:1], content[1:4000], content[4000:]])
    for step in (1, 999, 1000, 1001, 20_000):
        with storage.read_stream(path) as stream:
            assert b"".join(iter(functools.partial(stream.read, step), b"")) == content


def test_delete_takes_files_and_whole_folders_and_nothing_else(root: str) -> None:
    for name in ("file", "folder/inner", "kept"):
        storage.write_bytes(storage.join(root, name), b"x")
    for name in ("file", "folder", "never there"):
        storage.delete(storage.join(root, name))
    assert storage.list_names(root) == ["kept"]


def test_delete_takes_no_name_for_a_pattern(root: str) -> None:
    for name in ("a*", "ab", "[a]b/inner", "?b"):
        storage.write_bytes(storage.join(root, name), b"x")
    for name in ("a*", "[a]b", "?b"):
        storage.delete(storage.join(root, name))
    assert list(storage.sizes(root)) == ["ab"]


@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt])
def test_an_error_in_the_chunks_leaves_the_file_that_was_there_alone(
    tmp_path: Path, error: type[BaseException]
) -> None:
    (tmp_path / "file").write_bytes(b"before")
    with pytest.raises(error):
        storage.write_atomic(str(tmp_path / "file"), broken(b"after", error))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"before"}


def test_the_temporary_files_of_killed_processes_are_swept_away(tmp_path: Path) -> None:
    for name in (f"{storage.PARTIAL}0-shard", f"{storage.PARTIAL}1-manifest.json", "shard", f"mine{storage.PARTIAL}0"):
        (tmp_path / name).write_bytes(b"x")
    storage.sweep(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"mine{storage.PARTIAL}0", "shard"]


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    contents = [bytes([65 + number]) * 300_000 for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(functools.partial(storage.write_bytes, str(tmp_path / "file")), contents))
    assert (tmp_path / "file").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("number", "cause", "remedy"),
    [
        (errno.ENOSPC, "No space left on device", "free some space"),
        (errno.EDQUOT, "quota exceeded", "free some space or quota"),
        (errno.EIO, "Input/output error", "run the same command again"),
    ],
)
def test_what_a_disk_refuses_is_explained(tmp_path: Path, number: int, cause: str, remedy: str) -> None:
    path = tmp_path / "file"
    failing = mock.patch.object(os, "fsync", side_effect=OSError(number, os.strerror(number)))
    with failing, pytest.raises(OutputError) as caught:
        storage.write_bytes(str(path), b"x")
    assert caught.value.cause.startswith(f"{path}: cannot be written: ")
    assert cause.lower() in caught.value.cause.lower()
    assert remedy in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["file/inner", "file/deeper/inner"])
def test_a_path_below_a_file_is_explained(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot be written: Not a directory; choose an --output that is a folder"):
        storage.write_bytes(str(tmp_path / path), b"x")


def test_a_name_that_is_too_long_is_explained(tmp_path: Path) -> None:
    folder = str(tmp_path / ("x" * 300))
    for use in (storage.list_names, lambda path: storage.write_bytes(path, b"x")):
        with pytest.raises(OutputError, match="name too long") as caught:
            use(folder)
        assert "shorter" in caught.value.remedy


@pytest.mark.parametrize("address", ["nothing://bucket/out", "dask://x/y"])
def test_an_address_that_nothing_can_open_is_a_wrong_option(address: str) -> None:
    for use in (storage.list_names, storage.read_bytes, storage.size):
        with pytest.raises(ConfigError, match="cannot be opened") as caught:
            use(address)
        assert caught.value.remedy == f"give a local folder or a {ADDRESS} address"


@pytest.mark.parametrize(
    "operation", ["cat_file", "info", "ls", "open", "open.return_value.write", "open.return_value.close"]
)
def test_an_error_of_a_remote_file_system_is_explained(operation: str) -> None:
    class HttpError(Exception):
        """Remote file systems raise their own exceptions."""

    fs = mock.Mock(**{f"{operation}.side_effect": HttpError("403: forbidden")})
    uses: dict[str, Callable[[str], object]] = {
        "cat_file": storage.read_bytes,
        "info": storage.size,
        "ls": storage.list_names,
    }
    with (
        mock.patch("fsspec.core.url_to_fs", return_value=(fs, "bucket/file")),
        pytest.raises(OutputError, match=r"other://bucket/file: cannot be (read|written): 403: forbidden"),
    ):
        uses.get(operation, lambda path: storage.write_bytes(path, b"x"))("other://bucket/file")
