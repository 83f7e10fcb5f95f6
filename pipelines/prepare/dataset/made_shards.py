"""Finding the shards of a job that are already made: those with a valid receipt."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from pipelines.prepare import storage
from pipelines.prepare.dataset import own_files, receipts
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.receipts import Receipt
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.tokenize import engines
from tfrecord_io.errors import FormatError
from tfrecord_io.manifest import Shard

__all__ = ["find_receipts", "find_unharmed"]


def find_receipts(job: Job, tasks: Sequence[ShardTask]) -> list[Receipt | None]:
    """Return each task's receipt if it is valid, else None.

    A receipt is valid if it is of this very task, its shards have the recorded sizes, and, with --engine hf, the
    reference made them. Receipts are listed and read many at a time, since there may be thousands of them far away.
    """
    sizes = storage.sizes(job.root)
    existing = {
        storage.join(job.work_path(split), name)
        for split in sorted({task.split for task in tasks})
        for name in storage.list_names(job.work_path(split))
    }
    wanted = [job.receipt_path(task) for task in tasks]
    found = [path for path in wanted if path in existing]
    contents = dict(zip(found, storage.read_many(found), strict=True))
    valid = [
        _valid_receipt(job, task, contents.get(path), sizes=sizes, path=path)
        for task, path in zip(tasks, wanted, strict=True)
    ]
    if job.engine != "hf":
        return valid
    return [receipt if receipt and engines.is_reference(receipt.engine) else None for receipt in valid]


def find_unharmed(job: Job, tasks: Sequence[ShardTask]) -> list[Receipt | None]:
    """Return each task's receipt if it is valid, and its shards still have the recorded digests; else None.

    A local digest takes a second of a core for 1 GB, which the fastest engine makes in ten. Shards that the manifest
    names are for `verify` to read, and so are those on remote storage, which would have to be downloaded.
    """
    found = find_receipts(job, tasks)
    if storage.local_path(job.root) is None:
        return found
    committed = own_files.read_manifest(job.root)
    splits = committed.splits.values() if committed else ()
    known = {shard.sha256 for split in splits for shard in split.shards}

    def unharmed(receipt: Receipt | None) -> Receipt | None:
        new = [shard for shard in receipt.shards if shard.sha256 not in known] if receipt else []
        return receipt if all(_digest(storage.join(job.root, shard.name)) == shard.sha256 for shard in new) else None

    return list(ordered_map(unharmed, found, threads=cores()))


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with storage.read_stream(path) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _valid_receipt(
    job: Job, task: ShardTask, content: bytes | None, *, sizes: Mapping[str, int], path: str
) -> Receipt | None:
    if content is None:
        return None
    try:
        receipt = receipts.parse(content, path=path)
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
    """Whether these can be the shards of a task: one, or one for each of some of the job's lengths."""
    lengths = [shard.length for shard in shards]
    allowed: list[int | None] = [length for length in job.spec.layout.buckets if length in lengths] or [None]
    wanted = [(job.shard_name(task, length=length), None if length is None else task.index) for length in allowed]
    return lengths == allowed and [(shard.name, shard.task) for shard in shards] == wanted
