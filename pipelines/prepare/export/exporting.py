"""An export from its request to its commit record: check, claim the folder, run the tasks, commit.

    OUT/
      export.json                           the commit record, written last
      NAME-SPLIT-00000-of-00012.SUFFIX      a file for each shard, two for megatron
      tokenizer/                            the dataset's
      README.md                             parquet: the card that says which file is of which split
      dataset_info.json, features.json      arrayrecord, tfrecord: what TFDS reads
      .prep/KEY/                            receipts, until the commit

KEY is the digest of everything that decides the bytes. What is there of the same key is kept, whoever made it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.dataset import own_files, tfds
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.export import example_files, export_record, export_tasks, parquet
from pipelines.prepare.export.export_record import ExportedFile, ExportedShard, ExportRecord
from pipelines.prepare.export.export_settings import ExportSettings
from pipelines.prepare.export.export_tasks import ExportTask
from pipelines.prepare.launch import task_runs
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.storage import locking
from tfrecord_io import manifest as manifests
from tfrecord_io.errors import ConfigError, OutputError
from tfrecord_io.manifest import Manifest, Shard, Split

__all__ = ["Exported", "Watch", "export"]

Watch = Callable[[int, Progress], contextlib.AbstractContextManager[None]]

_LIBRARIES = {"parquet": ("pyarrow",), "arrayrecord": ("array_record",)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """A finished export in `output`: its record, and how many shards this call exported and kept."""

    output: str
    record: ExportRecord
    shards_made: int
    shards_kept: int
    seconds: float


def export(
    root: str,
    settings: ExportSettings,
    *,
    output: str,
    splits: Sequence[str] = (),
    workers: int | None = None,
    beam_args: Sequence[str] = (),
    watch: Watch | None = None,
) -> Exported:
    """Export the dataset in `root` to the folder `output`, or what is missing of it.

    splits: default all. watch: a context that is entered with the number of rows to export and their counters.

    Raises: ManifestError if there is no finished dataset; ConfigError if it cannot be exported like this;
        CorruptRecordError for a damaged shard; OutputError if the folder holds something else or cannot be written.
    """
    began = time.perf_counter()
    manifest = own_files.require_manifest(root)
    export_tasks.check(manifest, settings)
    if beam_args:
        task_runs.check(beam_args, root=output)
    items = _items(manifest, settings, _chosen_splits(root, manifest, splits))
    key = hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()[:16]
    root, output = _absolute(root), _absolute(output)
    tasks = _tasks(root, manifest, settings, items["splits"], output=output, key=key)
    with locking.held(output, work_folder=WORK_FOLDER):
        record = _claim(output, key)
        missing = [task for task in tasks if task.shard.name not in _made(output, key, tasks, record)]
        progress = Progress()
        total = sum(task.shard.num_examples for task in missing)
        with watch(total, progress) if watch and missing else contextlib.nullcontext():
            _run(missing, output, key, workers=workers, beam_args=beam_args, progress=progress)
        record = _commit(root, output, manifest, settings, items, tasks, key=key, before=record)
    return Exported(
        output=output,
        record=record,
        shards_made=len(missing),
        shards_kept=len(tasks) - len(missing),
        seconds=time.perf_counter() - began,
    )


def _absolute(path: str) -> str:
    # Workers of other processes stand in other folders.
    return storage.local_path(path) or path.rstrip("/")


def _chosen_splits(root: str, manifest: Manifest, splits: Sequence[str]) -> list[str]:
    if unknown := [name for name in splits if name not in manifest.splits]:
        raise ConfigError(
            f"{root}: no split {unknown[0]!r}", remedy=f"choose among {', '.join(manifest.splits)} with --split"
        )
    return [name for name in manifest.splits if name in splits or not splits]


def _items(manifest: Manifest, settings: ExportSettings, splits: list[str]) -> dict[str, Any]:
    """Return everything that decides the bytes."""
    return {
        "dataset": {
            "name": manifest.name,
            "fingerprint": manifest.fingerprint,
            "manifest_sha256": manifests.digest(manifest),
        },
        "splits": splits,
        **settings.to_json(),
        "versions": {name: metadata.version(name) for name in _LIBRARIES.get(settings.to, ())},
    }


def _tasks(
    root: str, manifest: Manifest, settings: ExportSettings, splits: Iterable[str], *, output: str, key: str
) -> list[ExportTask]:
    slim = dataclasses.replace(manifest, source={}, options={}, engines={}, generations=(), splits={})
    described = {length: slim.bucket(length) for length in manifest.bucket_lengths}
    return [
        ExportTask(
            root=root,
            manifest=slim if shard.length is None else described[shard.length],
            split=split,
            shard=shard,
            settings=settings,
            output=output,
            stem=_stem(manifest, split, index, shard),
            key=key,
        )
        for split in splits
        for index, shard in enumerate(manifest.splits[split].shards)
    ]


def _stem(manifest: Manifest, split: str, index: int, shard: Shard) -> str:
    """Return a file's name without suffix: that of the shard, numbered anew where appends have left it uneven."""
    name = shard.name
    if manifest.generations and shard.length is None:
        count = len(manifest.splits[split].shards)
        name = manifests.shard_name(name=manifest.name, split=split, index=index, count=count)
    return name.removesuffix(".gz").removesuffix(".tfrecord")


