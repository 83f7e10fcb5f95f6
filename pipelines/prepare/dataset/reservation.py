"""Reserve the output folder for a job: check it, claim it, delete leftovers. docs/format.md lists the files."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.dataset import own_files, source_record
from pipelines.prepare.dataset.fingerprint import differences, fingerprint_of
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.own_files import FOLDERS, OWN_FILES, WORK_FOLDER, read_manifest
from pipelines.prepare.options.suggestions import listing
from pipelines.prepare.storage import local_storage
from tfrecord_io.errors import FingerprintMismatchError, FormatError, ManifestError, OutputError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import NAME, WRONG, mapping
from tfrecord_io.manifest import Manifest

JOB_FILE = "job.json"
INGESTED = "rows-"


def check(root: str, *, items: Mapping[str, Any] | None, overwrite: bool, former: Manifest | None = None) -> None:
    """Check that a job may write to the output folder `root`.

    `items`: the job's fingerprint values by name, if known. `former`: manifest of the dataset to append to, if any.
    `overwrite`: the job replaces a dataset in `root`, or an unfinished append. Raises: FingerprintMismatchError if
    `root` has another dataset, unless `overwrite`; OutputError if it has anything else.
    """
    committed = _committed(root)
    names = [name for name in storage.list_names(root) if name != WORK_FOLDER]
    begun = set(storage.list_names(storage.join(root, WORK_FOLDER))) - {local_storage.LOCK_FILE}
    ours = bool(begun) or committed is not None
    if names and not ours:
        raise OutputError(
            f"{root}: holds {', '.join(names[:3])}{' …' if len(names) > 3 else ''}, expected an empty or new folder",
            remedy="choose another --output",
        )
    if ours and not overwrite and items is not None:
        _refuse_another(root, items, former=former)


def reserve(
    job: Job,
    *,
    items: Mapping[str, Any],
    source: Mapping[str, Any],
    tokenizer_files: Mapping[str, bytes],
    overwrite: bool,
    former: Manifest | None = None,
) -> None:
    """Check the output folder as `check` does, delete leftovers, and write the files in the job's work folder.

    They contain `items`, the source's location and the tokenizer. With `overwrite`, also delete the dataset in the
    output folder or, if `former` is not None, only an unfinished append to it.
    """
    check(job.root, items=items, overwrite=overwrite, former=former)
    if overwrite and former is None:
        clear(job.root)
    elif overwrite:
        _clear_append(job.root)
    storage.make_folder(job.root)
    sweep(job.root, ingested=job.ingested, overwrite=overwrite)
    for name, content in tokenizer_files.items():
        storage.write_bytes(job.work_path("tokenizer", name), content, inside=job.root)
    rows = {}  # of splits that an earlier run has read
    with contextlib.suppress(FormatError, *WRONG):
        rows = mapping(source_record.read(job.root, job.fingerprint)["rows"])
    known = {**source, "rows": {**rows, **source["rows"]}}
    path = source_record.source_path(job.root, job.fingerprint)
    for name, document in ((path, known), (job.work_path(JOB_FILE), dict(items))):
        storage.write_bytes(name, (json.dumps(document, sort_keys=True) + "\n").encode(), inside=job.root)
    # Without a lock, another job may have started: at least one of the two detects the other here.
    _refuse_another(job.root, items, former=former)


def sweep(root: str, *, ingested: str | None = None, overwrite: bool = False) -> None:
    """Delete partial files, and ingested copies except the folder `ingested`. `overwrite`: see `remove_copies`."""
    storage.sweep(root)
    for folder in (WORK_FOLDER, *FOLDERS):
        storage.sweep(storage.join(root, folder), inside=root, below=True)
    remove_copies(root, but=ingested, overwrite=overwrite)


def recorded_form(root: str) -> Mapping[str, Any] | None:
    """Return the result of `ShardSpec.form` for the dataset or unfinished job in `root`; None if there is none."""
    committed = _committed(root)
    options = [committed.options] if committed else [_read_job(root, name) for name in _work_names(root)]
    return options[0].get("form") if options else None


def remove_copies(root: str, *, but: str | None, overwrite: bool = False) -> None:
    """Delete the ingested copies of sources in the output folder `root`, except the folder `but`.

    Remote storage has no lock, so another job may be reading the copies. They are deleted there only with `overwrite`.
    """
    if storage.local_path(root) is None and not overwrite:
        return
    for name in storage.list_names(storage.join(root, WORK_FOLDER)):
        folder = storage.join(root, WORK_FOLDER, name)
        if name.startswith(INGESTED) and folder != but:
            storage.delete(folder, inside=root)


def require_own(job: Job) -> None:
    """Check that no other job has deleted the job's files to start over. Raises: OutputError."""
    if not storage.exists(job.work_path(JOB_FILE)):
        raise OutputError(
            f"{job.work_path()}: the files of this job are gone: another job has started over, or they were deleted",
            remedy="let one job at a time write to this folder, and run the same command again",
        )


def clear(root: str) -> None:
    """Delete the dataset in `root`, finished or not, and no other files."""
    shards = _own_shards(root)
    former = [name for name in storage.list_names(root) if own_files.FORMER.fullmatch(name)]
    # The manifest comes first: without it there is no dataset.
    for name in (*OWN_FILES, *former):
        storage.delete(storage.join(root, name), inside=root)
    storage.delete_files(root, shards, inside=root)
    for name in _work_names(root):
        storage.delete(storage.join(root, WORK_FOLDER, name), inside=root)


