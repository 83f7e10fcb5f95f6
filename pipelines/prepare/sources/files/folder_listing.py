"""What lies below a folder, wherever that is: names and sizes from one listing, and what the service says of each file.

    local       os.walk, without following links to folders
    remote      one recursive listing by the file system of the address
    hub         `hub.repository`

Hidden files, what is in hidden or special folders (`.git`, `__pycache__`), and what builds left below the folder are no
part of it.
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
from pipelines.prepare.storage.persistence import persist
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["Found", "Place", "local", "local_file", "remote", "remote_file", "visible", "without_doubles"]

# What a build leaves in its output from its first moment on.
_WORK_FOLDER = ".prep"
# What storage services call the version of a file's content: best those that depend on nothing else.
_MARKS = ("md5Hash", "crc32c", "etag", "ETag", "generation")
_MOST_CARD_BYTES = 16 << 20

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """A file before anybody has read it.

    `path` is as in `DataFile`, `name` the path below the folder, or the file's own name. `mark` and `version` are
    what the service calls its content, empty where it says nothing; `stamp` is of local files only. The content of a
    `pinned` file is known by its address.
    """

    path: str
    name: str
    size: int
    mark: str = ""
    version: str = ""
    stamp: int | None = None
    pinned: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """A folder: `shown` is what messages call it, `files` what is in it by name, sorted. `fetch` gives the content of a
    small file.
    """

    shown: str
    files: Mapping[str, Found]
    fetch: Callable[[Found], bytes]

    def read(self, name: str) -> bytes | None:
        """A small file, None if it is not there. Raises: SourceError if it is a large one, or cannot be read."""
        if (found := self.files.get(name)) is None:
            return None
        if found.size > _MOST_CARD_BYTES:
            raise SourceError(
                f"{without_access(found.path)}: {found.size:,} bytes, expected fewer than {_MOST_CARD_BYTES:,}",
                remedy="leave it out, or name the data files by a glob",
            )
        return self.fetch(found)


def local(folder: str) -> Place:
    """What is in a folder of this machine. Raises: SourceError if it may not be listed, or a build made it."""
    root = os.path.abspath(folder)
    names: list[str] = []
    with storage.source_explained(folder):
        walk = ((os.path.relpath(path, root), folders, files) for path, folders, files in os.walk(root, onerror=_fail))
        for place, files in _own(walk, shown=folder):
            names += (posixpath.join(place, name) for name in files)
        paths = {name: os.path.join(root, name) for name in sorted(map(posixpath.normpath, names))}
        found = [local_file(path, name=name) for name, path in paths.items() if os.path.isfile(path)]
    return Place(shown=folder, files={each.name: each for each in without_doubles(found)}, fetch=_content)


def local_file(path: str, *, name: str) -> Found:
    """A file of this machine."""
    status = os.stat(path)
    return Found(path=path, name=name, size=status.st_size, stamp=status.st_mtime_ns)


def remote(address: str) -> Place | None:
    """What is in a remote folder, and below it; None if no folder is there. Raises: SourceError."""
    fs, inner = storage.file_system(address)
    root = str(inner).rstrip("/")
    with storage.source_explained(address):
        try:
            listed: Mapping[str, Mapping[str, Any]] = persist(lambda: fs.find(root, detail=True), path=address)
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
    return Place(shown=without_access(address), files=files, fetch=_content)


def visible(files: Mapping[str, Any], *, shown: str) -> dict[str, Any]:
    """What is in a folder by name, sorted, without what is no part of it."""
    names = sorted(posixpath.join(place, name) for place, some in _own(_walk(files), shown=shown) for name in some)
    return {name: files[name] for name in names}


def remote_file(address: str, info: Mapping[str, Any], *, name: str) -> Found:
    """A file of which its service says `info`."""
    return Found(
        path=address,
        name=name,
        size=int(info.get("size") or 0),
        mark=next((str(info[key]) for key in _MARKS if info.get(key)), ""),
        version=version_of(info),
    )


def without_doubles(files: Sequence[Found]) -> list[Found]:
    """The files without links to others of them: their rows would be read twice."""
    links = [each for each in files if "://" not in each.path and os.path.islink(each.path)]
    if not links:
        return list(files)
    real = {os.path.realpath(each.path) for each in files if each not in links}
    doubles = {each.path for each in links if os.path.realpath(each.path) in real}
    for path in sorted(doubles):
        _log.warning("%s: a link to a file that is read anyway; it is left out", path)
    return [each for each in files if each.path not in doubles]


def _content(found: Found) -> bytes:
    with storage.source_explained(found.path):
        if "://" not in found.path:
            with open(found.path, "rb") as stream:
                return stream.read(_MOST_CARD_BYTES)
        fs, inner = storage.file_system(found.path)
        content: bytes = persist(lambda: fs.cat_file(inner), path=found.path)
        return content


def _fail(error: OSError) -> None:
    raise error


def _own(walk: Iterable[tuple[str, list[str], list[str]]], *, shown: str) -> Iterator[tuple[str, list[str]]]:
    """Every folder and the visible files in it, from a walk that does not go where it is told not to. An --output below
    the source is no part of it, or the same command would find other files each time.
    """
    for place, folders, names in walk:
        top = place in ("", ".")
        prepared = "manifest.json" in names and any(".tfrecord" in name for name in names)
        if prepared and top:
            raise SourceError(
                f"{shown}: a dataset that a build made, expected what one is to be made from",
                remedy="name the files that it is to be made from",
            )
        if not top and (prepared or _WORK_FOLDER in folders):
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        # The one hidden file that `datasets` reads.
        yield place, [name for name in names if not name.startswith(".") or (top and name == ".huggingface.yaml")]


def _walk(names: Iterable[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk` gives it, of names below a folder."""
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
        place = waiting.pop()
        below = sorted(posixpath.basename(path) for path in folders.get(place, ()))
        yield place, below, files.get(place, [])
        waiting += (posixpath.join(place, name) for name in below)
