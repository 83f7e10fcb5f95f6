"""A task: one shard of a dataset read, checked, and written in another format, with a receipt.

    shard ──► crcs, digest ──► records ──► NAME.parquet, or NAME.bin and NAME.idx, … ──► .prep/KEY/SHARD.json

Nothing is written before the whole shard was read and its digest is that of the manifest.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.audit import verify
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.export import example_files, export_record, megatron, parquet, token_columns
from pipelines.prepare.export.export_record import ExportedFile, ExportedShard
from pipelines.prepare.export.export_settings import ExportSettings
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.workers import Done
from tfrecord_io import examples
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Manifest, Shard

_WRITERS: dict[str, Any] = {
    "parquet": parquet.files,
    "megatron": megatron.files,
    "tfrecord": example_files.tfrecord_files,
    "arrayrecord": example_files.array_record_files,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportTask:
    """A shard to export. `manifest` is that of the dataset in `root` without its splits; its rows have the shard's
    length. The files go to the folder `output`, named `stem` and a suffix, and the receipt to the work folder of `key`.
    """

    root: str
    manifest: Manifest
    split: str
    shard: Shard
    settings: ExportSettings
    output: str
    stem: str
    key: str


def check(manifest: Manifest, settings: ExportSettings) -> None:
    """Raise ConfigError if a dataset cannot be exported like this."""
    if settings.to == "megatron":
        megatron.check(manifest, settings)
    elif settings.documents and not token_columns.joins_documents(manifest):
        raise ConfigError(
            f"--documents with layout {manifest.layout['name']}: no row holds several documents",
            remedy="leave it out: its rows are documents without padding already",
        )
    elif settings.to == "parquet":
        settings.chosen(parquet.names(manifest, settings))
    else:
        example_files.schema_of(manifest, settings)
    if settings.to == "arrayrecord":
        example_files.require_library()


def run(task: ExportTask, progress: Progress) -> Done:
    """Export one shard.

    Raises: CorruptRecordError if the shard is not that of the manifest; OutputError.
    """
    place = storage.join(task.root, task.shard.name)
    batches = (
        examples.decode(payloads, task.manifest.schema, place=place)
        for payloads in verify.read_shard(task.root, task.shard, task.manifest)
    )
    files = []
    for suffix, content in _WRITERS[task.settings.to](batches, task.manifest, task.settings).items():
        name = f"{task.stem}{suffix}"
        storage.write_bytes(storage.join(task.output, name), content, inside=task.output)
        files.append(ExportedFile.of(name, content))
    receipt = ExportedShard(
        split=task.split,
        shard=task.shard.name,
        shard_sha256=task.shard.sha256,
        num_examples=task.shard.num_examples,
        num_tokens=task.shard.num_tokens,
        files=tuple(files),
    )
    path = storage.join(task.output, WORK_FOLDER, task.key, f"{task.shard.name}.json")
    storage.write_bytes(path, export_record.dump(receipt), inside=task.output)
    num_bytes = sum(file.num_bytes for file in files)
    progress.add(rows=receipt.num_examples, tokens=receipt.num_tokens, num_bytes=num_bytes, shards=1)
    return Done(counts={"rows": receipt.num_examples})
