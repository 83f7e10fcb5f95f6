"""Listing the files below a folder, local or remote: names, sizes, and what the storage service says of their content.

    local       os.walk, without following links to folders
    remote      one recursive listing by the file system of the address
    hub         `hub.repository`

Hidden files, files in hidden or special folders (`.git`, `__pycache__`) and the outputs of builds below the folder are
left out.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.sources.files.data_files import version_of
from pipelines.prepare.storage.persistence import retry_transient
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = [
    "FolderListing",
    "ListedFile",
    "list_local",
    "list_remote",
    "local_file",
    "remote_file",
    "visible",
    "without_duplicate_links",
]

# A build has this folder in its output from the beginning.
_WORK_FOLDER = ".prep"
# Keys by which storage services identify content. Digests come first: they depend on the content alone.
_CONTENT_TAGS = ("md5Hash", "crc32c", "etag", "ETag", "generation")
_MOST_CARD_BYTES = 16 << 20

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedFile:
    """A file as a listing describes it, before it is read.

    `path` and `stamp` are as in `DataFile`; `name` is the path below the folder, or the file name. `tag` and `version`
    identify the content, empty if the service reports neither. The address of a `pinned` file identifies its content.
    """

    path: str
    name: str
    size: int
    tag: str = ""
    version: str = ""
    stamp: int | None = None
    pinned: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderListing:
    """The files of a folder by name, sorted. `shown` is the folder in messages; `fetch` reads a small file."""

    shown: str
    files: Mapping[str, ListedFile]
    fetch: Callable[[ListedFile], bytes]

    def read(self, name: str) -> bytes | None:
        """Read a small file; None if it does not exist. Raises: SourceError if it is large, or cannot be read."""
        if (file := self.files.get(name)) is None:
            return None
        if file.size > _MOST_CARD_BYTES:
            raise SourceError(
                f"{without_access(file.path)}: {file.size:,} bytes, expected fewer than {_MOST_CARD_BYTES:,}",
                remedy="leave it out, or name the data files by a glob",
            )
        return self.fetch(file)


def list_local(folder: str) -> FolderListing:
    """List a folder of this machine. Raises: SourceError if it cannot be listed, or is the output of a build."""
    root = os.path.abspath(folder)
    names: list[str] = []
    with storage.as_source_error(folder):
        walk = ((os.path.relpath(path, root), folders, files) for path, folders, files in os.walk(root, onerror=_fail))
        for below, files in _source_files(walk, shown=folder):
            names += (posixpath.join(below, name) for name in files)
        paths = {name: os.path.join(root, name) for name in sorted(map(posixpath.normpath, names))}
        found = [local_file(path, name=name) for name, path in paths.items() if os.path.isfile(path)]
    return FolderListing(
        shown=folder, files={each.name: each for each in without_duplicate_links(found)}, fetch=_content
    )


def local_file(path: str, *, name: str) -> ListedFile:
    """Describe a file of this machine."""
    status = os.stat(path)
    return ListedFile(path=path, name=name, size=status.st_size, stamp=status.st_mtime_ns)


def list_remote(address: str) -> FolderListing | None:
    """List a remote folder recursively; None if there is no such folder. Raises: SourceError."""
    fs, inner = storage.file_system(address)
    root = str(inner).rstrip("/")
    with storage.as_source_error(address):
        try:
            listed: Mapping[str, Mapping[str, Any]] = retry_transient(lambda: fs.find(root, detail=True), path=address)
        except FileNotFoundError:
            return None
    infos = {
        path[len(root) :].lstrip("/"): (path, info)
        for path, info in listed.items()
        if info["type"] == "file" and path.startswith(f"{root}/") and not path.endswith("/")
    }
    if not infos:
        return None
    files = {
        name: remote_file(str(fs.unstrip_protocol(path)), info, name=name)
        for name, (path, info) in visible(infos, shown=without_access(address)).items()
    }
    return FolderListing(shown=without_access(address), files=files, fetch=_content)


def visible(files: Mapping[str, Any], *, shown: str) -> dict[str, Any]:
    """Return the `files` of a folder, by path below it, without hidden files and outputs of builds; sorted."""
    walk = _source_files(_walk(files), shown=shown)
    return {name: files[name] for name in sorted(posixpath.join(below, name) for below, some in walk for name in some)}


def remote_file(address: str, info: Mapping[str, Any], *, name: str) -> ListedFile:
    """Describe a remote file from the `info` of its file system."""
    return ListedFile(
        path=address,
        name=name,
        size=int(info.get("size") or 0),
        tag=next((str(info[key]) for key in _CONTENT_TAGS if info.get(key)), ""),
        version=version_of(info),
    )


def without_duplicate_links(files: Sequence[ListedFile]) -> list[ListedFile]:
    """Return the files without links to others of them, whose rows would be read twice."""
    links = [each for each in files if "://" not in each.path and os.path.islink(each.path)]
    if not links:
        return list(files)
    real = {os.path.realpath(each.path) for each in files if each not in links}
    duplicates = {each.path for each in links if os.path.realpath(each.path) in real}
    for path in sorted(duplicates):
        _log.warning("%s: left out, a link to another file of the source", path)
    return [each for each in files if each.path not in duplicates]


def _content(file: ListedFile) -> bytes:
    with storage.as_source_error(file.path):
        if "://" not in file.path:
            with open(file.path, "rb") as stream:
                return stream.read(_MOST_CARD_BYTES)
        fs, inner = storage.file_system(file.path)
        content: bytes = retry_transient(lambda: fs.cat_file(inner), path=file.path)
        return content


def _fail(error: OSError) -> None:
    raise error


def _source_files(walk: Iterable[tuple[str, list[str], list[str]]], *, shown: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder of a top-down walk with its visible files, and prune hidden folders and outputs of builds.

    With an --output below the source, the same command would otherwise find other files each time.
    """
    for folder, subfolders, names in walk:
        is_top = folder in ("", ".")
        is_output = "manifest.json" in names and any(".tfrecord" in name for name in names)
        if is_output and is_top:
            raise SourceError(
                f"{shown}: the output of a build, expected source files",
                remedy="name the files that the dataset is to be made from",
            )
        if not is_top and (is_output or _WORK_FOLDER in subfolders):
            subfolders.clear()
            continue
        subfolders[:] = [name for name in subfolders if not name.startswith((".", "__"))]
        # `datasets` reads one hidden file.
        yield folder, [name for name in names if not name.startswith(".") or (is_top and name == ".huggingface.yaml")]


def _walk(names: Iterable[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield what `os.walk` would, for files with these paths below a folder."""
    folders: dict[str, set[str]] = {"": set()}
    files: dict[str, list[str]] = {}
    for name in names:
        folder, _, last = name.rpartition("/")
        files.setdefault(folder, []).append(last)
        while folder and folder not in folders.setdefault(posixpath.dirname(folder), set()):
            folders[posixpath.dirname(folder)].add(folder)
            folder = posixpath.dirname(folder)
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        below = sorted(posixpath.basename(path) for path in folders.get(folder, ()))
        yield folder, below, files.get(folder, [])
        waiting += (posixpath.join(folder, name) for name in below)