def _clear_append(root: str) -> None:
    committed = own_files.require_manifest(root)
    committed_shards = {shard.name for split in committed.splits.values() for shard in split.shards}
    tasks = {name: len(split.by_task()) for name, split in committed.splits.items()}
    for name in set(_work_names(root)) - _fingerprints(committed):
        storage.delete(storage.join(root, WORK_FOLDER, name), inside=root)
    storage.delete_files(root, sorted({*_own_shards(root)} - committed_shards), inside=root)
    indexes, rejected = storage.join(root, "index"), storage.join(root, "rejected")
    new_indexes = [name for name in storage.list_names(indexes) if name.rpartition(".")[0] not in committed_shards]
    storage.delete_files(indexes, new_indexes, inside=root)
    numbers = {name: name.removesuffix(".jsonl").rpartition("-") for name in storage.list_names(rejected)}
    new = [name for name, (split, _, index) in numbers.items() if index.isdigit() and int(index) >= tasks.get(split, 0)]
    storage.delete_files(rejected, new, inside=root)


def _fingerprints(committed: Manifest) -> set[str]:
    return {committed.fingerprint, *(generation.fingerprint for generation in committed.generations)}


def _committed(root: str) -> Manifest | None:
    try:
        return read_manifest(root)
    except ManifestError:  # damaged, or from another program
        return None


def _own_shards(root: str) -> list[str]:
    jobs = (_read_job(root, fingerprint) for fingerprint in _work_names(root))
    prefixes = {job["name"] for job in jobs if isinstance(job.get("name"), str) and NAME.match(job["name"])}
    if (committed := _committed(root)) is not None:
        prefixes.add(committed.name)
    pattern = re.compile(rf"({'|'.join(map(re.escape, sorted(prefixes)))})-.+-\d{{5,}}-of-\d{{5,}}\.tfrecord(\.gz)?")
    return [name for name in storage.list_names(root) if prefixes and pattern.fullmatch(name)]


def _refuse_another(root: str, items: Mapping[str, Any], *, former: Manifest | None) -> None:
    fingerprint, committed = fingerprint_of(items), read_manifest(root)
    existing = committed and committed.fingerprint
    if former is None:
        if committed is not None and existing != fingerprint:
            raise _mismatch(root, committed.options, items)
    elif existing not in (former.fingerprint, fingerprint):
        raise OutputError(
            f"{root}: another job has written to this folder meanwhile: got fingerprint {existing}, expected "
            f"{former.fingerprint}",
            remedy="let one job at a time write to this folder, and run the same command again",
        )
    known = {fingerprint, *(_fingerprints(former) if former else ())}
    for name in [name for name in _work_names(root) if name not in known]:
        before = _read_job(root, name)
        if former is None:
            raise _mismatch(root, before, items)
        raise FingerprintMismatchError(
            f"{root}: another append has begun here and is not finished ({differences(before, items)})",
            remedy="run that command again to finish it, or abandon it with --append --overwrite, which keeps the "
            "finished dataset",
        )


def _work_names(root: str) -> list[str]:
    names = storage.list_names(storage.join(root, WORK_FOLDER))
    return [name for name in names if name != local_storage.LOCK_FILE and not name.startswith(INGESTED)]


def _read_job(root: str, fingerprint: str) -> Mapping[str, Any]:
    try:
        return mapping(json_fields.load(storage.read_bytes(storage.join(root, WORK_FOLDER, fingerprint, JOB_FILE))))
    except (FileNotFoundError, ValueError):
        return {}


def _changed_files(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    present = {file["name"] for file in now}
    names: dict[str, list[str]] = {"changed": [], "disappeared": []}
    for file in before:
        if file not in now:
            names["changed" if file["name"] in present else "disappeared"].append(str(file["name"]))
    return ", and ".join(
        f"{listing(files)} {'have' if len(files) > 1 else 'has'} {verb}" for verb, files in names.items() if files
    )


def _mismatch(root: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> FingerprintMismatchError:
    options = ({name: items[name] for name in items.keys() - {"append", "source"}} for items in (before, now))
    changed = differences(*options)
    of_source = differences(*({"source": items.get("source")} for items in (before, now)))
    # Files were added to the source, or rows were appended to this dataset already.
    old, new = ((items.get("source") or {}).get("files") for items in (before, now))
    kept = not (isinstance(old, list) and isinstance(new, list)) or all(file in new for file in old)
    is_object = (now.get("source") or {}).get("kind") == "object"  # an object's files are written for each call
    if before and not changed and not kept and not is_object and old and new:
        return FingerprintMismatchError(
            f"{root}: {_changed_files(old, new)} since the dataset was made",
            remedy="put the file back and new rows into another file, and add --append; choose another --output; or "
            "start over with --overwrite",
        )
    listed = "; ".join(filter(None, (changed, of_source))) or "rows were appended to it"
    add = "add new rows of the same source with --append, " if before and not changed and kept else ""
    return FingerprintMismatchError(
        f"{root}: holds a dataset made from something else ({listed if before else 'it is not known from what'})",
        remedy=f"{add}choose another --output, or start over with --overwrite",
    )
