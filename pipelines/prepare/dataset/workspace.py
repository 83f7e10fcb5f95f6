"""The output folder before, during and after a job: may we write there, what is planned, what is already made.

OUT/.prep/lock                                       while a job is at work (see `locking`)
OUT/.prep/rows-DIGEST/                               the ingested copy of the source, until the commit
OUT/.prep/FINGERPRINT/job.json                       what the fingerprint covers, item by item
OUT/.prep/FINGERPRINT/source.json                    where the dataset was found: for `verify --repair` and `trace`
OUT/.prep/FINGERPRINT/disproof.json                  which engine is not trusted any more (see `disproof`)
OUT/.prep/FINGERPRINT/tokenizer/                     the saved tokenizer that workers load
OUT/.prep/FINGERPRINT/SPLIT/plan.json                which rows go into which shard (see `plans`)
OUT/.prep/FINGERPRINT/SPLIT/receipt-00003-of-00012.json
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.prepare import storage
from pipelines.prepare.dataset import engine_mismatch, receipts
from pipelines.prepare.dataset.job import WORK_FOLDER, Job
from pipelines.prepare.dataset.receipts import Receipt
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.storage import locking
from pipelines.prepare.tokenize import engines
from tfrecord_io import manifest
from tfrecord_io.errors import FingerprintMismatchError, FormatError, ManifestError, OutputError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import NAME, WRONG, items, mapping, optional, text
from tfrecord_io.manifest import Manifest, Shard

if TYPE_CHECKING:
    from pipelines.prepare.build.resolving import Resolved

__all__ = [
    "OWN_FILES",
    "check",
    "clear",
    "differences",
    "find_receipts",
    "fingerprint_of",
    "read_manifest",
    "read_place",
    "remove_copies",
    "require_manifest",
    "require_own",
    "reserve",
    "source_path",
    "sweep",
]

JOB_FILE = "job.json"
SOURCE_FILE = "source.json"
# Begins the names of the folders with an ingested copy of a source.
INGESTED = "rows-"
_FOLDERS = ("tokenizer", "rejected", "index")
# What a dataset's folder holds beside its shards; nothing else is ever deleted.
OWN_FILES = (manifest.FILE_NAME, "dataset_info.json", "features.json", "label.labels.txt", *_FOLDERS)
# Differences that an error names.
_LISTED = 20


def read_manifest(root: str) -> Manifest | None:
    """The manifest of the dataset in `root`, or None if there is none. Raises: ManifestError."""
    path = storage.join(root, manifest.FILE_NAME)
    _refuse_links(root)
    try:
        return manifest.parse(storage.read_bytes(path), place=path)
    except FileNotFoundError:
        return None


def require_manifest(root: str) -> Manifest:
    """The manifest of the finished dataset in `root`. Raises: ManifestError if there is none, or it is damaged."""
    found = read_manifest(root)
    if found is None:
        raise ManifestError(
            f"{root}: {_instead_of_a_dataset(root)}",
            remedy="name the --output of a build that has finished, or run the build again",
        )
    return found


def _instead_of_a_dataset(root: str) -> str:
    local = storage.local_path(root)
    if local is not None and not os.path.exists(local):
        return "no such folder"
    if local is not None and os.path.isfile(local):
        return "a file, expected the folder of a dataset"
    return f"no {manifest.FILE_NAME}, so there is no finished dataset here"


def check(root: str, *, items: Mapping[str, Any] | None, overwrite: bool) -> None:
    """Makes sure that a job may write to the output. Changes nothing. `items` are what its fingerprint covers, None if
    they are not known yet.

    Raises: FingerprintMismatchError if it holds (part of) another dataset, unless that is to be overwritten;
        OutputError if it holds something else.
    """
    _refuse_links(root)
    names = storage.list_names(root)
    ours = WORK_FOLDER in names or _is_dataset(root)
    if names and not ours:
        raise OutputError(
            f"{root}: holds {', '.join(names[:3])}{' …' if len(names) > 3 else ''}, expected an empty or new folder",
            remedy="choose another --output",
        )
    if ours and not overwrite and items is not None:
        _refuse_another(root, items)


def reserve(resolved: Resolved, *, overwrite: bool) -> None:
    """Leaves the job's own files in the output, after `check`. Raises: as `check`."""
    job = resolved.job
    check(job.root, items=resolved.items, overwrite=overwrite)
    if overwrite:
        clear(job.root)
    storage.make_folder(job.root)
    sweep(job.root, ingested=job.ingested)
    for name, content in resolved.tokenizer_files.items():
        storage.write_bytes(job.work_path("tokenizer", name), content, inside=job.root)
    place = {**resolved.place, "rows": {**_rows_known(job), **resolved.place["rows"]}}
    storage.write_bytes(job.work_path(SOURCE_FILE), _dump(place), inside=job.root)
    storage.write_bytes(job.work_path(JOB_FILE), _dump(dict(resolved.items)), inside=job.root)
    # Where no lock keeps jobs apart, another one may have come at the same time: one of the two sees the other.
    _refuse_another(job.root, resolved.items)


