"""Steps of an export: check the request, claim the folder, run a task for each shard, commit.

docs/format.md describes the output. Finished shards with the same key, the digest of everything that affects the files,
are kept. A shard is exported only after it was read completely and its digest matches the manifest.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import logging
import time
from importlib import metadata
from typing import Any

from pipelines.prepare import runners, storage
from pipelines.prepare.audit import verify
from pipelines.prepare.dataset import own_files
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.export import export_record, push
from pipelines.prepare.export.example_files import ArrayRecordWriter, TfrecordWriter
from pipelines.prepare.export.export_record import ExportedFile, ExportedShard, ExportRecord
from pipelines.prepare.export.export_settings import ExportFormat, ExportSettings
from pipelines.prepare.export.megatron import MegatronWriter
from pipelines.prepare.export.megatron_bridge import MegatronBridgeWriter
from pipelines.prepare.export.olmo import OlmoWriter
from pipelines.prepare.export.parquet import ParquetWriter
from pipelines.prepare.export.writer import Writer
from pipelines.prepare.options.addresses import ADDRESS
from pipelines.prepare.process.progress import Progress, Watch, unwatched
from pipelines.prepare.runners import here
from pipelines.prepare.runners.runner import Work
from pipelines.prepare.storage import local_storage
from tfrecord_io import examples
from tfrecord_io import manifest as manifests
from tfrecord_io.errors import ConfigError, OutputError
from tfrecord_io.manifest import Manifest, Shard
from tfrecord_io.shown import some

_log = logging.getLogger(__name__)

WRITERS: dict[ExportFormat, type[Writer]] = {
    "parquet": ParquetWriter,
    "arrayrecord": ArrayRecordWriter,
    "megatron": MegatronWriter,
    "megatron-bridge": MegatronBridgeWriter,
    "olmo": OlmoWriter,
    "tfrecord": TfrecordWriter,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
    """Result of an export to the folder `root`. `shards_kept`: shards that earlier runs exported."""

    root: str
    shards: tuple[ExportedShard, ...] = dataclasses.field(repr=False)
    shards_made: int
    shards_kept: int
    seconds: float


def export(root: str, settings: ExportSettings, *, watch: Watch = unwatched) -> Exported:
    """Export the dataset in `root`, or complete an unfinished export.

    Raises: ManifestError if there is no finished dataset; ConfigError if the settings do not fit it; CorruptRecordError
    for a damaged shard; OutputError.
    """
    began = time.perf_counter()
    manifest = own_files.require_manifest(root)
    if unknown := [name for name in settings.splits if name not in manifest.splits]:
        raise ConfigError(f"{root}: no split {unknown[0]!r}", remedy=f"choose among {', '.join(manifest.splits)}")
    writer = WRITERS[settings.to](manifest, settings)
    writer.check()
    runner = runners.choose(settings.beam_args, workers=settings.workers)
    runner.check(settings.output)
    if settings.push:
        push.prepare(settings.push, settings.output)
    # Worker processes may have a different current folder.
    root, output = (storage.local_path(path) or path.rstrip("/") for path in (root, settings.output))
    job = _Job(root=root, manifest=manifest, settings=dataclasses.replace(settings, output=output))
    with local_storage.locked(output):
        job.claim()
        kept = job.finished()
        missing = [task for task in job.tasks if task.shard.name not in kept]
        progress, total = Progress(), sum(task.shard.num_examples for task in missing)
        if missing:
            largest = max(task.shard.num_bytes for task in missing)
            with watch("exporting", total, progress), here.deaths_reported():
                work = Work(
                    function=export_shard,
                    tasks=missing,
                    processes=here.num_processes(len(missing), task_bytes=largest, wanted=settings.workers),
                    name="export",
                    place=f"{output} {job.work}",
                )
                runner.run(work, progress)
        record = job.commit()
        if settings.push:
            push.upload(settings.push, output)
    counts = sum((collections.Counter(shard.counts) for shard in record.shards), collections.Counter[str]())
    if note := writer.note(counts):
        _log.warning("%s", note)
    seconds, num_kept = time.perf_counter() - began, len(job.tasks) - len(missing)
    return Exported(root=output, shards=record.shards, shards_made=len(missing), shards_kept=num_kept, seconds=seconds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportTask:
    """Task that exports one shard. `stem`: the shard's name in names of exported files. `key`: name of the work folder.

    `manifest`: the dataset's manifest without splits, with this shard's record length.
    """

    root: str
    manifest: Manifest
    split: str
    shard: Shard
    settings: ExportSettings
    stem: str
    key: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    root: str
    manifest: Manifest
    settings: ExportSettings

    @property
    def output(self) -> str:
        return self.settings.output

    @property
    def work(self) -> str:
        return storage.join(self.output, WORK_FOLDER, self.key)

    @functools.cached_property
    def items(self) -> dict[str, Any]:
        # Use the file's digest, since another release may write the same manifest in a different format version.
        content = storage.read_bytes(storage.join(self.root, manifests.FILE_NAME))
        dataset = {"name": self.manifest.name, "fingerprint": self.manifest.fingerprint}
        return {
            "dataset": {**dataset, "manifest_sha256": hashlib.sha256(content).hexdigest()},
            "splits": [
                name for name in self.manifest.splits if name in self.settings.splits or not self.settings.splits
            ],
            **self.settings.to_json(),
            "versions": {name: metadata.version(name) for name in WRITERS[self.settings.to].packages},
        }

    @functools.cached_property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.items, sort_keys=True).encode()).hexdigest()[:16]

    @functools.cached_property
    def tasks(self) -> list[ExportTask]:
        slim = dataclasses.replace(self.manifest, source={}, options={}, engines={}, generations=(), splits={})
        described: dict[int | None, Manifest] = {length: slim.bucket(length) for length in slim.bucket_lengths}
        new_task = functools.partial(ExportTask, root=self.root, settings=self.settings, key=self.key)
        tasks = []
        for split in self.items["splits"]:
            shards = self.manifest.splits[split].shards
            for index, shard in enumerate(shards):
                name = shard.name
                if self.manifest.generations and shard.length is None:  # number the shards of all generations together
                    name = manifests.shard_name(name=self.manifest.name, split=split, index=index, count=len(shards))
                stem = name.removesuffix(".gz").removesuffix(".tfrecord")
                tasks.append(new_task(manifest=described.get(shard.length, slim), split=split, shard=shard, stem=stem))
        return tasks

    def claim(self) -> None:
        own_files.refuse_links(self.output)
        works = storage.list_names(storage.join(self.output, WORK_FOLDER))
        keys = {name for name in works if name != local_storage.LOCK_FILE}
        content = [name for name in storage.list_names(self.output) if name != WORK_FOLDER]
        if (record := export_record.read(self.output)) is not None:
            keys.add(record.key)
        if keys - {self.key} or (content and not keys):
            raise OutputError(
                f"{self.output}: the folder holds {'another export' if keys else ', '.join(content[:3])}, expected a "
                "new folder or an unfinished export of the same dataset and options",
                remedy="choose another --output, or delete that folder",
            )
        storage.make_folder(self.output)
        storage.sweep(self.output, below=True)
        storage.write_bytes(storage.join(self.work, "begun"), b"", inside=self.output)

    def finished(self) -> dict[str, ExportedShard]:
        record, sizes = export_record.read(self.output), storage.sizes(self.output)
        paths = [storage.join(self.work, name) for name in storage.list_names(self.work) if name.endswith(".json")]
        receipts = (export_record.receipt_of(content) for content in storage.read_many(paths) if content is not None)
        known = {exported.shard: exported for exported in (*(record.shards if record else ()), *filter(None, receipts))}
        return {
            shard.name: exported
            for shard in (task.shard for task in self.tasks)
            if (exported := known.get(shard.name)) is not None
            and exported.shard_sha256 == shard.sha256
            and all(sizes.get(file.name) == file.num_bytes for file in exported.files)
        }

    def commit(self) -> ExportRecord:
        finished = self.finished()
        if missing := [task.shard.name for task in self.tasks if task.shard.name not in finished]:
            raise OutputError(
                f"{self.output}: the job is done, but {some(len(missing), 'exported shard')} cannot be found here; the "
                f"first is that of {missing[0]}",
                remedy=f"give an --output that the workers share with this machine, such as {ADDRESS}BUCKET/FOLDER",
            )
        tokenizer = storage.read_folder(storage.join(self.root, "tokenizer"))
        exported = {
            split: [(shard, finished[shard.name].files[0]) for shard in self.manifest.splits[split].shards]
            for split in self.items["splits"]
        }
        beside = {f"tokenizer/{name}": content for name, content in tokenizer.items()}
        beside |= WRITERS[self.settings.to](self.manifest, self.settings).files_beside(exported)
        for name, content in beside.items():
            storage.write_bytes(storage.join(self.output, name), content, inside=self.output)
        record = ExportRecord(
            key=self.key,
            items=self.items,
            shards=tuple(finished.values()),
            files=tuple(ExportedFile.of(name, content) for name, content in sorted(beside.items())),
        )
        place = storage.join(self.output, export_record.FILE_NAME)
        storage.write_bytes(place, export_record.dump(record), inside=self.output)
        storage.delete(self.work, inside=self.output)
        return record


def export_shard(task: ExportTask, progress: Progress) -> dict[str, int]:
    """Export one shard; return {"rows": number of its rows}. Raises: CorruptRecordError, OutputError."""
    place = storage.join(task.root, task.shard.name)
    batches_of_bytes = verify.read_shard(task.root, task.shard, task.manifest)
    batches = (examples.decode(payloads, task.manifest.schema, place=place) for payloads in batches_of_bytes)
    writer, files = WRITERS[task.settings.to](task.manifest, task.settings), []
    for pattern, content in writer.files(batches).items():
        name = pattern.format(task.stem)
        storage.write_bytes(storage.join(task.settings.output, name), content, inside=task.settings.output)
        files.append(ExportedFile.of(name, content))
    receipt = ExportedShard(
        split=task.split,
        shard=task.shard.name,
        shard_sha256=task.shard.sha256,
        num_examples=task.shard.num_examples,
        num_tokens=task.shard.num_tokens,
        files=tuple(files),
        counts=writer.counts,
    )
    path = storage.join(task.settings.output, WORK_FOLDER, task.key, f"{task.shard.name}.json")
    storage.write_bytes(path, export_record.dump(receipt), inside=task.settings.output)
    num_bytes = sum(file.num_bytes for file in files)
    progress.add(rows=receipt.num_examples, tokens=receipt.num_tokens, num_bytes=num_bytes, shards=1)
    return {"rows": receipt.num_examples}
