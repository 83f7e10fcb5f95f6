"""Files and folders by address: local ones by path or `file://`, others through the file system of their address.

Signed addresses are what they are: the query stays in the address, and is never shown.
"""

from __future__ import annotations

import contextlib
import glob
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.sources.files import folder_listing
from pipelines.prepare.sources.files.folder_listing import Found, Place
from pipelines.prepare.storage import object_storage, storage_errors
from pipelines.prepare.storage.persistence import persist
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import is_web, without_access

__all__ = ["files", "folder", "local_path"]

_FILE = "file://"


def local_path(dataset: str) -> str | None:
    """The path of this machine that is named, None for an address elsewhere."""
    if dataset.startswith(_FILE):
        return storage.local_path(dataset)
    return None if "://" in dataset else os.path.expanduser(dataset)


def folder(address: str) -> Place | None:
    """What is in a remote folder; None if a file, a glob or nothing has the address, or it is one of the web, where
    there are no folders. Raises: SourceError.
    """
    if is_web(address) or _is_glob(address):
        return None
    info = _info(address.rstrip("/"))
    return folder_listing.remote(address.rstrip("/")) if info is not None and info["type"] == "directory" else None


def files(dataset: str) -> list[Found]:
    """The files that a path, an address or a glob of either names. Raises: SourceError if there is none."""
    path = local_path(dataset)
    return _remote(dataset) if path is None else _local(path)


def _local(path: str) -> list[Found]:
    # A name that is there is that file, whatever signs are in it.
    matching = (each for each in glob.iglob(path, recursive=True) if _is_meant(each, path))
    found = [path] if os.path.isfile(path) else list(matching)
    if not found:
        raise SourceError(f"{path}: no such file or folder", remedy="check the path")
    if not (some := sorted({os.path.abspath(each) for each in found if os.path.isfile(each)})):
        raise SourceError(f"{path}: only folders, expected files", remedy=f"name the files, as in '{path}/*.jsonl'")
    with storage.source_explained(path):
        return [folder_listing.local_file(each, name=os.path.basename(each)) for each in some]


def _remote(address: str) -> list[Found]:
    fs, inner = storage.file_system(address)
    infos = _matching(address) if _is_glob(address) else {}
    if not _is_glob(address) and (info := _info(address)) is not None:
        infos = {str(inner): info}
    # A folder has no rows; objects that stand for one end with a slash.
    some = {path: info for path, info in infos.items() if info.get("type") != "directory" and not path.endswith("/")}
    if not some:
        raise SourceError(
            f"{without_access(address)}: no such file", remedy="check the address, and that you may list and read it"
        )
    unstripped = {str(fs.unstrip_protocol(path)): info for path, info in some.items()}
    return [
        folder_listing.remote_file(path, unstripped[path], name=posixpath.basename(without_access(path)))
        for path in sorted(unstripped)
    ]


def _matching(address: str) -> Mapping[str, Any]:
    fs, inner = storage.file_system(address)
    with contextlib.suppress(FileNotFoundError), storage.source_explained(address):
        infos: Mapping[str, Any] = persist(lambda: fs.glob(inner, detail=True), path=address, passes=_passes)
        if found := {path: info for path, info in infos.items() if _is_meant(path, inner)}:
            return found
        raise FileNotFoundError(address)  # of which there may be more to say: there may be no such bucket
    return {}


def _info(address: str) -> Mapping[str, Any] | None:
    fs, inner = storage.file_system(address)
    with contextlib.suppress(FileNotFoundError), storage.source_explained(address):
        return persist(lambda: object_storage.ask(fs, inner, path=address), path=address, passes=_passes)
    return None


def _is_meant(path: str, pattern: str) -> bool:
    """False for what is hidden, or in a hidden or a special folder, unless the glob says so. As `datasets` has it."""
    *folders, name = path.split("/")
    *asked_folders, asked_name = pattern.split("/")
    return _count(folders, "__") <= _count(asked_folders, "__") and _count([*folders, name], ".") <= _count(
        [*asked_folders, asked_name], "."
    )


def _count(parts: Sequence[str], sign: str) -> int:
    return sum(part.startswith(sign) for part in parts)


def _passes(error: BaseException) -> bool:
    """Whether a server that answers may answer otherwise a little later. One that cannot be reached is most often
    misspelt.
    """
    return storage_errors.status_of(error) is not None and storage_errors.is_transient(error)


def _is_glob(address: str) -> bool:
    path = without_access(address)
    return "*" in path or "?" in path
