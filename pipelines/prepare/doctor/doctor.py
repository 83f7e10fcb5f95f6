"""Is this place ready for a dataset? Each thing that a build will do there is done once, on a small object of our own.

    gs://      who we are ─ the bucket, its location ─ create, get, list, delete an object ─ may a TPU read it
    a folder   can it be made, written and synced ─ locks ─ space
    DATASET    can the source's files be listed and read

What a check cannot tell it says (`ok` is None): a permission may be given where this account cannot look.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator

from pipelines.prepare import storage
from pipelines.prepare.doctor import bucket_diagnosis
from pipelines.prepare.doctor.diagnosis import PROBE, Check, HopelessError, tried, until_hopeless
from pipelines.prepare.sources.files import addresses, folder_listing
from pipelines.prepare.sources.files.folder_listing import ListedFile
from pipelines.prepare.storage import storage_errors
from tfrecord_io.errors import PrepError

__all__ = ["Check", "diagnose"]

# Room for a few shards of the default size.
_LEAST_FREE_BYTES = 1 << 30


def diagnose(output: str, *, region: str | None = None, dataset: str | None = None) -> list[Check]:
    """Looks at `output`, and leaves nothing there. `region` (or zone) is that of the TPU, `dataset` the source's
    files. Raises: ConfigError for an address that nothing can open.
    """
    if storage_errors.bucket_of(output) is not None:
        found = bucket_diagnosis.checks(output, region=region)
    elif (folder := storage.local_path(output)) is not None:
        found = _folder_checks(folder)
    else:
        found = _store_checks(output)
    checks = list(until_hopeless(found))
    if dataset is not None:
        checks.append(_dataset_check(dataset))
    return checks


def _store_checks(output: str) -> Iterator[Check]:
    """Any other service, through fsspec."""
    probe = storage.join(output, PROBE + uuid.uuid4().hex)
    written = tried("write", lambda: storage.write_bytes(probe, b"probe"), path=probe)
    yield written
    if not written.ok:
        raise HopelessError("nothing can be written")
    yield tried("read", lambda: storage.read_bytes(probe), path=probe)
    yield tried("list", lambda: storage.list_names(output), path=output)
    yield tried("delete", lambda: storage.delete(probe), path=probe)


def _folder_checks(folder: str) -> Iterator[Check]:
    """The folder itself is not made: what is above it tells."""
    there = folder
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        yield Check(name="folder", ok=False, found=f"{there} is no folder", remedy="choose an --output that is one")
        raise HopelessError("there is no folder")
    yield Check(name="folder", ok=True, found="there" if there == folder else f"not there yet, to be made in {there}")
    probe = os.path.join(there, PROBE + uuid.uuid4().hex)
    try:
        written = tried("write and fsync", lambda: storage.write_bytes(probe, b"probe"), path=probe)
        yield written
        if not written.ok:
            raise HopelessError("nothing can be written")
        yield _lock_check(probe)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(probe)
    free = shutil.disk_usage(there).free
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
                found=f"not on this file system ({error.strerror}): nothing keeps two jobs apart",
                remedy="run one job at a time in this folder",
            )
    return Check(name="locks", ok=True, found="supported")


def _files(dataset: str) -> list[ListedFile]:
    """What is at a path or an address: files by name or glob, or all files of a folder."""
    path = addresses.local_path(dataset)
    if path is not None and os.path.isdir(path):
        return list(folder_listing.list_local(path).files.values())
    place = addresses.list_folder(dataset) if path is None else None
    return addresses.list_files(dataset) if place is None else list(place.files.values())


def _dataset_check(dataset: str) -> Check:
    """Whether the source's files are there, and the first of them can be read."""
    name = "dataset"
    if "://" not in dataset and not os.path.exists(dataset) and not posixpath.splitext(dataset)[1]:
        return Check(
            name=name, ok=None, found=f"{dataset} is no local file or folder: a name on the hub, not looked up"
        )
    try:
        files = _files(dataset)
        if files:
            with storage.source_explained(dataset):
                fs, inner = storage.file_system(files[0].path)
                fs.cat_file(inner, start=0, end=1)
    except FileNotFoundError:
        files = []
    except PrepError as error:
        return Check(name=name, ok=False, found=error.cause, remedy=error.remedy)
    if not files:
        return Check(name=name, ok=False, found=f"{dataset}: no such file", remedy="check the address")
    return Check(name=name, ok=True, found=f"{len(files)} files, of which the first can be read")
