"""Checking whether an output is ready for a build: each operation of a build is tried once, on a small probe object.

    gs://      credentials ─ the bucket, its location ─ create, get, list, delete an object ─ can a TPU read it
    a folder   can it be made, written and synced ─ locks ─ space
    DATASET    can the source's files be listed and read

A check whose result cannot be known has `ok` None: permissions may be granted where this account cannot look.
"""

import contextlib
import fcntl
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator

from pipelines.prepare import storage
from pipelines.prepare.doctor import bucket_diagnosis
from pipelines.prepare.doctor.bucket_diagnosis import PROBE, Check, StopChecksError, attempt, until_stopped
from pipelines.prepare.sources.resolve import data_files
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.storage import storage_errors
from tfrecord_io.errors import PrepError

__all__ = ["Check", "diagnose"]

# Room for a few shards of the default size.
_LEAST_FREE_BYTES = 1 << 30


def diagnose(output: str, *, region: str | None = None, dataset: str | None = None) -> list[Check]:
    """Check `output`, and leave nothing there. `region` (or zone) is the TPU's; `dataset` names the source's files.

    Raises: ConfigError for an address of an unknown kind.
    """
    if storage_errors.bucket_of(output) is not None:
        checking = bucket_diagnosis.checks(output, region=region)
    elif (folder := storage.local_path(output)) is not None:
        checking = _folder_checks(folder)
    else:
        checking = _store_checks(output)
    checks = list(until_stopped(checking))
    if dataset is not None:
        checks.append(_dataset_check(dataset))
    return checks


def _store_checks(output: str) -> Iterator[Check]:
    """Check any other storage service, through fsspec."""
    probe = storage.join(output, PROBE + uuid.uuid4().hex)
    written = attempt("write", lambda: storage.write_bytes(probe, b"probe"), path=probe)
    yield written
    if not written.ok:
        raise StopChecksError("nothing can be written")
    yield attempt("read", lambda: storage.read_bytes(probe), path=probe)
    yield attempt("list", lambda: storage.list_names(output), path=output)
    yield attempt("delete", lambda: storage.delete(probe), path=probe)


def _folder_checks(folder: str) -> Iterator[Check]:
    """Check a local folder; if it does not exist, the nearest folder above it, since the folder itself is not made."""
    existing = folder
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        yield Check(name="folder", ok=False, found=f"{existing} is not a folder", remedy="choose another --output")
        raise StopChecksError("there is no folder")
    yield Check(name="folder", ok=True, found="exists" if existing == folder else f"will be made in {existing}")
    probe = os.path.join(existing, PROBE + uuid.uuid4().hex)
    try:
        written = attempt("write and fsync", lambda: storage.write_bytes(probe, b"probe"), path=probe)
        yield written
        if not written.ok:
            raise StopChecksError("nothing can be written")
        yield _lock_check(probe)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(probe)
    free = shutil.disk_usage(existing).free
    enough = free >= _LEAST_FREE_BYTES
    remedy = "" if enough else "free some space, or choose an --output on another disk"
    yield Check(name="space", ok=enough, found=f"{free / 1e9:.1f} GB free", remedy=remedy)


def _lock_check(probe: str) -> Check:
    with open(probe, "rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return Check(
                name="locks",
                ok=None,
                found=f"not supported by this file system ({error.strerror}): two builds would not notice each other",
                remedy="run one job at a time in this folder",
            )
    return Check(name="locks", ok=True, found="supported")


def _files(dataset: str) -> list[DataFile]:
    """List the files that a path, an address or a glob names, or all files of a folder."""
    is_folder = data_files.is_folder(dataset)
    return list(data_files.list_folder(dataset).values()) if is_folder else data_files.list_files(dataset)


def _dataset_check(dataset: str) -> Check:
    """Check whether the source's files exist, and the first of them can be read."""
    name = "dataset"
    if "://" not in dataset and not os.path.exists(dataset) and not posixpath.splitext(dataset)[1]:
        return Check(
            name=name, ok=None, found=f"{dataset} is not a local file or folder; names on the hub are not checked"
        )
    try:
        files = _files(dataset)
        if files:
            with storage.as_source_error(dataset):
                fs, inner = storage.file_system(files[0].path)
                fs.cat_file(inner, start=0, end=1)
    except FileNotFoundError:
        files = []
    except PrepError as error:
        return Check(name=name, ok=False, found=error.cause, remedy=error.remedy)
    if not files:
        return Check(name=name, ok=False, found=f"{dataset}: no such file", remedy="check the address")
    return Check(name=name, ok=True, found=f"{len(files)} files; the first can be read")
