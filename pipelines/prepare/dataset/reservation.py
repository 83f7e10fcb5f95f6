"""Reserving the output folder: whether a job may write there, the files that it claims it with, and what is swept.

OUT/.prep/lock                                       while a job is at work (see `locking`)
OUT/.prep/rows-DIGEST/                               the ingested copy of the source, until the commit
OUT/.prep/FINGERPRINT/job.json                       what the fingerprint covers, item by item
OUT/.prep/FINGERPRINT/source.json                    where the source is (see `source_record`)
OUT/.prep/FINGERPRINT/engine_mismatch.json           an engine that is no longer trusted (see `engine_mismatch`)
OUT/.prep/FINGERPRINT/tokenizer/                     the saved tokenizer that workers load
OUT/.prep/FINGERPRINT/SPLIT/plan.json                which rows go into which shard (see `plan_files`)
OUT/.prep/FINGERPRINT/SPLIT/receipt-00003-of-00012.json
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.dataset import card, source_record
from pipelines.prepare.dataset.fingerprint import differences, fingerprint_of
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.own_files import FOLDERS, OWN_FILES, WORK_FOLDER, read_manifest, refuse_links
from pipelines.prepare.storage import locking
from tfrecord_io.errors import FingerprintMismatchError, FormatError, ManifestError, OutputError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import NAME, WRONG, mapping

__all__ = ["check", "clear", "remove_copies", "require_own", "reserve", "sweep"]

JOB_FILE = "job.json"
# The prefix of folders with an ingested copy of a source.
INGESTED = "rows-"


def check(root: str, *, items: Mapping[str, Any] | None, overwrite: bool) -> None:
    """Check that a job may write to the output, and change nothing.

    `items` are what its fingerprint covers, None if they are not known yet.

    Raises: FingerprintMismatchError if the output holds (part of) another dataset, unless with `overwrite`;
        OutputError if it holds something else.
    """
    refuse_links(root)
    names = storage.list_names(root)
    ours = WORK_FOLDER in names or _is_dataset(root)
    if names and not ours:
        raise OutputError(
            f"{root}: holds {', '.join(names[:3])}{' …' if len(names) > 3 else ''}, expected an empty or new folder",
            remedy="choose another --output",
        )
    if ours and not overwrite and items is not None:
        _refuse_another(root, items)


def reserve(
    job: Job,
    *,
    items: Mapping[str, Any],
    source: Mapping[str, Any],
    tokenizer_files: Mapping[str, bytes],
    overwrite: bool,
) -> None:
    """Write the job's own files to the output, after `check`.

    They are what its fingerprint covers (`items`), where the source is (`source`), and the tokenizer. Raises: as
    `check`.
    """
    check(job.root, items=items, overwrite=overwrite)
    if overwrite:
        clear(job.root)
    storage.make_folder(job.root)
    sweep(job.root, ingested=job.ingested)
    for name, content in tokenizer_files.items():
        storage.write_bytes(job.work_path("tokenizer", name), content, inside=job.root)
    known = {**source, "rows": {**_rows_known(job), **source["rows"]}}
    storage.write_bytes(source_record.source_path(job.root, job.fingerprint), _dump(known), inside=job.root)
    storage.write_bytes(job.work_path(JOB_FILE), _dump(dict(items)), inside=job.root)
    # Without a lock another job may have started at the same time: at least one of the two sees the other here.
    _refuse_another(job.root, items)


def _rows_known(job: Job) -> Mapping[str, Any]:
    """Return the row counts of splits that an earlier run of the same job has read."""
    try:
        return mapping(source_record.read(job.root, job.fingerprint)["rows"])
    except (FormatError, *WRONG):
        return {}


def sweep(root: str, *, ingested: str | None = None) -> None:
    """Delete what killed or abandoned jobs left: partial files, and copies of sources other than `ingested`."""
    storage.sweep(root)
    for folder in (WORK_FOLDER, *FOLDERS):
        storage.sweep(storage.join(root, folder), inside=root, below=True)
    remove_copies(root, but=ingested)


def remove_copies(root: str, *, but: str | None) -> None:
    """Delete the ingested copies of sources in `root`, except `but`."""
    for name in _ingested(root):
        if (folder := storage.join(root, WORK_FOLDER, name)) != but:
            storage.delete(folder, inside=root)


def require_own(job: Job) -> None:
    """Raise OutputError if the job's files are gone from the output, because another job started over there."""
    if not storage.exists(job.work_path(JOB_FILE)):
        raise OutputError(
            f"{job.work_path()}: the files of this job are gone: another job has started over, or they were deleted",
            remedy="let one job at a time write to this folder, and run the same command again",
        )


def clear(root: str) -> None:
    """Delete the dataset in `root`: the files that a build writes, and no others."""
    shards = _own_shards(root)
    # The manifest first: without it there is no dataset, whatever else is still there.
    for name in (*OWN_FILES, *shards):
        storage.delete(storage.join(root, name), inside=root)
    card.delete(root)
    for name in _work_names(root):
        storage.delete(storage.join(root, WORK_FOLDER, name), inside=root)


def _is_dataset(root: str) -> bool:
    """Whether manifest.json in `root` is one of ours; other programs use that name too."""
    try:
        return read_manifest(root) is not None
    except ManifestError:
        return False


def _own_shards(root: str) -> list[str]:
    """Return the shards in `root` of the datasets named by its manifest and its work folder, finished or not."""
    jobs = (_read_job(root, fingerprint) for fingerprint in _work_names(root))
    prefixes = {job["name"] for job in jobs if isinstance(job.get("name"), str) and NAME.match(job["name"])}
    with contextlib.suppress(ManifestError):
        if (committed := read_manifest(root)) is not None:
            prefixes.add(committed.name)
    pattern = re.compile(rf"({'|'.join(map(re.escape, sorted(prefixes)))})-.+-\d{{5,}}-of-\d{{5,}}\.tfrecord(\.gz)?")
    return [name for name in storage.list_names(root) if prefixes and pattern.fullmatch(name)]


def _refuse_another(root: str, items: Mapping[str, Any]) -> None:
    fingerprint = fingerprint_of(items)
    committed = read_manifest(root)
    if committed is not None and committed.fingerprint != fingerprint:
        raise _mismatch(root, committed.options, items)
    for name in _work_names(root):
        if name != fingerprint:
            raise _mismatch(root, _read_job(root, name), items)


def _work_names(root: str) -> list[str]:
    """Return the fingerprints of the jobs that have left files in `root`."""
    names = storage.list_names(storage.join(root, WORK_FOLDER))
    return [name for name in names if name != locking.FILE_NAME and not name.startswith(INGESTED)]


def _ingested(root: str) -> list[str]:
    """Return the folders of ingested copies in `root`."""
    return [name for name in storage.list_names(storage.join(root, WORK_FOLDER)) if name.startswith(INGESTED)]


def _read_job(root: str, fingerprint: str) -> Mapping[str, Any]:
    """Return the job.json of an earlier run, empty if it is missing or damaged."""
    try:
        return mapping(json_fields.load(storage.read_bytes(storage.join(root, WORK_FOLDER, fingerprint, JOB_FILE))))
    except (FileNotFoundError, ValueError):
        return {}


def _mismatch(root: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> FingerprintMismatchError:
    listed = differences(before, now) if before else "from what is unknown"
    return FingerprintMismatchError(
        f"{root}: holds a dataset made from something else ({listed})",
        remedy="choose another --output, or start over with --overwrite",
    )


def _dump(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, sort_keys=True) + "\n").encode()
