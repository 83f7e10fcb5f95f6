"""Trace a record of a shard back to its source rows (docs/design.md, "Repair and trace from the plan").

Filters and --hold-out run again. Unless each row becomes one record, the shard's rows are tokenized again.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.audit.reopened_dataset import ReopenedDataset, reopen
from pipelines.prepare.dataset import plan_files, rejected_rows
from pipelines.prepare.dataset.job import rejected_path
from pipelines.prepare.dataset.own_files import generations_of
from pipelines.prepare.layouts import layout_of, permuted
from pipelines.prepare.layouts.base import Lineage, Piece
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.shards import shard_writer
from pipelines.prepare.sources.columns import extraction
from pipelines.prepare.sources.rows.unused_rows import reasons_of
from tfrecord_io.errors import FormatError, ReaderError, SourceError
from tfrecord_io.manifest import Ledger, Manifest
from tfrecord_io.shown import some


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contribution:
    """A source row of a record. `texts`: the values of its columns.

    `row`: its number in the split. `file`, `file_row`: its file (None for the Hub or an object), and its number there.
    `tokens`: its range [start, stop) of the record's tokens; None if each row is one record.
    """

    row: int
    file: str | None
    file_row: int
    texts: dict[str, Any]
    tokens: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traced:
    """A traced record, with its source rows in order. `origin`: their split in the source; None if it is `split`."""

    split: str
    shard: str
    record: int
    source: str
    rows: tuple[Contribution, ...]
    origin: str | None = None


class Tracer:
    """Finds the source rows of a dataset's records. The first record of each shard takes longest."""

    def __init__(self, dataset: ReopenedDataset) -> None:
        self._dataset = dataset
        self._rows_of = functools.lru_cache(maxsize=1)(self._read_rows)

    def trace(self, *, split: str, shard: int, record: int) -> Traced:
        """Return the source rows of a record. `shard` and `record` count from 0. Raises: FormatError, ReaderError."""
        dataset = self._dataset
        splits = dataset.manifest.splits
        if split not in splits:
            raise ReaderError(f"no split {split!r}", remedy=f"choose among {', '.join(splits)}")
        if not 0 <= shard < len(splits[split].shards):
            raise ReaderError(f"split {split!r} has no shard {shard}", remedy=_which(len(splits[split].shards)))
        entry, job_split = splits[split].shards[shard], dataset.job.splits[split]
        if not 0 <= record < entry.num_examples:
            raise ReaderError(f"{entry.name} has no record {record}", remedy=_which(entry.num_examples))
        numbers, lineage = self._rows_of(split, shard)
        names, is_one_row = dataset.job.spec.columns.content, layout_of(dataset.job.spec.layout).one_record
        rows = []
        for piece in lineage(record):
            row = int(numbers[piece.row])
            ((_, batch),) = job_split.reader.read(dataset.pieces(split, [(row, row + 1)]), names)
            (content,) = batch.select(list(names)).to_pylist()
            file, file_row = dataset.locate(split, row)
            tokens = None if is_one_row else (piece.start, piece.stop)
            rows.append(Contribution(row=row, file=file, file_row=file_row, texts=content, tokens=tokens))
        return Traced(
            split=split,
            shard=entry.name,
            record=record,
            source=dataset.source_name,
            rows=tuple(rows),
            origin=None if job_split.source_split == split else job_split.source_split,
        )

    def first_rows(self, *, split: str, shard: int) -> np.ndarray:
        """Return for each of a shard's N records the number of its first source row, int64 [N]."""
        numbers, lineage = self._rows_of(split, shard)
        records = range(self._dataset.manifest.splits[split].shards[shard].num_examples)
        return np.array([numbers[lineage(record)[0].row] for record in records], np.int64)

    def _read_rows(self, split: str, shard: int) -> tuple[np.ndarray, Lineage]:
        dataset, made_by = self._dataset, self._dataset.manifest.splits[split]
        index, length = made_by.tasks[shard], made_by.shards[shard].length
        (task, _), ledger = dataset.task(split, index), made_by.by_task()[index][0].ledger
        rows = np.concatenate([np.arange(start, stop) for start, stop in task.row_ranges])
        if ledger.filtered:
            rows = _without_filtered(dataset, task, filtered=ledger.filtered)
        path = storage.join(dataset.job.root, rejected_path(split, index))
        rows = _without_rejected(rows, ledger, path=path)
        return rows, _lineage(dataset, task, num_rows=len(rows), length=length)


