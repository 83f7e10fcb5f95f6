"""From a record of a shard back to the rows of the source that are in it.

    plan          the rows of the shard, in the order in which they were read
    ledger        minus those that were rejected (rejected/SPLIT-IIIII.jsonl names them), or left out on purpose, by
                  filters and by --hold-out (which are asked again)
    seed          permuted by (seed, split, shard), as when the shard was made
    layout        pad: record j is the j-th of them (with --bucket-lengths, of those that have the shard's length)
                  concat: record j holds tokens [j L, (j + 1) L) of all of them joined; and so on

Nothing is stored for this. Where a row is not just one record, the shard's rows have to be tokenized again, for their
lengths.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipelines.prepare.audit.reopened_dataset import ReopenedDataset
from pipelines.prepare.dataset import rejected_rows
from pipelines.prepare.layouts import Builder, layout_of, length_groups, permuted
from pipelines.prepare.layouts.base import Lineage, Piece
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.shards import shard_writer
from pipelines.prepare.sources.columns import extraction
from pipelines.prepare.sources.rows.left_out import codes_of
from tfrecord_io.errors import FormatError, ReaderError, SourceError
from tfrecord_io.manifest import Ledger, Manifest, Shard

__all__ = ["Contribution", "Traced", "Tracer"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contribution:
    """A row that is in a record: its number in the split, the file and the row there (None for a hub dataset), its
    texts by column, and which tokens [start, stop) of the record are of it (None where the record is this one row).
    """

    row: int
    file: str | None
    file_row: int
    texts: dict[str, Any]
    tokens: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traced:
    """A record, and the rows that it was made from, in order. `source` names the dataset, and `origin` its split that
    the rows are numbered in, where that has another name.
    """

    split: str
    shard: str
    record: int
    source: str
    rows: tuple[Contribution, ...]
    origin: str | None = None


class Tracer:
    """Traces records of one dataset; those of one shard, one after another, at little cost."""

    def __init__(self, dataset: ReopenedDataset) -> None:
        self._dataset = dataset
        self._rows: tuple[tuple[ShardTask, int | None], _ShardRows] | None = None

    def trace(self, *, split: str, shard: int, record: int) -> Traced:
        """Where a record comes from; shards and records count from 0.

        Raises: ReaderError if there is no such record; FormatError if the list of rejected rows is gone or damaged.
        """
        dataset = self._dataset
        whole = layout_of(dataset.job.spec.layout).one_record
        entry = _shard(dataset.manifest, split=split, shard=shard, record=record)
        made_by = dataset.manifest.splits[split]
        task = made_by.task_of(shard)
        rejecting = made_by.by_task()[task][0].ledger
        rows = self._shard_rows(dataset.task(split, task), ledger=rejecting, length=entry.length)
        origin = dataset.job.splits[split].source_split
        return Traced(
            split=split,
            shard=entry.name,
            record=record,
            source=dataset.source_name,
            rows=tuple(
                _contribution(dataset, split, row, None if whole else tokens) for row, tokens in rows.of(record)
            ),
            origin=None if origin == split else origin,
        )

    def _shard_rows(self, task: ShardTask, *, ledger: Ledger, length: int | None) -> _ShardRows:
        if self._rows is None or self._rows[0] != (task, length):
            self._rows = (task, length), _shard_rows(self._dataset, task, ledger=ledger, length=length)
        return self._rows[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ShardRows:
    """The usable rows int64 [N] of a shard in reading order, and which of them a record is made of."""

    numbers: np.ndarray
    lineage: Lineage

    def of(self, record: int) -> list[tuple[int, tuple[int, int]]]:
        """The rows in a record, with their tokens [start, stop) there."""
        return [(int(self.numbers[piece.row]), (piece.start, piece.stop)) for piece in self.lineage(record)]


def _shard(manifest: Manifest, *, split: str, shard: int, record: int) -> Shard:
    if split not in manifest.splits:
        raise ReaderError(f"no split {split!r}", remedy=f"choose among {', '.join(manifest.splits)}")
    entries = manifest.splits[split].shards
    if not 0 <= shard < len(entries):
        raise ReaderError(f"split {split!r} has no shard {shard}", remedy=_which(len(entries)))
    if not 0 <= record < entries[shard].num_examples:
        raise ReaderError(f"{entries[shard].name} has no record {record}", remedy=_which(entries[shard].num_examples))
    return entries[shard]


def _which(count: int) -> str:
    return "there is only number 0" if count == 1 else f"choose 0 to {count - 1:,}"


def _shard_rows(dataset: ReopenedDataset, task: ShardTask, *, ledger: Ledger, length: int | None) -> _ShardRows:
    """`ledger` counts the task's rejected rows; `length` is that of the shard's rows, where there are several."""
    usable = _usable_rows(dataset, task, ledger=ledger)
    rng = shard_writer.shuffle_rng(dataset.job, task, length=length)
    if layout_of(dataset.job.spec.layout).one_record and length is None:
        return _ShardRows(numbers=usable, lineage=_one_by_one(permuted(len(usable), rng)))
    (group,) = (each for each in length_groups(_tokenized(dataset, task)) if each.length == length)
    return _ShardRows(numbers=usable, lineage=group.lineage(rng))


def _one_by_one(order: np.ndarray) -> Lineage:
    return lambda record: [Piece(int(order[record]), 0, 0)]


def _usable_rows(dataset: ReopenedDataset, task: ShardTask, *, ledger: Ledger) -> np.ndarray:
    """Row numbers int64 [N] in reading order."""
    rows = np.concatenate([np.arange(start, stop) for start, stop in task.row_ranges])
    if ledger.rows_left_out:
        rows = _rows_that_stay(dataset, task, left_out=ledger.left_out)
    rejected = sum(ledger.unusable.values())
    if not rejected:
        return rows
    path = dataset.job.rejected_path(task)
    try:
        named = [row.row for row in rejected_rows.read(path)]
        usable = rows[~np.isin(rows, np.array(named, np.int64))]
    except (FileNotFoundError, FormatError):
        usable = rows
    if len(rows) - len(usable) != rejected:
        raise FormatError(
            f"{path}: names {len(rows) - len(usable)} rows of this shard, but {rejected} were rejected",
            remedy="run `prep-tfrecords verify --repair` on the dataset, which writes it again",
        )
    return usable


def _rows_that_stay(dataset: ReopenedDataset, task: ShardTask, *, left_out: Mapping[str, int]) -> np.ndarray:
    """Row numbers int64 [N] of those that are not left out on purpose, which is asked again."""
    stay = [np.zeros(0, np.int64)]
    for first, batch in shard_writer.batches(dataset.job, task.split, task.located):
        codes = codes_of(batch)
        stay.append(first + (np.arange(batch.num_rows) if codes is None else np.flatnonzero(codes == 0)))
    rows = np.concatenate(stay)
    if (now := task.num_rows - len(rows)) != (then := sum(left_out.values())):
        raise SourceError(
            f"{dataset.job.shard_name(task)}: {now} of its rows are left out now ({', '.join(left_out)}), but {then} "
            "when it was made: what a filter says of a row does not depend on that row alone",
            remedy="build the dataset anew with filters that do, and --overwrite",
        )
    return rows


def _tokenized(dataset: ReopenedDataset, task: ShardTask) -> Builder:
    """The shard as it was before it was laid out."""
    encoder = dataset.open_encoder()
    builder = encoder.builder()
    for first, batch in shard_writer.batches(dataset.job, task.split, task.located):
        rows, _ = extraction.extract(batch, dataset.job.spec.columns, first=first)
        builder.add(encoder.encode(rows))
    return builder


def _contribution(dataset: ReopenedDataset, split: str, row: int, tokens: tuple[int, int] | None) -> Contribution:
    names = dataset.job.spec.columns.content
    reader = dataset.job.splits[split].reader
    ((_, batch),) = reader.read(dataset.pieces(split, [(row, row + 1)]), names)
    (content,) = batch.select(list(names)).to_pylist()
    file, file_row = dataset.locate(split, row)
    return Contribution(row=row, file=file, file_row=file_row, texts=content, tokens=tokens)
