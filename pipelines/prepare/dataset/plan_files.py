"""Plans on disk: one Parquet file for a split, OUT/.prep/FINGERPRINT/SPLIT/plan.parquet.

    columns     a row for each run of rows that is read together, in the order of shards: its shard, its rows, its file
    row groups  64 shards each, so that a worker decodes one
    metadata    `plan`, as JSON: the rows of each shard and of each file of the source

Only (split, index, count) of a task travels, a few bytes; a worker looks up the rest here.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare import storage
from pipelines.prepare.dataset import reservation
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.plan.planning import RowRanges, ShardTask, SplitPlan
from pipelines.prepare.sources.parquet.groups import Groups, Pieces, StoredFile
from tfrecord_io.errors import FingerprintMismatchError, FormatError, OutputError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import NAME, WRONG, count, items, mapping, text

__all__ = [
    "TaskKey",
    "folder",
    "key_of",
    "read",
    "read_file_rows",
    "require",
    "rows_of_shards",
    "task_of",
    "write",
]

# A task as plain values: split, index, count.
TaskKey = tuple[str, int, int]

_GROUP_SHARDS = 64
# A row group has at most about this many pieces: fewer shards, if groups of the source are tiny.
_GROUP_PIECES = 1 << 18
_PLANS_HELD = 4
# Bounds within which no sum over a row group overflows int64, and memory stays small.
_MOST_COUNT, _MOST_START, _MOST_PIECES = 1 << 40, 1 << 62, 1 << 22

_FILE = "plan.parquet"
_START_OVER = "start over with --overwrite"
_COPY = "copy .prep/ again from where the dataset was made, or build it anew with --overwrite"
_SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=name == "stamp")
        for name, kind in {
            "shard": pa.int32(),
            "start": pa.int64(),
            "count": pa.int64(),
            "skip": pa.int64(),
            "row_group": pa.int64(),
            "path": pa.string(),
            "size": pa.int64(),
            "ingested": pa.bool_(),
            "version": pa.string(),
            "stamp": pa.int64(),
        }.items()
    ]
)
_DAMAGED = (*WRONG, pa.ArrowException, OSError)


def key_of(task: ShardTask) -> TaskKey:
    """Return the key of a task, from which `task_of` finds it again."""
    return task.split, task.index, task.count


def folder(root: str, fingerprint: str, split: str) -> str:
    """Return the folder with the plan of a split."""
    return storage.join(root, WORK_FOLDER, fingerprint, split)


def write(job: Job, plan: SplitPlan, groups: Groups) -> None:
    """Write the plan of a split that has none, before any of its shards.

    Raises: OutputError if another job has written another plan meanwhile (on a local disk the lock prevents that).
    """
    groups = dataclasses.replace(groups, files=tuple(_relative(job.root, file) for file in groups.files))
    shard_pieces = (len(groups) + len(plan.spans_of(0, plan.num_shards))) / plan.num_shards
    step = max(1, min(_GROUP_SHARDS, int(_GROUP_PIECES / shard_pieces)))
    document = {
        "split": plan.split,
        "origin": plan.source_split,
        "ranges": plan.ranges,
        "predicted_bytes": plan.predicted_bytes,
        "rows": plan.rows,
        "tasks_before": plan.tasks_before,
        "group_shards": step,
        "file_rows": groups.source_rows.tolist(),
    }
    sink = pa.BufferOutputStream()
    schema = _SCHEMA.with_metadata({"plan": json.dumps(document)})
    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
        for first in range(0, plan.num_shards, step):
            rows = plan.rows[first : first + step]
            pieces = groups.pieces(plan.spans_of(first, first + len(rows)))
            writer.write_table(_table(pieces, first=first, rows=rows), row_group_size=len(pieces))
    _content.cache_clear()
    storage.write_bytes(_path(job, plan.split), sink.getvalue(), inside=job.root, replacing=0)


def read(job: Job, split: str) -> SplitPlan | None:
    """Return the plan that an earlier run left, without spans; None if there is none.

    Raises: FingerprintMismatchError if it was made for other rows of the split; FormatError if it is damaged.
    """
    try:
        plan = _PlanFile.read(_path(job, split)).plan
    except FileNotFoundError:
        return None
    asked, path = job.splits[split], _path(job, split)
    if (plan.source_split, plan.ranges) != (asked.source_split, asked.ranges):
        raise FingerprintMismatchError(
            f"{job.root}: split {split!r} was planned for the rows {_shown(plan.source_split, plan.ranges)}, "
            f"but now the rows {_shown(asked.source_split, asked.ranges)} are asked for",
            remedy="choose another --output, or start over with --overwrite",
        )
    if (plan.split, plan.tasks_before) != (split, asked.tasks_before):
        raise FormatError(
            f"{path}: the plan of split {plan.split!r} from task {plan.tasks_before} on, expected {split!r} from task "
            f"{asked.tasks_before} on",
            remedy=_START_OVER,
        )
    return plan


def require(job: Job, split: str) -> SplitPlan:
    """Return the plan of a finished dataset. Raises: FormatError if it is not there; as `read`."""
    plan = read(job, split)
    if plan is None:
        raise _missing(job.work_path(split))
    return plan


def read_file_rows(folder: str) -> np.ndarray:
    """Return the rows of each file of the split whose plan is in `folder`, int64 [S]. Raises: FormatError."""
    return np.array(_PlanFile.require(folder).file_rows, np.int64)


def rows_of_shards(root: str, fingerprint: str, split: str) -> Iterator[np.ndarray]:
    """Yield the numbers of the rows of each shard in reading order, int64 [N]; needs the plan alone, not the source.

    Raises: FormatError if the plan is gone or damaged.
    """
    stored = _PlanFile.require(folder(root, fingerprint, split))
    for index in range(stored.plan.num_shards):
        pieces = stored.pieces(index)
        spans = zip(pieces.starts.tolist(), pieces.counts.tolist(), strict=True)
        yield np.concatenate([np.arange(start, start + rows) for start, rows in spans])


def task_of(job: Job, key: TaskKey) -> ShardTask:
    """Return the task of a key, with its pieces.

    Raises: OutputError if there is no plan; FormatError if it is damaged, or another one.
    """
    split, index, num_tasks = key
    plan = read(job, split)
    if plan is None:
        reservation.require_own(job)
        raise OutputError(
            f"{job.work_path(split)}: the plan is gone",
            remedy=f"copy .prep/ again from where the dataset was made, or {_START_OVER}",
        )
    if plan.tasks_after != num_tasks:
        raise FormatError(
            f"{_path(job, split)}: the plan has {plan.tasks_after} shards, expected {num_tasks}",
            remedy="run the same command again; finished shards are kept",
        )
    pieces = _PlanFile.read(_path(job, split)).pieces(index - plan.tasks_before)
    pieces = dataclasses.replace(pieces, files=tuple(_absolute(job.root, file) for file in pieces.files))
    return ShardTask(split=split, index=index, count=num_tasks, num_rows=pieces.num_rows, pieces=pieces)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PlanFile:
    """A plan file: the plan, `group_shards` shards in a row group, and the rows of each file of the source."""

    path: str
    plan: SplitPlan
    group_shards: int
    file_rows: tuple[int, ...]
    content: bytes = dataclasses.field(repr=False)

    @classmethod
    def require(cls, folder: str) -> _PlanFile:
        """Open the plan of a finished dataset. Raises: FormatError if it is missing or damaged."""
        try:
            return cls.read(storage.join(folder, _FILE))
        except FileNotFoundError:
            raise _missing(folder) from None

    @classmethod
    def read(cls, path: str) -> _PlanFile:
        """Open a plan. Raises: FileNotFoundError; FormatError if it is damaged; OutputError."""
        size = storage.size(path)
        if size is None:
            raise FileNotFoundError(path)
        return _parsed(_content(path, size), path)

    def group(self, at: int) -> tuple[Pieces, np.ndarray]:
        """Return the pieces of a row group, and the offsets of each of its shards' pieces. Raises: FormatError."""
        first = at * self.group_shards
        try:
            opened = pq.ParquetFile(
                pa.BufferReader(self.content), read_dictionary=["path", "version"], page_checksum_verification=True
            )
            if opened.metadata.row_group(at).num_rows > _MOST_PIECES:
                raise ValueError(f"more than {_MOST_PIECES:,} pieces in a row group")
            table = opened.read_row_group(at, use_threads=False)
            return _pieces(table), _offsets(table, first=first, rows=self.plan.rows[first : first + self.group_shards])
        except _DAMAGED as error:
            raise _not_a_plan(self.path, error) from error

    def pieces(self, index: int) -> Pieces:
        """Return the pieces of a shard. Raises: FormatError."""
        every, offsets = self.group(index // self.group_shards)
        at = index % self.group_shards
        inside = slice(int(offsets[at]), int(offsets[at + 1]))
        used, file = np.unique(every.file[inside], return_inverse=True)
        columns = {name: getattr(every, name)[inside] for name in ("starts", "counts", "skips", "at")}
        return Pieces(files=tuple(every.files[each] for each in used), file=file.astype(np.int32), **columns)


@functools.lru_cache(maxsize=_PLANS_HELD)
def _content(path: str, size: int) -> bytes:
    # A job writes a plan once: a process that makes many of its shards reads it once.
    return storage.read_bytes(path)


@functools.lru_cache(maxsize=_PLANS_HELD)
def _parsed(content: bytes, path: str) -> _PlanFile:
    try:
        opened = pq.ParquetFile(pa.BufferReader(content))
        if not opened.schema_arrow.equals(_SCHEMA):
            raise ValueError("other columns than those of a plan")
        fields = mapping(json_fields.load((opened.schema_arrow.metadata or {})[b"plan"], any_depth=True))
        plan = SplitPlan(
            split=text(fields["split"], NAME),
            source_split=text(fields["origin"]),
            ranges=_row_ranges(fields["ranges"]),
            predicted_bytes=count(fields["predicted_bytes"]),
            rows=tuple(map(count, items(fields["rows"]))),
            tasks_before=count(fields["tasks_before"]),
        )
        rows = sum(stop - start for start, stop in plan.ranges)
        if not plan.rows or min(plan.rows) < 1 or sum(plan.rows) != rows:
            raise ValueError(f"shards of {sum(plan.rows)} rows, expected the {rows} of the ranges")
        step = count(fields["group_shards"])
        if not step or opened.num_row_groups != -(-plan.num_shards // step):
            raise ValueError(f"{opened.num_row_groups} row groups of {step} shards for {plan.num_shards} shards")
        file_rows = tuple(map(count, items(fields["file_rows"])))
    except _DAMAGED as error:
        raise _not_a_plan(path, error) from error
    return _PlanFile(path=path, plan=plan, group_shards=step, file_rows=file_rows, content=content)


def _table(pieces: Pieces, *, first: int, rows: Sequence[int]) -> pa.Table:
    """Return a row group: the pieces of the shards from `first` on, which have `rows` each."""
    used, file = np.unique(pieces.file, return_inverse=True)
    files = pa.Table.from_pylist([dataclasses.asdict(pieces.files[each]) for each in used], schema=_of_files())
    # A piece belongs to the shard that contains its last row.
    shard = first + np.searchsorted(np.cumsum(rows), np.cumsum(pieces.counts) - 1, "right")
    columns = {
        "shard": shard,
        "start": pieces.starts,
        "count": pieces.counts,
        "skip": pieces.skips,
        "row_group": pieces.at,
    }
    arrays: Mapping[str, Any] = {**columns, **dict(zip(files.column_names, files.take(file).columns, strict=True))}
    return pa.table(dict(arrays), schema=_SCHEMA)


def _of_files() -> pa.Schema:
    return pa.schema([_SCHEMA.field(field.name) for field in dataclasses.fields(StoredFile)])


def _pieces(table: pa.Table) -> Pieces:
    """Return the pieces of a row group. Raises: ValueError if a value is missing or cannot be."""
    names = [name for name in table.column_names if name != "stamp"]
    if not len(table) or any(table.column(name).null_count for name in names):
        raise ValueError("no pieces, or pieces with a part missing")
    starts, counts, skips, at = (table.column(name).to_numpy() for name in ("start", "count", "skip", "row_group"))
    if min(starts.min(), skips.min(), at.min()) < 0 or counts.min() < 1:
        raise ValueError("negative numbers, or pieces of no rows")
    if counts.max() > _MOST_COUNT or starts.max() > _MOST_START:
        raise ValueError("more rows than there can be")
    path = table.column("path").unify_dictionaries().combine_chunks()
    indices = np.asarray((path.chunk(0) if isinstance(path, pa.ChunkedArray) else path).indices)
    _, first, file = np.unique(indices, return_index=True, return_inverse=True)
    stored = table.select(_of_files().names).take(first).to_pylist()
    files = tuple(StoredFile(**each) for each in stored)
    if any(each.size < 0 or (each.stamp or 0) < 0 for each in files):
        raise ValueError("files of a negative size")
    return Pieces(files=files, starts=starts, counts=counts, skips=skips, file=file.astype(np.int32), at=at)


def _offsets(table: pa.Table, *, first: int, rows: Sequence[int]) -> np.ndarray:
    """Return the offsets of each shard's pieces, int64 [n + 1]. Raises: ValueError if they do not have its rows."""
    shard, counts = table.column("shard").to_numpy(), table.column("count").to_numpy()
    offsets = np.searchsorted(shard, np.arange(first, first + len(rows) + 1))
    if (np.diff(shard) < 0).any() or offsets[0] != 0 or offsets[-1] != len(shard) or (np.diff(offsets) < 1).any():
        raise ValueError(f"pieces of other shards than {first} to {first + len(rows) - 1}")
    if not np.array_equal(np.add.reduceat(counts, offsets[:-1]), np.array(rows)):
        raise ValueError("shards of other rows than the plan says")
    return offsets


def _relative(root: str, file: StoredFile) -> StoredFile:
    """Make the path relative to the output if the file is in it, so that a plan does not depend on where that is."""
    inside = storage.join(root, "")
    path = file.path.removeprefix(inside)
    return file if path == file.path else dataclasses.replace(file, path=path)


def _absolute(root: str, file: StoredFile) -> StoredFile:
    is_whole = "://" in file.path or os.path.isabs(file.path)
    return file if is_whole else dataclasses.replace(file, path=storage.join(root, file.path))


def _path(job: Job, split: str) -> str:
    return job.work_path(split, _FILE)


def _missing(folder: str) -> FormatError:
    return FormatError(f"{storage.join(folder, _FILE)}: no such file", remedy=_COPY)


def _not_a_plan(path: str, error: BaseException) -> FormatError:
    return FormatError(f"{path}: not a plan ({error!r:.300})", remedy=_START_OVER)


def _row_ranges(value: Any) -> RowRanges:
    row_ranges = tuple((count(start), count(stop)) for start, stop in map(items, items(value)))
    if not row_ranges or any(stop <= start for start, stop in row_ranges):
        raise ValueError("row ranges, expected [start, stop) with 0 <= start < stop")
    return row_ranges


def _shown(source_split: str, ranges: Sequence[tuple[int, int]]) -> str:
    spans = "+".join(f"[{start}:{stop}]" for start, stop in ranges[:8])
    return f"{source_split}{spans}{' …' if len(ranges) > 8 else ''}"