def _which(count: int) -> str:
    return "choose 0, the only number" if count == 1 else f"choose 0 to {count - 1:,}"


def _lineage(dataset: ReopenedDataset, task: ShardTask, *, num_rows: int, length: int | None) -> Lineage:
    job = dataset.job
    rng = shard_writer.shuffle_rng(job, task, length=length)
    if layout_of(job.spec.layout).one_record and length is None:
        order = permuted(num_rows, rng)
        return lambda record: [Piece(int(order[record]), 0, 0)]
    encoder = job.open_encoder()
    builder = encoder.builder()
    for numbers, batch in shard_writer.batches(job, task.split, task.located):
        rows, _ = extraction.extract(batch, job.spec.columns, numbers=numbers, split=task.split)
        builder.add(encoder.encode(rows))
    (of_length,) = (shard for shard in builder.by_length() if shard.length == length)
    return of_length.lineage(rng)


def _without_rejected(rows: np.ndarray, ledger: Ledger, *, path: str) -> np.ndarray:
    usable, rejected = rows, ledger.rows_rejected
    if rejected:
        with contextlib.suppress(FileNotFoundError, FormatError):
            listed = [row.row for row in rejected_rows.read(path)]
            usable = rows[~np.isin(rows, np.array(listed, np.int64))]
    if len(rows) - len(usable) != rejected:
        raise FormatError(
            f"{path}: {some(len(rows) - len(usable), 'rejected row')} of this shard, expected {rejected:,}",
            remedy="run `prep-tfrecords verify --repair` on the dataset, which writes this list again",
        )
    return usable


def _without_filtered(dataset: ReopenedDataset, task: ShardTask, *, filtered: Mapping[str, int]) -> np.ndarray:
    kept = [np.zeros(0, np.int64)]
    for numbers, batch in shard_writer.batches(dataset.job, task.split, task.located):
        reasons = reasons_of(batch)
        kept.append(numbers if reasons is None else numbers[reasons == ""])
    rows = np.concatenate(kept)
    if (now := task.num_rows - len(rows)) != (then := sum(filtered.values())):
        raise SourceError(
            f"{dataset.job.shard_name(task)}: the filters now remove {some(now, 'row')} ({', '.join(filtered)}), "
            f"but removed {then:,} when the shard was made: a filter's result for a row depends on more than that row",
            remedy="correct the filter, and build the dataset again with --overwrite",
        )
    return rows


def record_rows(root: str, manifest: Manifest, split: str) -> np.ndarray:
    """Return the source row number of each record of a split, int64 [N], in the order of shards and records.

    Raises: ReaderError if a record has tokens of several rows; FormatError for damage; the errors of `reopen`.
    """
    schema = manifest.schema
    if schema.with_role("num_tokens") is not None or schema.with_role("segment_ids") is not None:
        cause = f"{root}: records have tokens of several rows, expected one row per record"
        raise ReaderError(cause, remedy="run `prep-tfrecords trace` to see the rows of a record")
    shards = manifest.splits[split].shards
    if manifest.bucket_lengths or any(shard.ledger.filtered for shard in shards):
        tracer = Tracer(reopen(root, manifest))
        return np.concatenate([tracer.first_rows(split=split, shard=index) for index in range(len(shards))])
    numbers, seed = [], int(manifest.options["seed"])
    jobs = (generation.fingerprint for generation in generations_of(manifest) if split in generation.rows)
    planned = itertools.chain.from_iterable(plan_files.rows_of_shards(root, job, split) for job in jobs)
    for index, rows in enumerate(planned):
        rows = _without_rejected(rows, shards[index].ledger, path=storage.join(root, rejected_path(split, index)))
        rng = shard_writer.shard_rng(seed, split=split, index=index) if manifest.options["shuffle"] else None
        rows = rows[permuted(len(rows), rng)]
        if len(rows) != shards[index].num_examples:
            raise FormatError(
                f"{shards[index].name}: {some(shards[index].num_examples, 'record')}, expected one for each of its "
                f"{some(len(rows), 'row')}",
                remedy=f"run `prep-tfrecords verify {root} --repair`",
            )
        numbers.append(rows)
    return np.concatenate(numbers)
