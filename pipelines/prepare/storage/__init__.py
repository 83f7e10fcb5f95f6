"""The one module that speaks to storage: local folders and every fsspec scheme, behind paths that are plain strings.

    storage ──┬── local_storage               a temporary name, fsync, rename, fsync of the folder
              └── object_storage ── gcs_upload an object is there when all of it is, and found to be what was sent

Writes are atomic: a file appears whole or not at all. What may pass by itself (`persistence`) is tried again.

Every file system has errors of its own. What passes here is FileNotFoundError, from reading; the rest is explained
(`storage_errors`).
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, cast

from fsspec.implementations.local import LocalFileSystem

from pipelines.prepare.storage import local_storage, object_storage, storage_errors
from pipelines.prepare.storage.local_storage import PARTIAL
from pipelines.prepare.storage.storage_errors import explained
from tfrecord_io.errors import FormatError, SourceError

__all__ = [
    "MOST_BYTES",
    "PARTIAL",
    "delete",
    "exists",
    "explained",
    "file_system",
    "generations",
    "join",
    "list_files",
    "list_names",
    "local_path",
    "make_folder",
    "read_bytes",
    "read_folder",
    "read_many",
    "read_stream",
    "refuse_links",
    "size",
    "sizes",
    "source_explained",
    "sweep",
    "too_large",
    "write_atomic",
    "write_bytes",
]

# Of a file that is read at once: the plan of a million segments has 20 MB, the largest tokenizers have 40 MB.
MOST_BYTES = 256 << 20
# Small objects are a matter of round trips, of which a service takes many at once.
_READERS = 32


def join(root: str, *parts: str) -> str:
    """`root/part/part`, for local paths and URLs alike."""
    return posixpath.join(root.rstrip("/") or "/", *parts)


def file_system(path: str) -> tuple[Any, str]:
    """The fsspec file system of an address, and the path in it, for what this module has no function for.

    Raises: ConfigError if there is none.
    """
    return object_storage.open_fs(path)


def local_path(path: str) -> str | None:
    """The path for the operating system, or None if `path` is not on a local file system."""
    fs, inner = file_system(path)
    return str(inner) if isinstance(fs, LocalFileSystem) else None


def exists(path: str) -> bool:
    """Whether a file or folder is at `path`. Raises: OutputError."""
    fs, inner = file_system(path)
    if isinstance(fs, LocalFileSystem):
        return os.path.exists(inner)
    try:
        object_storage.info(fs, inner, path=path)
    except FileNotFoundError:
        return False
    return True


def size(path: str) -> int | None:
    """Bytes of the file at `path`, or None if there is none. Raises: OutputError."""
    fs, inner = file_system(path)
    try:
        return int(object_storage.info(fs, inner, path=path)["size"])
    except FileNotFoundError:
        return None


def sizes(folder: str) -> dict[str, int]:
    """Bytes of each file in `folder` by name, sorted, from one listing; none if there is no such folder.

    Half-written files never count. Raises: OutputError.
    """
    fs, inner = file_system(folder)
    try:
        if isinstance(fs, LocalFileSystem):
            with storage_errors.reading(folder):
                found = local_storage.sizes(inner)
        else:
            files = (entry for entry in object_storage.entries(fs, inner, path=folder) if entry["type"] == "file")
            found = {posixpath.basename(str(entry["name"])): int(entry["size"]) for entry in files}
    except FileNotFoundError:
        return {}
    return {name: found[name] for name in sorted(found) if not name.startswith(PARTIAL)}


def list_names(folder: str) -> list[str]:
    """Names in `folder`, sorted; empty if there is no such folder. Half-written files never count.

    Raises: OutputError, also if there is not even such a bucket.
    """
    fs, inner = file_system(folder)
    try:
        found = object_storage.entries(fs, inner, path=folder)
    except FileNotFoundError:
        return []
    names = (posixpath.basename(str(entry["name"]).rstrip("/")) for entry in found)
    return sorted(name for name in names if not name.startswith(PARTIAL))


def list_files(folder: str) -> list[str]:
    """Names of the files in `folder` and in the folders below it (`inner/file`), sorted, as `list_names` gives them.

    Raises: OutputError.
    """
    fs, inner = file_system(folder)
    try:
        found = object_storage.entries(fs, inner, path=folder)
    except FileNotFoundError:
        return []
    names: list[str] = []
    for entry in found:
        name = posixpath.basename(str(entry["name"]).rstrip("/"))
        # A link to a folder may lead back here: it stays a name, which cannot be read.
        if entry["type"] == "directory" and not entry.get("islink"):
            names += (f"{name}/{below}" for below in list_files(join(folder, name)))
        else:
            names.append(name)
    return sorted(name for name in names if not name.startswith(PARTIAL))


def read_bytes(path: str, *, most_bytes: int = MOST_BYTES) -> bytes:
    """The whole file. Raises: FileNotFoundError; FormatError if it has more than `most_bytes`; OutputError."""
    fs, inner = file_system(path)
    if isinstance(fs, LocalFileSystem):
        with read_stream(path) as stream, storage_errors.reading(path):
            if os.fstat(stream.fileno()).st_size > most_bytes:
                raise too_large(path, most_bytes=most_bytes)
            content = stream.read(most_bytes + 1)
    else:
        content = object_storage.read(fs, inner, path=path)
    if len(content) > most_bytes:
        raise too_large(path, most_bytes=most_bytes)
    return content


def too_large(path: str, *, most_bytes: int) -> FormatError:
    """The error of a file that is larger than it can be if it is what it is said to be."""
    return FormatError(
        f"{path}: more than {most_bytes:,} bytes, expected fewer of such a file",
        remedy="copy it again from where the dataset was made",
    )


def read_folder(folder: str) -> dict[str, bytes]:
    """The files in a folder and below it, by name (`inner/file`).

    Raises: FormatError if they are too large to be read at once; OutputError.
    """
    found: dict[str, bytes] = {}
    left = MOST_BYTES
    for name in list_files(folder):
        found[name] = read_bytes(join(folder, name), most_bytes=left)
        left -= len(found[name])
    return found


def read_many(paths: Sequence[str]) -> list[bytes | None]:
    """The whole of each file, None for one that is not there; many at a time where they are far away.

    Raises: OutputError.
    """
    if not paths or local_path(paths[0]) is not None:
        return [_content(path) for path in paths]
    with ThreadPoolExecutor(min(_READERS, len(paths))) as readers:
        return list(readers.map(_content, paths))


@contextlib.contextmanager
def read_stream(path: str) -> Iterator[BinaryIO]:
    """The file, to be read from the start. Raises: FileNotFoundError; OutputError."""
    fs, inner = file_system(path)
    if not isinstance(fs, LocalFileSystem):
        with object_storage.stream(fs, inner, path=path) as blocks:
            yield cast("BinaryIO", blocks)
        return
    with storage_errors.reading(path):
        descriptor = local_storage.open_file(inner)
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def generations(paths: Sequence[str]) -> dict[str, int]:
    """Which version of each object is there now, 0 for none: what `write_atomic` is told to replace, and nothing newer.
    Empty for storage that has no such numbers: only gs:// has. Raises: OutputError.
    """
    return object_storage.generations({path: file_system(path)[1] for path in paths})


def make_folder(folder: str) -> None:
    """Makes a local folder and those above it; elsewhere there is nothing to make. Raises: OutputError."""
    local = local_path(folder)
    if local is not None:
        with explained(folder):
            local_storage.make_folders(local)


def write_bytes(
    path: str, content: bytes, *, inside: str | None = None, make: bool = True, replacing: int | None = None
) -> None:
    """Writes a file atomically, with its folders; the options are those of `write_atomic`. Raises: OutputError."""
    write_atomic(path, [content], inside=inside, make=make, replacing=replacing)


def write_atomic(
    path: str, chunks: Iterable[Any], *, inside: str | None = None, make: bool = True, replacing: int | None = None
) -> None:
    """Writes buffers to a file that appears whole or not at all. Of its folders only those below `inside` are made, if
    that is given, and none without `make`: a local folder that was deleted in the middle of a job does not come back
    with half of its content. Nor are links followed below `inside`, here and in the functions below.

    On gs:// nothing is replaced but the version `replacing` (see `generations`), if that is given; an object that has
    the very content that is to be written counts as written. Elsewhere whoever comes last replaces what is there.

    Raises: OutputError, also if another version is there; whatever `chunks` raises passes.
    """
    fs, inner = file_system(path)
    if isinstance(fs, LocalFileSystem):
        local_storage.write(inner, chunks, inside=_local(inside), make=make)
    else:
        object_storage.write(fs, inner, chunks, path=path, replacing=replacing)


def delete(path: str, *, inside: str | None = None) -> None:
    """Deletes a file or folder with all that is in it, if it is there; of a link the link. Raises: OutputError."""
    fs, inner = file_system(path)
    if isinstance(fs, LocalFileSystem):
        with explained(path):
            local_storage.delete(inner.rstrip("/"), inside=_local(inside))
    else:
        object_storage.delete(fs, inner, path=path)


def sweep(folder: str, *, inside: str | None = None, below: bool = False) -> None:
    """Deletes the temporary files that killed processes left in `folder`, and `below` it too. Raises: OutputError."""
    local = local_path(folder)
    if local is not None:
        with explained(folder):
            local_storage.sweep(local, inside=_local(inside), below=below)


def refuse_links(root: str, *, is_own: Callable[[str], bool], folders: Collection[str]) -> None:
    """Raises: OutputError if what `is_own` in a local folder is a link, or there is one below its `folders`."""
    local = local_path(root)
    if local is not None:
        with storage_errors.reading(root):
            link = local_storage.find_link(local, is_own=is_own, folders=folders)
        if link is not None:
            raise local_storage.link_refused(link)


@contextlib.contextmanager
def source_explained(path: str) -> Iterator[None]:
    """Around reading the user's own data from `path`. Raises: FileNotFoundError; SourceError for the rest."""
    with object_storage.reading(path, SourceError):
        yield


def _local(inside: str | None) -> str | None:
    return None if inside is None else local_path(inside)


def _content(path: str) -> bytes | None:
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return None
