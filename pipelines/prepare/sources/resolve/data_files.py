"""List the data files of a dataset, and identify them by digest, etag or commit.

Listings omit hidden files, hidden and special folders (`.git`, `__pycache__`) and outputs of builds inside the folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import xxhash

from pipelines.prepare import storage
from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.storage import storage_errors
from pipelines.prepare.storage.storage_errors import retry_transient
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import is_web, without_access

_DIGEST = "xxh3:"
_CHUNK_BYTES = 4 << 20
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# File extensions by the first bytes of compressed files. Readers rely on the file name.
_COMPRESSED = {
    b"\x1f\x8b": ".gz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"\xfd7zXZ\0": ".xz",
    b"BZh91AY&SY": ".bz2",
    b"PK\x03\x04": ".zip",
}
_TEXTS = (".csv", ".tsv", ".json", ".jsonl", ".txt")
_THREADS = 16
# Every output of a build contains this folder from the start.
_WORK_FOLDER = ".prep"
# Metadata keys that identify content, digests first.
_CONTENT_TAGS = ("sha256", "blob_id", "md5Hash", "crc32c", "etag", "ETag", "generation")
# Metadata keys for an object's version, starting with the number of the upload.
_VERSION_KEYS = ("generation", "etag", "ETag", "md5Hash", "crc32c")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFile:
    """Data file of the source, or an `ingested` Parquet part.

    `path`: absolute local path, or address, which may contain credentials. `name`: for the manifest. `version`: version
    or etag of a remote file; '' if there is none or the address fixes the content. `tag`: digest of the content, or '';
    see `identify`. `stamp`: see `stamp_of`; None for remote files.
    """

    path: str
    size: int
    name: str = ""
    version: str = ""
    tag: str = ""
    stamp: int | None = None
    ingested: bool = False

    @property
    def as_planned(self) -> DataFile:
        """The file without name, tag and credentials, for plans (see `RowReader.addresses`)."""
        version = "" if self.stamp is not None else self.version
        return dataclasses.replace(self, path=without_access(self.path), name="", tag="", version=version)

    @property
    def entry(self) -> dict[str, Any]:
        """The file's name, size and digest, for the fingerprint and the manifest."""
        is_our_digest = self.tag.startswith(_DIGEST)
        tag = {"xxh3": self.tag.removeprefix(_DIGEST)} if is_our_digest else {"mark": self.tag}
        return {"name": self.name, "bytes": self.size, **tag}


