"""Receipts: small JSON files, written after a task's shards. A shard with a valid receipt is not made again."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.sources.rows.unused_rows import RejectedRow
from pipelines.prepare.tokenize import engines
from tfrecord_io.errors import LedgerError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import WRONG, Count, Fingerprint, Name, decoded, integer, items, mapping
from tfrecord_io.manifest import LabelRange, Ledger, Shard, Split
from tfrecord_io.shown import some

# Maximum number of distinct labels to count; class ids have fewer.
_MOST_LABELS = 10_000


def _integers(value: Any) -> tuple[int, ...] | None:  # thirty times as fast as `decoded`
    return None if value is None else tuple(map(integer, items(value)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Receipt:
    """Result of the task `index` of a split: its shard, or one shard per record length.

    `engine`: the engine's name and version. `rows_checked`: rows that the reference engine also tokenized, with the
    same result. `labels`: the distinct integer labels if they have no names (see `with_labels`), else None.
    """

    fingerprint: Fingerprint
    split: Name
    index: Count
    shards: tuple[Shard, ...]
    engine: str
    rows_checked: Count
    first_rejected: tuple[RejectedRow, ...] = ()
    labels: Annotated[tuple[int, ...] | None, _integers] = None

    @property
    def ledger(self) -> Ledger:
        return Ledger.total(shard.ledger for shard in self.shards)


def with_labels(known: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Return the distinct values of both integer arrays, ascending: at most the smallest 10,000 and the largest."""
    labels = np.union1d(known, more)
    return np.append(labels[:_MOST_LABELS], labels[-1]) if len(labels) > _MOST_LABELS else labels


def dump(receipt: Receipt) -> bytes:
    """Return a receipt as JSON."""
    document = {**dataclasses.asdict(receipt), "shards": [shard.to_json() for shard in receipt.shards]}
    return (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()


def parse(text: bytes) -> Receipt:
    """Parse the JSON of a receipt. Raises: ValueError or KeyError if it is damaged."""
    receipt: Receipt = decoded(Receipt, {"labels": None, **mapping(json_fields.load(text))})
    # A manifest would refuse shards without examples or with a wrong ledger.
    if not receipt.shards or not all(shard.num_examples and shard.ledger.balanced for shard in receipt.shards):
        raise ValueError("it lists no shard, no example, or rows that are neither used nor rejected")
    return receipt


def to_split(receipts: Sequence[Receipt], *, rows_in: int) -> Split:
    """Combine all receipts of a split into the split's manifest entry. `rows_in`: rows in the split's plan.

    Raises: LedgerError if rows are missing or were counted twice.
    """
    in_order = [shard for receipt in sorted(receipts, key=lambda receipt: receipt.index) for shard in receipt.shards]
    by_length = tuple(sorted(in_order, key=lambda shard: shard.length or 0))
    # The label range is None if there are no labels, or a receipt omits them.
    known = [np.array(receipt.labels, np.int64) for receipt in receipts if receipt.labels is not None]
    labels = functools.reduce(with_labels, known, np.zeros(0, np.int64))
    label_range = None
    if len(labels) and len(known) == len(receipts):
        distinct = len(labels) if len(labels) <= _MOST_LABELS else None
        label_range = LabelRange(smallest=int(labels[0]), largest=int(labels[-1]), distinct=distinct)
    split = Split(shards=by_length, labels=label_range)
    ledger = split.ledger
    if ledger.rows_in != rows_in:
        raise LedgerError(
            f"of {some(rows_in, 'planned row')}, {ledger.rows_in:,} were read, {ledger.rows_used:,} used, "
            f"{ledger.rows_rejected:,} rejected and {ledger.rows_filtered:,} filtered, expected all to be read once",
            remedy="please report this with the plan and the receipts in .prep/",
        )
    return split


def find(job: Job, tasks: Sequence[ShardTask]) -> list[Receipt | None]:
    """Return each task's valid receipt, in the same order; None if it has none.

    A receipt is valid if it belongs to exactly this task, and its shards have the recorded sizes. With --engine hf, the
    reference engine must also have made these shards.
    """
    sizes = storage.sizes(job.root)
    existing = {
        storage.join(job.work_path(split), name)
        for split in sorted({task.split for task in tasks})
        for name in storage.list_names(job.work_path(split))
    }
    paths = [path for path in map(job.receipt_path, tasks) if path in existing]
    contents = dict(zip(paths, storage.read_many(paths), strict=True))

    def valid(task: ShardTask) -> Receipt | None:
        try:
            receipt = parse(contents.get(job.receipt_path(task)) or b"")
        except WRONG:
            return None
        lengths = [shard.length for shard in receipt.shards]
        allowed: list[int | None] = [length for length in job.spec.layout.buckets if length in lengths] or [None]
        shards = [(job.shard_name(task, length=size), size, None if size is None else task.index) for size in allowed]
        is_of_task = (
            (receipt.fingerprint, receipt.split, receipt.index) == (job.fingerprint, task.split, task.index)
            and receipt.ledger.rows_in == task.num_rows
            and [(shard.name, shard.length, shard.task) for shard in receipt.shards] == shards
        )
        is_whole = all(sizes.get(shard.name) == shard.num_bytes for shard in receipt.shards)
        is_by_engine = job.engine != "hf" or engines.is_reference(receipt.engine)
        return receipt if is_of_task and is_whole and is_by_engine else None

    return list(map(valid, tasks))
