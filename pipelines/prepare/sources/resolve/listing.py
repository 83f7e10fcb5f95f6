"""Listing files before they are read: what a path, an address or a glob names, and what is below a folder.

Hidden files, files in hidden or special folders (`.git`, `__pycache__`) and the outputs of builds below a folder are
left out. The query of a signed address is used, and never shown.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.sources.resolve.data_files import stamp_of, version_of
from pipelines.prepare.storage import storage_errors
from pipelines.prepare.storage.persistence import retry_transient
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import is_web, without_access

__all__ = ["ListedFile", "describe", "has_outputs", "is_folder", "list_files", "list_folder"]

# A build has this folder in its output from the beginning.
_WORK_FOLDER = ".prep"
# Keys by which storage services identify content. Digests come first: they depend on the content alone.
_CONTENT_TAGS = ("sha256", "blob_id", "md5Hash", "crc32c", "etag", "ETag", "generation")


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


def is_folder(dataset: str) -> bool:
    """Whether a path or an address is that of a folder. Raises: SourceError."""
    path = storage.local_path(dataset)
    if path is not None:
        return os.path.isdir(path)
    if is_web(dataset) or _is_glob(dataset):
        return False
    info = _info(dataset.rstrip("/"))
    return info is not None and info["type"] == "directory"


def list_folder(folder: str) -> dict[str, ListedFile]:
    """List the visible files below a folder by their paths in it, sorted.

    Raises: SourceError if it cannot be listed, or is the output of a build.
    """
    path = storage.local_path(folder)
    found = _remote_folder(folder) if path is None else _local_folder(os.path.abspath(path))
    names = set(_source_files(found, shown=without_access(folder)))
    return {name: found[name] for name in sorted(names)}


def has_outputs(folder: str) -> bool:
    """Whether a build has its output below a local folder."""
    visible = (walk for walk in os.walk(folder) if walk[0] != folder)
    return any(_WORK_FOLDER in subfolders or "manifest.json" in names for _, subfolders, names in visible)


def list_files(dataset: str) -> list[ListedFile]:
    """List the files that a path, an address or a glob names. Raises: SourceError if there is none."""
    path = storage.local_path(dataset)
    return _remote(dataset) if path is None else _local(path)


def describe(path: str, *, name: str) -> ListedFile:
    """Describe one file, local or remote. Raises: FileNotFoundError; SourceError if it cannot be reached."""
    with storage.as_source_error(path):
        if (local := storage.local_path(path)) is None:
            return _remote_file(path, storage.describe(path), name=name)
        status = os.stat(local)
    return ListedFile(path=local, name=name, size=status.st_size, stamp=stamp_of(status))


def _local_folder(root: str) -> dict[str, ListedFile]:
    found = {}
    with storage.as_source_error(root):
        for folder, subfolders, names in os.walk(root, onerror=_fail):
            if _WORK_FOLDER in subfolders and folder != root:
                subfolders.clear()
                continue
            subfolders[:] = [name for name in subfolders if not name.startswith((".", "__"))]
            for path in (os.path.join(folder, name) for name in names):
                if os.path.isfile(path):
                    name = os.path.relpath(path, root)
                    found[name] = describe(path, name=name)
    return found


def _remote_folder(address: str) -> dict[str, ListedFile]:
    fs, inner = storage.file_system(address)
    root = str(inner).rstrip("/")
    with storage.as_source_error(address):
        listed: Mapping[str, Any] = retry_transient(lambda: fs.find(root, detail=True), path=address)
    return {
        name: _remote_file(str(fs.unstrip_protocol(path)), info, name=name)
        for path, info in listed.items()
        if info["type"] == "file" and not path.endswith("/") and (name := path[len(root) :].lstrip("/"))
    }


def _local(path: str) -> list[ListedFile]:
    # An existing file may have the characters of a glob in its name.
    matching = (each for each in glob.iglob(path, recursive=True) if _is_visible(each, path))
    found = [path] if os.path.isfile(path) else list(matching)
    if not found:
        raise SourceError(f"{path}: no such file or folder", remedy="check the path")
    if not (files := sorted({os.path.abspath(each) for each in found if os.path.isfile(each)})):
        raise SourceError(
            f"{path}: matches folders only, expected files", remedy=f"name the files, as in '{path}/*.jsonl'"
        )
    return [describe(each, name=os.path.basename(each)) for each in files]


def _remote(address: str) -> list[ListedFile]:
    fs, inner = storage.file_system(address)
    infos = _matching(address) if _is_glob(address) else {}
    if not _is_glob(address) and (info := _info(address)) is not None:
        infos = {str(inner): info}
    # Buckets have objects that stand for folders; their names end with a slash.
    files = {path: info for path, info in infos.items() if info.get("type") != "directory" and not path.endswith("/")}
    if not files:
        raise SourceError(
            f"{without_access(address)}: no such file", remedy="check the address, and that you may list and read it"
        )
    unstripped = {str(fs.unstrip_protocol(path)): info for path, info in files.items()}
    return [
        _remote_file(path, unstripped[path], name=posixpath.basename(without_access(path)))
        for path in sorted(unstripped)
    ]


def _matching(address: str) -> Mapping[str, Any]:
    fs, inner = storage.file_system(address)
    with contextlib.suppress(FileNotFoundError), storage.as_source_error(address):
        infos: Mapping[str, Any] = retry_transient(
            lambda: fs.glob(inner, detail=True), path=address, passes=_is_transient
        )
        if found := {path: info for path, info in infos.items() if _is_visible(path, inner)}:
            return found
        raise FileNotFoundError(address)  # `as_source_error` may find that the bucket is missing
    return {}


def _remote_file(address: str, info: Mapping[str, Any], *, name: str) -> ListedFile:
    lfs = info.get("lfs") or {}
    tags = {**info, "sha256": lfs.get("sha256") if isinstance(lfs, Mapping) else getattr(lfs, "sha256", None)}
    return ListedFile(
        path=address,
        name=name,
        size=int(info.get("size") or 0),
        tag=next((str(tags[key]) for key in _CONTENT_TAGS if tags.get(key)), ""),
        version=version_of(info),
        pinned=address.startswith("hf://") and "@" in address,
    )


def _info(address: str) -> Mapping[str, Any] | None:
    with contextlib.suppress(FileNotFoundError), storage.as_source_error(address):
        return storage.describe(address, passes=_is_transient)
    return None


def _source_files(names: Sequence[str] | Mapping[str, Any], *, shown: str) -> list[str]:
    """Return the visible ones of the files of a folder, without those of the outputs of builds.

    With an --output below the source, the same command would otherwise find other files each time.
    """
    folders: dict[str, set[str]] = {}
    for name in names:
        folder, _, last = name.rpartition("/")
        folders.setdefault(folder, set()).add(last)
    outputs = {
        folder
        for folder, files in folders.items()
        if "manifest.json" in files and any(".tfrecord" in file for file in files)
    }
    if "" in outputs:
        raise SourceError(
            f"{shown}: the output of a build, expected source files",
            remedy="name the files that the dataset is to be made from",
        )
    outputs |= {folder.partition(f"/{_WORK_FOLDER}")[0] for folder in folders if f"/{_WORK_FOLDER}" in folder}
    return [
        name for name in names if _is_visible(name, "") and not any(name.startswith(f"{folder}/") for folder in outputs)
    ]


def _is_visible(path: str, pattern: str) -> bool:
    """Whether a path is visible, as `datasets` counts: below no hidden or special folder but those the glob names."""
    *folders, name = path.split("/")
    *asked_folders, asked_name = pattern.split("/")
    return _count(folders, "__") <= _count(asked_folders, "__") and _count([*folders, name], ".") <= _count(
        [*asked_folders, asked_name], "."
    )


def _count(parts: Sequence[str], sign: str) -> int:
    return sum(part.startswith(sign) for part in parts)


def _is_transient(error: BaseException) -> bool:
    """Whether a server that answered with an error may soon answer otherwise.

    One that does not answer at all is most often misspelt, so that retrying would only delay the message.
    """
    return storage_errors.status_of(error) is not None and storage_errors.is_transient(error)


def _is_glob(address: str) -> bool:
    path = without_access(address)
    return "*" in path or "?" in path


def _fail(error: OSError) -> None:
    raise error