def _rows_known(job: Job) -> Mapping[str, Any]:
    """The rows of splits that an earlier run of the same job has looked into."""
    try:
        return mapping(read_place(job.root, job.fingerprint)["rows"])
    except (FormatError, *WRONG):
        return {}


def sweep(root: str, *, ingested: str | None = None) -> None:
    """Deletes what jobs that were killed or given up have left: files half written, and copies of sources other than
    `ingested`.
    """
    storage.sweep(root)
    for folder in (WORK_FOLDER, *_FOLDERS):
        storage.sweep(storage.join(root, folder), inside=root, below=True)
    remove_copies(root, but=ingested)


def remove_copies(root: str, *, but: str | None) -> None:
    """Deletes the ingested copies of sources in `root`, except for one."""
    for name in _ingested(root):
        if (folder := storage.join(root, WORK_FOLDER, name)) != but:
            storage.delete(folder, inside=root)


def require_own(job: Job) -> None:
    """Raises: OutputError if the job's files are not in the output any more: somebody has started over there."""
    if not storage.exists(job.work_path(JOB_FILE)):
        raise OutputError(
            f"{job.work_path()}: the files of this job are gone: another job has started over, or they were deleted",
            remedy="let one job at a time write to this folder, and run the same command again",
        )


def clear(root: str) -> None:
    """Deletes the dataset in `root`: the files that a build writes, and no other."""
    shards = _own_shards(root)
    # The manifest goes first: without it there is no dataset, whatever else is still there.
    for name in (*OWN_FILES, *shards):
        storage.delete(storage.join(root, name), inside=root)
    for name in _work_names(root):
        storage.delete(storage.join(root, WORK_FOLDER, name), inside=root)


def source_path(root: str, fingerprint: str) -> str:
    """The file that says where the source is, and through which of the user's steps its rows go."""
    return storage.join(root, WORK_FOLDER, fingerprint, SOURCE_FILE)


def read_place(root: str, fingerprint: str) -> Mapping[str, Any]:
    """Where the job of a finished dataset found its source. Raises: FormatError if that is not known any more."""
    path = source_path(root, fingerprint)
    try:
        place = mapping(_load(storage.read_bytes(path), place=path))
        text(place["dataset"])
        place["more"] = [text(path) for path in items(place.get("more", []))]
        optional(text, place.get("config"))
        optional(text, place.get("revision"))
    except (FileNotFoundError, *WRONG) as error:
        raise FormatError(
            f"{path}: not there, or damaged: it says from where the dataset was made",
            remedy="copy .prep/ again from where the dataset was made, or build it anew with --overwrite",
        ) from error
    return place


def find_receipts(job: Job, tasks: Sequence[ShardTask]) -> list[Receipt | None]:
    """Each task's receipt, if it is there, of this very task, its shards are as large as it says, and made by an engine
    that is still trusted.

    Listings and reads many at a time, since there may be thousands of them far away.
    """
    sizes = storage.sizes(job.root)
    there = {
        storage.join(job.work_path(split), name)
        for split in sorted({task.split for task in tasks})
        for name in storage.list_names(job.work_path(split))
    }
    wanted = [job.receipt_path(task) for task in tasks]
    found = [path for path in wanted if path in there]
    contents = dict(zip(found, storage.read_many(found), strict=True))
    valid = [
        _valid_receipt(job, task, contents.get(path), sizes=sizes, place=path)
        for task, path in zip(tasks, wanted, strict=True)
    ]
    if engine_mismatch.read(job) is None:
        return valid
    return [receipt if receipt and engines.is_reference(receipt.engine) else None for receipt in valid]