def is_same_file(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether two values of `DataFile.entry` describe the same file. Equal digests outweigh different names."""
    ignored = {"split", *(["name"] if "xxh3" in before or len(str(before.get("mark"))) in (40, 64) else [])}
    return all(before.get(key) == now.get(key) for key in {*before, *now} - ignored)


def with_first(files: Sequence[DataFile], entries: Sequence[Mapping[str, Any]]) -> list[DataFile]:
    """Return `files` in a new order: first those that `entries` describe, in their order, then all others."""
    first, rest = [], list(files)
    for entry in entries:
        same = [file for file in rest if is_same_file(entry, file.entry)]
        for file in sorted(same, key=lambda file: file.name != entry["name"])[:1]:
            rest.remove(file)
            first.append(file)
    return first + rest


def is_pinned(path: str) -> bool:
    """Return whether the address fixes the content, such as a Hub address with a commit."""
    return path.startswith("hf://") and "@" in path


def version_of(info: Mapping[str, Any]) -> str:
    """Return a file's version from its metadata `info`; empty if there is none."""
    return next((str(info[key]) for key in _VERSION_KEYS if info.get(key)), "")


def stamp_of(status: os.stat_result) -> int:
    """Return a 63-bit digest of a local file's inode and times."""
    return xxhash.xxh3_64_intdigest(f"{status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}".encode()) >> 1


def is_folder(dataset: str) -> bool:
    """Return whether a path or address names a folder. Raises: SourceError."""
    if (path := storage.local_path(dataset)) is not None:
        return os.path.isdir(path)
    if is_web(dataset) or _is_glob(dataset):
        return False
    info = _info(dataset.rstrip("/"))
    return info is not None and info["type"] == "directory"


def list_folder(folder: str) -> tuple[list[DataFile], bool]:
    """Return the visible files in a folder, sorted, and whether the folder contains outputs of builds.

    Raises: SourceError if the folder can't be listed, or is the output of a build.
    """
    infos, root = _below(folder)
    # If --output is inside the source, each run would otherwise see different files.
    inside = f"/{_WORK_FOLDER}/"
    outputs = {f"/{name}".partition(inside)[0][1:] for name in infos if inside in f"/{name}"}
    if "" in outputs:
        cause = f"{without_access(folder)}: this folder is the output of a build, expected source files"
        raise SourceError(cause, remedy="name the files to build the dataset from")
    hidden = tuple(f"{output}/" for output in outputs)
    visible = [name for name in infos if _is_visible(name, "") and not name.startswith(hidden)]
    files = [_listed(f"{root}/{name}", infos[name], name=name) for name in visible]
    return list(filter(None, files)), bool(outputs)


def list_files(dataset: str) -> list[DataFile]:
    """List the files that a path, address or glob names. Raises: SourceError if there are none."""
    path = storage.local_path(dataset)
    address = dataset if path is None else os.path.abspath(path)
    fs, inner = storage.file_system(address)
    if _is_glob(dataset) if path is None else not os.path.exists(address) and glob.has_magic(address):
        infos = _matching(address)
    else:
        info = _info(address)
        infos = {} if info is None else {str(inner): info}
    by_path = {str(fs.unstrip_protocol(name)) if path is None else name: info for name, info in infos.items()}
    files = [_listed(file, info, name=posixpath.basename(without_access(file))) for file, info in by_path.items()]
    if not any(files):
        cause = "matches only folders, expected files" if files else "no such file or folder"
        raise SourceError(f"{without_access(dataset)}: {cause}", remedy="check the path, and that you may read it")
    return sorted(filter(None, files), key=lambda file: file.path)


def describe(path: str, *, name: str = "") -> DataFile:
    """Return the file at a path or address. Raises: FileNotFoundError, SourceError."""
    with storage.as_source_error(path):
        if (local := storage.local_path(path)) is None:
            return _remote_file(path, storage.describe(path), name=name)
        status = os.stat(local)
    return DataFile(path=local, name=name, size=status.st_size, stamp=stamp_of(status))


def identify(files: Sequence[DataFile]) -> list[DataFile]:
    """Return the files with tags that identify their content. Raises: SourceError."""
    return list(ordered_map(_identified, files, threads=min(_THREADS, len(files))))


def _below(folder: str) -> tuple[dict[str, Mapping[str, Any]], str]:
    path = storage.local_path(folder)
    root = (folder if path is None else os.path.abspath(path)).rstrip("/")
    fs, inner = storage.file_system(root)
    options = {} if path is None else {"on_error": "raise"}
    with storage.as_source_error(folder):
        listed: Mapping[str, Any] = retry_transient(lambda: fs.find(inner, detail=True, **options), path=folder)
    below = {name[len(inner.rstrip("/")) :].lstrip("/"): info for name, info in sorted(listed.items())}
    return below, root if path is not None else str(fs.unstrip_protocol(inner)).rstrip("/")


def _listed(path: str, info: Mapping[str, Any], *, name: str) -> DataFile | None:
    if "://" not in path:
        return describe(path, name=name) if os.path.isfile(path) else None
    if info.get("type") == "directory" or path.endswith("/"):
        return None
    return _remote_file(path, info, name=name)


def _matching(address: str) -> Mapping[str, Any]:
    fs, inner = storage.file_system(address)
    with contextlib.suppress(FileNotFoundError), storage.as_source_error(address):
        infos = retry_transient(lambda: fs.glob(inner, detail=True), path=address, retry_if=_is_transient)
        if visible := {path: info for path, info in infos.items() if _is_visible(path, inner)}:
            return visible
        raise FileNotFoundError(address)  # lets `as_source_error` report a missing bucket
    return {}


def _remote_file(address: str, info: Mapping[str, Any], *, name: str) -> DataFile:
    lfs = info.get("lfs") or {}
    tags = {**info, "sha256": lfs.get("sha256") if isinstance(lfs, Mapping) else getattr(lfs, "sha256", None)}
    return DataFile(
        path=address,
        name=name,
        size=int(info.get("size") or 0),
        version="" if is_pinned(address) else version_of(info),
        tag=next((str(tags[key]) for key in _CONTENT_TAGS if tags.get(key)), ""),
    )


def _info(address: str) -> Mapping[str, Any] | None:
    with contextlib.suppress(FileNotFoundError), storage.as_source_error(address):
        return storage.describe(address, retry_if=_is_transient)
    return None


def _is_visible(path: str, pattern: str) -> bool:
    # As in `datasets`: a path may have no more hidden or special parts than the pattern.
    hidden, asked_hidden = (sum(part.startswith(".") for part in text.split("/")) for text in (path, pattern))
    special, asked_special = (sum(part.startswith("__") for part in text.split("/")[:-1]) for text in (path, pattern))
    return hidden <= asked_hidden and special <= asked_special


def _is_transient(error: BaseException) -> bool:
    # An address without any response is probably misspelled.
    return storage_errors.status_of(error) is not None and storage_errors.is_transient(error)


def _is_glob(address: str) -> bool:
    path = without_access(address)
    return "*" in path or "?" in path


def _identified(file: DataFile) -> DataFile:
    if file.tag or is_pinned(file.path):
        return file
    try:
        with storage.as_source_error(file.path):
            described = file if file.stamp is not None else describe(file.path, name=file.name)
            return described if described.tag else _digested(described)
    except FileNotFoundError as error:
        raise SourceError(
            f"{without_access(file.path)}: existed when the files were listed, but no longer exists",
            remedy="make sure that nothing deletes source files, and run the same command again",
        ) from error


def _digested(file: DataFile) -> DataFile:
    total = xxhash.xxh3_128()
    fs, inner = storage.file_system(file.path)
    with fs.open(inner, "rb") if file.stamp is None else open(file.path, "rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            if stream.tell() == len(chunk):
                _require_data(chunk, file.path)
            total.update(chunk)
        status = None if file.stamp is None else os.fstat(stream.fileno())
    if status is not None and (status.st_size, stamp_of(status)) != (file.size, file.stamp):
        raise SourceError(f"{file.path}: changed while it was read", remedy="run the same command again")
    digest = f"{_DIGEST}{total.hexdigest()}"
    return dataclasses.replace(file, tag=digest, version=digest)


def _require_data(head: bytes, path: str) -> None:
    where = without_access(path)
    if head.startswith(_LFS_POINTER):
        cause = f"{where}: a git-lfs pointer, expected the file itself"
        raise SourceError(cause, remedy="run `git lfs pull` in the folder of the repository")
    end = next((end for magic, end in _COMPRESSED.items() if head.startswith(magic)), None)
    if end and where.lower().endswith(_TEXTS):
        raise SourceError(f"{where}: compressed, but its name does not end in {end}", remedy=f"add {end} to its name")
