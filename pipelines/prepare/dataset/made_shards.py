"""Finding the shards of a job that are already made: those with a valid receipt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.prepare import storage
from pipelines.prepare.dataset import receipts
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.receipts import Receipt
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.tokenize import engines
from tfrecord_io.errors import FormatError
from tfrecord_io.manifest import Shard

__all__ = ["find_receipts"]


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
    """Return whether these can be the shards of a task: one, or one for each of some of the job's lengths."""
    lengths = [shard.length for shard in shards]
    allowed: list[int | None] = [length for length in job.spec.layout.buckets if length in lengths] or [None]
    wanted = [(job.shard_name(task, length=length), None if length is None else task.index) for length in allowed]
    return lengths == allowed and [(shard.name, shard.task) for shard in shards] == wanted