def _valid_receipt(
    job: Job, task: ShardTask, content: bytes | None, *, sizes: Mapping[str, int], place: str
) -> Receipt | None:
    if content is None:
        return None
    try:
        receipt = receipts.parse(content, place=place)
    except FormatError:
        return None
    of_task = (receipt.fingerprint, receipt.split, receipt.index, receipt.ledger.rows_in) == (
        job.fingerprint,
        task.split,
        task.index,
        task.num_rows,
    )
    whole = all(sizes.get(shard.name) == shard.num_bytes for shard in receipt.shards)
    return receipt if of_task and whole and _are_of_task(job, task, receipt.shards) else None


def _are_of_task(job: Job, task: ShardTask, shards: Sequence[Shard]) -> bool:
    """Whether these can be the shards of a task: one, or one for each of some of the lengths of rows."""
    lengths = [shard.length for shard in shards]
    allowed: list[int | None] = [length for length in job.layout.buckets if length in lengths] or [None]
    wanted = [(job.shard_name(task, length=length), None if length is None else task.index) for length in allowed]
    return lengths == allowed and [(shard.name, shard.task) for shard in shards] == wanted


def _refuse_links(root: str) -> None:
    """Raises: OutputError if one of our own files and folders is a link, by which something else would be changed."""
    storage.refuse_links(root, is_own=_is_own, folders=(WORK_FOLDER, *_FOLDERS))


def _is_own(name: str) -> bool:
    return name in (WORK_FOLDER, *OWN_FILES) or name.endswith((".tfrecord", ".tfrecord.gz"))


def _is_dataset(root: str) -> bool:
    """Whether manifest.json in `root` is one of ours: other programs have files of that name."""
    try:
        return read_manifest(root) is not None
    except ManifestError:
        return False


def _own_shards(root: str) -> list[str]:
    """The shards in `root` of the datasets that its manifest and its work folder tell of, finished or not."""
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
    """The fingerprints of the jobs that have left something in `root`."""
    names = storage.list_names(storage.join(root, WORK_FOLDER))
    return [name for name in names if name != locking.FILE_NAME and not name.startswith(INGESTED)]


def _ingested(root: str) -> list[str]:
    """The folders of ingested copies in `root`."""
    return [name for name in storage.list_names(storage.join(root, WORK_FOLDER)) if name.startswith(INGESTED)]


def _read_job(root: str, fingerprint: str) -> Mapping[str, Any]:
    """The job.json of an earlier run, or nothing if that is not there or damaged."""
    try:
        return mapping(json_fields.load(storage.read_bytes(storage.join(root, WORK_FOLDER, fingerprint, JOB_FILE))))
    except (FileNotFoundError, ValueError):
        return {}


def _mismatch(root: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> FingerprintMismatchError:
    listed = differences(before, now) if before else "its job is unknown"
    return FingerprintMismatchError(
        f"{root}: holds a dataset made from something else ({listed})",
        remedy="choose another --output, or start over with --overwrite",
    )


def differences(before: Any, now: Any) -> str:
    """Each item that differs, however deep, with its old and its new value."""
    found = list(_differences(before, now, name=""))
    more = f"; and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return "; ".join(found[:_LISTED]) + more


def _differences(before: Any, now: Any, *, name: str) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(before.get(key), now.get(key), name=inner)
    elif _are_named(before) and _are_named(now):
        old, new = ({f"[{entry['name']}]": entry for entry in entries} for entries in (before, now))
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), name=name + key)
    elif _are_mappings(before) and _are_mappings(now) and len(before) == len(now):
        for index, (old_entry, new_entry) in enumerate(zip(before, now, strict=True)):
            yield from _differences(old_entry, new_entry, name=f"{name}[{index}]")
    elif before != now:
        yield f"{name}: was {_short(before)}, now {_short(now)}"


def _are_named(value: Any) -> bool:
    """Whether `value` is a list of objects with a name, as the source's files are."""
    return isinstance(value, list) and all(isinstance(entry, Mapping) and "name" in entry for entry in value)


def _are_mappings(value: Any) -> bool:
    """Whether `value` is a list of objects, as the user's steps are."""
    return isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)


def _short(value: Any) -> str:
    shown = json.dumps(value, sort_keys=True)
    return shown if len(shown) <= 200 else shown[:200] + "…"


def fingerprint_of(items: Mapping[str, Any]) -> str:
    """The digest of what decides the bytes of a dataset."""
    return hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()[:32]


def _dump(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, sort_keys=True) + "\n").encode()


def _load(content: bytes, *, place: str, any_depth: bool = False) -> Any:
    try:
        return json_fields.load(content, any_depth=any_depth)
    except ValueError as error:
        raise FormatError(f"{place}: not JSON ({error})", remedy="start over with --overwrite") from error