def _claim(output: str, key: str) -> ExportRecord | None:
    """Check that the folder is new or of this export, and mark it; return the record of a finished export.

    Raises: OutputError if it holds something else.
    """
    own_files.refuse_links(output)
    record = export_record.read(output)
    keys = {name for name in storage.list_names(storage.join(output, WORK_FOLDER)) if name != locking.FILE_NAME}
    others = [name for name in storage.list_names(output) if name != WORK_FOLDER]
    if (record is not None and record.key != key) or keys - {key} or (others and record is None and key not in keys):
        held = "another export" if record is not None or keys else ", ".join(others[:3])
        raise OutputError(
            f"{output}: holds {held}, expected a new folder or what is there of this export",
            remedy="choose another --output, or delete that folder",
        )
    storage.make_folder(output)
    storage.sweep(output, below=True)
    storage.write_bytes(storage.join(output, WORK_FOLDER, key, "begun"), b"", inside=output)
    return record


def _made(output: str, key: str, tasks: Sequence[ExportTask], record: ExportRecord | None) -> dict[str, ExportedShard]:
    """Return the receipts of shards whose files are all there."""
    sizes = storage.sizes(output)
    paths = [export_tasks.receipt_path(output, key, task.shard.name) for task in tasks]
    there = set(storage.list_names(storage.join(output, WORK_FOLDER, key)))
    receipts = storage.read_many([path for path in paths if path.rpartition("/")[2] in there])
    parsed = [export_record.parse_receipt(content) for content in receipts if content is not None]
    known = {each.shard: each for each in (*(record.shards if record else ()), *filter(None, parsed))}
    return {
        task.shard.name: found
        for task in tasks
        if (found := known.get(task.shard.name)) is not None
        and found.shard_sha256 == task.shard.sha256
        and all(sizes.get(file.name) == file.num_bytes for file in found.files)
    }


def _run(
    tasks: Sequence[ExportTask],
    output: str,
    key: str,
    *,
    workers: int | None,
    beam_args: Sequence[str],
    progress: Progress,
) -> None:
    if tasks:
        task_runs.run(
            export_tasks.run,
            tasks,
            folder=storage.join(output, WORK_FOLDER, key),
            root=output,
            name="export",
            workers=workers,
            beam_args=beam_args,
            progress=progress,
        )


def _commit(
    root: str,
    output: str,
    manifest: Manifest,
    settings: ExportSettings,
    items: Mapping[str, Any],
    tasks: Sequence[ExportTask],
    *,
    key: str,
    before: ExportRecord | None,
) -> ExportRecord:
    made = _made(output, key, tasks, before)
    if missing := [task.shard.name for task in tasks if task.shard.name not in made]:
        raise OutputError(
            f"{output}: the job is done, but {len(missing)} files are not here, the first for {missing[0]}",
            remedy="workers on other machines need an --output that they share with this one, such as gs://",
        )
    beside = _files_beside(root, manifest, settings, list(made.values()))
    for name, content in beside.items():
        storage.write_bytes(storage.join(output, name), content, inside=output)
    record = ExportRecord(
        key=key,
        items=items,
        shards=tuple(made.values()),
        files=tuple(ExportedFile.of(name, content) for name, content in sorted(beside.items())),
    )
    storage.write_bytes(storage.join(output, export_record.FILE_NAME), record.dump(), inside=output)
    storage.delete(storage.join(output, WORK_FOLDER, key), inside=output)
    return record


def _files_beside(
    root: str, manifest: Manifest, settings: ExportSettings, made: Sequence[ExportedShard]
) -> dict[str, bytes]:
    """Return the files besides the shards' by name."""
    tokenizer = storage.read_folder(storage.join(root, "tokenizer"))
    beside = {f"tokenizer/{name}": content for name, content in tokenizer.items()}
    names: dict[str, list[str]] = {}
    for shard in made:
        names.setdefault(shard.split, []).append(shard.files[0].name)
    if settings.to == "parquet":
        beside[parquet.CARD] = parquet.card(manifest, names)
    elif settings.to in tfds.FILE_FORMATS:
        beside |= tfds.files(_as_exported(manifest, settings, made), file_format=tfds.FILE_FORMATS[settings.to])
    return beside


def _as_exported(manifest: Manifest, settings: ExportSettings, made: Sequence[ExportedShard]) -> Manifest:
    """Return a manifest that describes the exported files, as far as TFDS asks."""
    splits: dict[str, Split] = {}
    by_name = {shard.name: shard for split in manifest.splits.values() for shard in split.shards}
    for each in made:
        shard = dataclasses.replace(by_name[each.shard], num_bytes=each.files[0].num_bytes)
        before = splits[each.split].shards if each.split in splits else ()
        splits[each.split] = Split(shards=(*before, shard))
    schema = example_files.schema_of(manifest, settings)
    return dataclasses.replace(manifest, schema=schema, splits=splits, compression="none", generations=())
