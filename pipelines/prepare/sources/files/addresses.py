"""Listing files and folders named by a path, an address or a glob: local ones, and others through fsspec.

The query of a signed address is used, and never shown.
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
from pipelines.prepare.sources.files.folder_listing import FolderListing, ListedFile
from pipelines.prepare.storage import storage_errors
from pipelines.prepare.storage.persistence import retry_transient
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import is_web, without_access

__all__ = ["list_files", "list_folder"]


def list_folder(address: str) -> FolderListing | None:
    """List a remote folder; None if the address names a file, a glob or nothing, or is a web address.

    Raises: SourceError.
    """
    if is_web(address) or _is_glob(address):
        return None
    info = _info(address.rstrip("/"))
    return folder_listing.list_remote(address.rstrip("/")) if info is not None and info["type"] == "directory" else None


def list_files(dataset: str) -> list[ListedFile]:
    """List the files that a path, an address or a glob names. Raises: SourceError if there is none."""
    path = storage.local_path(dataset)
    return _remote(dataset) if path is None else _local(path)


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
    with storage.as_source_error(path):
        return [folder_listing.local_file(each, name=os.path.basename(each)) for each in files]


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
        folder_listing.remote_file(path, unstripped[path], name=posixpath.basename(without_access(path)))
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


def _info(address: str) -> Mapping[str, Any] | None:
    with contextlib.suppress(FileNotFoundError), storage.as_source_error(address):
        return storage.describe(address, passes=_is_transient)
    return None


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
