"""Plan files of a split, in OUT/.prep/FINGERPRINT/SPLIT: the source rows of each shard (see docs/format.md).

Workers get only a task's key (split, index, count), and read its plan file.
"""

import collections
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.prepare import storage
from pipelines.prepare.dataset import reservation
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.plan.planning import ShardTask, SplitPlan
from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.sources.parquet.groups import Groups, Pieces
from pipelines.prepare.sources.resolve.data_files import DataFile
from tfrecord_io.errors import FingerprintMismatchError, FormatError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import NAME, WRONG, count, items, mapping, text
from tfrecord_io.shown import some

TaskKey = tuple[str, int, int]

_GROUP_SHARDS = 64
# Approximate maximum number of row ranges in a plan file.
_GROUP_PIECES = 1 << 18
_FILES_HELD = 4
_WRITERS = 32
# Limits that keep sums over a file within int64, and memory small.
_MOST_COUNT, _MOST_START, _MOST_PIECES = 1 << 40, 1 << 62, 1 << 22
# Columns of texts, which may repeat, and the largest decoded size of a plan file.
_TEXTS, _MOST_BYTES = ["path", "version"], 1 << 29

_FILE = "plan.json"
_START_OVER = "start over with --overwrite"
# Columns of a plan file: fields of `DataFile`, and arrays of `Pieces`.
_FIELDS = {"path": pa.string(), "size": pa.int64(), "ingested": pa.bool_(), "version": pa.string(), "stamp": pa.int64()}
_OF_PIECES = {"start": "starts", "count": "counts", "skip": "skips", "row_group": "at"}
_TYPES = {"shard": pa.int32(), **dict.fromkeys(_OF_PIECES, pa.int64()), **_FIELDS}
_SCHEMA = pa.schema([pa.field(name, kind, nullable=name == "stamp") for name, kind in _TYPES.items()])
_DAMAGED = (*WRONG, pa.ArrowException, OSError)


def key_of(task: ShardTask) -> TaskKey:
    """Return the key of a task for `task_of`: its split, its index, and the number of the split's tasks."""
    return task.split, task.index, task.count


def write(job: Job, plan: SplitPlan, groups: Groups) -> None:
    """Write a split's plan, before its first shard is made. Raises: OutputError if another job wrote another plan."""
    groups = _relative(groups, job.root)
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

    def write_group(first: int) -> None:
        rows = plan.rows[first : first + step]
        table = _table(groups, plan.spans_of(first, first + len(rows)), first=first, rows=rows)
        path = job.work_path(plan.split, _name_of_group(first // step))
        storage.write_bytes(path, _encoded(table), inside=job.root, replacing=0)

    _for_each_group(write_group, job, groups, range(0, plan.num_shards, step))
    content = json.dumps(document, separators=(",", ":")).encode()
    storage.write_bytes(job.work_path(plan.split, _FILE), content, inside=job.root, replacing=0)


def relocate(job: Job, plan: SplitPlan, groups: Groups) -> None:
    """Rewrite the plan files of an earlier run if addresses or versions of the source files in `groups` have changed.

    The fingerprint covers only content, so files may move. Raises: FormatError, OutputError.
    """
    stored, groups = _find(job.work_path(plan.split, _FILE)), _relative(groups, job.root)
    assert stored is not None, "the plan was read from this file"

    def update_group(first: int) -> None:
        path = job.work_path(plan.split, _name_of_group(first // stored.group_shards))
        rows = plan.rows[first : first + stored.group_shards]
        pieces, _ = _read_group(path, first=first, rows=rows)
        spans = np.stack([pieces.starts, pieces.starts + pieces.counts], 1)
        table = _table(groups, spans, first=first, rows=rows)
        if not table.equals(_read_table(path)):
            storage.write_bytes(path, _encoded(table), inside=job.root)

    _for_each_group(update_group, job, groups, range(0, plan.num_shards, stored.group_shards))


def _for_each_group(function: Callable[[int], None], job: Job, groups: Groups, firsts: range) -> None:
    groups.ends  # noqa: B018 - computed once, before the threads need it
    threads = 1 if storage.local_path(job.root) else _WRITERS
    collections.deque(ordered_map(function, firsts, threads=threads), maxlen=0)
    _open.cache_clear()
    _read_group.cache_clear()


def _relative(groups: Groups, root: str) -> Groups:
    inside = storage.join(root, "")  # with relative paths inside it, the output folder can be moved
    files = tuple(dataclasses.replace(file, path=file.path.removeprefix(inside)) for file in groups.files)
    return dataclasses.replace(groups, files=files)


def _table(groups: Groups, spans: np.ndarray, *, first: int, rows: Sequence[int]) -> pa.Table:
    pieces = groups.pieces(spans).part(slice(None))
    # A row range belongs to the shard that contains its last row.
    shard = first + np.searchsorted(np.cumsum(rows), np.cumsum(pieces.counts) - 1, "right")
    columns = {"shard": shard, **{name: getattr(pieces, array) for name, array in _OF_PIECES.items()}}
    stored = pa.Table.from_pylist(list(map(dataclasses.asdict, pieces.files)), schema=pa.schema(_FIELDS))
    columns |= {name: stored.column(name).take(pieces.file) for name in _FIELDS}
    return pa.table(columns, schema=_SCHEMA)


def _encoded(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True, row_group_size=len(table))
    return sink.getvalue()


def _name_of_group(number: int) -> str:
    return f"plan-{number:05d}.parquet"


def read(job: Job, split: str) -> SplitPlan | None:
    """Read the plan that an earlier run wrote for a split, without its `spans`; return None if there is no plan.

    Raises: FingerprintMismatchError if the plan is for other rows of the split; FormatError if it is damaged.
    """
    stored = _find(job.work_path(split, _FILE))
    return None if stored is None else _of_job(stored, job, split)


def read_file_rows(root: str, fingerprint: str, split: str) -> np.ndarray:
    """Return the rows in each source file of a split, int64 [F], from its plan. Raises: FormatError without a plan."""
    return np.array(_require(root, fingerprint, split).file_rows, np.int64)


def rows_of_shards(root: str, fingerprint: str, split: str) -> Iterator[np.ndarray]:
    """Yield each shard's row numbers in reading order, int64 [N], from the plan. Raises: FormatError without a plan."""
    stored = _require(root, fingerprint, split)
    for index in range(stored.plan.num_shards):
        pieces = stored.pieces(index)
        spans = zip(pieces.starts.tolist(), pieces.counts.tolist(), strict=True)
        yield np.concatenate([np.arange(start, start + rows) for start, rows in spans])


def task_of(job: Job, key: TaskKey) -> ShardTask:
    """Return the task with the key of `key_of`, and the locations of its rows.

    Raises: FormatError; the errors of `read`.
    """
    split, index, num_tasks = key
    if (stored := _find(job.work_path(split, _FILE))) is None:
        reservation.require_own(job)
        raise _gone(job.work_path(split, _FILE))
    plan = _of_job(stored, job, split)
    if plan.tasks_after != num_tasks:
        raise FormatError(
            f"{stored.path}: the plan has {some(plan.tasks_after, 'shard')}, expected {num_tasks:,}",
            remedy="run the same command again; finished shards are kept",
        )
    pieces = stored.pieces(index - plan.tasks_before)
    files = tuple(
        file
        if "://" in file.path or os.path.isabs(file.path)
        else dataclasses.replace(file, path=storage.join(job.root, file.path))
        for file in pieces.files
    )
    pieces = dataclasses.replace(pieces, files=files)
    return ShardTask(split=split, index=index, count=num_tasks, num_rows=pieces.num_rows, pieces=pieces)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PlanFile:
    path: str
    plan: SplitPlan
    group_shards: int  # shards per Parquet file
    file_rows: tuple[int, ...]

    def pieces(self, index: int) -> Pieces:
        group, at = divmod(index, self.group_shards)
        first = group * self.group_shards
        path = storage.join(self.path.rpartition("/")[0], _name_of_group(group))
        pieces, offsets = _read_group(path, first=first, rows=self.plan.rows[first : first + self.group_shards])
        return pieces.part(slice(int(offsets[at]), int(offsets[at + 1])))


def _require(root: str, fingerprint: str, split: str) -> _PlanFile:
    path = storage.join(root, WORK_FOLDER, fingerprint, split, _FILE)
    if (stored := _find(path)) is None:
        raise _gone(path)
    return stored


def _find(path: str) -> _PlanFile | None:
    size = storage.size(path)
    try:
        return None if size is None else _open(path, size)
    except FileNotFoundError:
        return None


@functools.lru_cache(maxsize=_FILES_HELD)
def _open(path: str, size: int) -> _PlanFile:
    # A plan is written once, so each process reads it once.
    content = storage.read_bytes(path)
    try:
        fields = mapping(json_fields.load(content))
        plan = SplitPlan(
            split=text(fields["split"], NAME),
            source_split=text(fields["origin"]),
            ranges=tuple((count(start), count(stop)) for start, stop in map(items, items(fields["ranges"]))),
            predicted_bytes=count(fields["predicted_bytes"]),
            rows=tuple(map(count, items(fields["rows"]))),
            tasks_before=count(fields["tasks_before"]),
        )
        group_shards, file_rows = count(fields["group_shards"]), tuple(map(count, items(fields["file_rows"])))
        if not plan.ranges or any(stop <= start for start, stop in plan.ranges):
            raise ValueError("row ranges, expected [start, stop) with 0 <= start < stop")
        rows = sum(stop - start for start, stop in plan.ranges)
        if not plan.rows or min(plan.rows) < 1 or sum(plan.rows) != rows:
            raise ValueError(f"shards of {some(sum(plan.rows), 'row')}, expected {rows:,} as in the ranges")
        if not group_shards:
            raise ValueError("group_shards is 0, expected at least 1")
    except _DAMAGED as error:
        raise _not_a_plan(path, error) from error
    return _PlanFile(path=path, plan=plan, group_shards=group_shards, file_rows=file_rows)


@functools.lru_cache(maxsize=_FILES_HELD)
def _read_group(path: str, *, first: int, rows: tuple[int, ...]) -> tuple[Pieces, np.ndarray]:
    try:
        table = _read_table(path)
        return _pieces(table), _offsets(table, first=first, rows=rows)
    except _DAMAGED as error:
        raise _not_a_plan(path, error) from error


def _read_table(path: str) -> pa.Table:
    content = pa.BufferReader(storage.read_bytes(path))
    opened = pq.ParquetFile(content, read_dictionary=_TEXTS, page_checksum_verification=True)
    if not opened.schema.to_arrow_schema().equals(_SCHEMA) or opened.metadata.num_rows > _MOST_PIECES:
        raise ValueError(f"the columns are not a plan's, or there are more than {_MOST_PIECES:,} pieces")
    groups = map(opened.metadata.row_group, range(opened.metadata.num_row_groups))
    num_bytes = sum(group.total_byte_size for group in groups)
    if num_bytes <= _MOST_BYTES:
        table = opened.read(use_threads=False)
        texts = (chunk for name in _TEXTS for chunk in table.column(name).chunks)
        num_bytes = sum(pc.sum(pc.binary_length(text.dictionary).take(text.indices)).as_py() or 0 for text in texts)
    if num_bytes > _MOST_BYTES:
        raise ValueError(f"{num_bytes:,} bytes when decoded, expected at most {_MOST_BYTES:,}")
    return table.cast(_SCHEMA)


def _of_job(stored: _PlanFile, job: Job, split: str) -> SplitPlan:
    plan, requested = stored.plan, job.splits[split]
    if (plan.source_split, plan.ranges) != (requested.source_split, requested.ranges):
        was, now = (
            f"{rows.source_split}{'+'.join(f'[{start}:{stop}]' for start, stop in rows.ranges[:8])}"
            + " …" * (len(rows.ranges) > 8)
            for rows in (plan, requested)
        )
        raise FingerprintMismatchError(
            f"{job.root}: split {split!r} was planned for the rows {was}, but now the rows {now} are requested",
            remedy="choose another --output, or start over with --overwrite",
        )
    if (plan.split, plan.tasks_before) != (split, requested.tasks_before):
        raise FormatError(
            f"{stored.path}: holds the plan of split {plan.split!r} from task {plan.tasks_before} on, expected split "
            f"{split!r} from task {requested.tasks_before} on",
            remedy=_START_OVER,
        )
    return plan


def _pieces(table: pa.Table) -> Pieces:
    names = [name for name in table.column_names if name != "stamp"]
    if not len(table) or any(table.column(name).null_count for name in names):
        raise ValueError("no pieces, or pieces with missing values")
    arrays = {array: table.column(name).to_numpy() for name, array in _OF_PIECES.items()}
    if min(arrays[name].min() for name in ("starts", "skips", "at")) < 0 or arrays["counts"].min() < 1:
        raise ValueError("negative numbers, or pieces without rows")
    if arrays["counts"].max() > _MOST_COUNT or arrays["starts"].max() > _MOST_START:
        raise ValueError("larger numbers of rows than any source has")
    indices = table.column("path").combine_chunks().dictionary_encode().indices.to_numpy()
    _, first, file = np.unique(indices, return_index=True, return_inverse=True)
    files = tuple(DataFile(**fields) for fields in table.select(list(_FIELDS)).take(first).to_pylist())
    if any(data_file.size < 0 or (data_file.stamp or 0) < 0 for data_file in files):
        raise ValueError("a file has a negative size or time of change")
    return Pieces(files=files, file=file.astype(np.int32), **arrays)


def _offsets(table: pa.Table, *, first: int, rows: Sequence[int]) -> np.ndarray:
    shard, counts = table.column("shard").to_numpy(), table.column("count").to_numpy()
    offsets = np.searchsorted(shard, np.arange(first, first + len(rows) + 1))
    if (np.diff(shard) < 0).any() or offsets[0] != 0 or offsets[-1] != len(shard) or (np.diff(offsets) < 1).any():
        raise ValueError(f"pieces of shards outside {first} to {first + len(rows) - 1}")
    if not np.array_equal(np.add.reduceat(counts, offsets[:-1]), np.array(rows)):
        raise ValueError("shards with other numbers of rows than in plan.json")
    return offsets


def _gone(path: str) -> FormatError:
    remedy = f"copy .prep/ again from where the dataset was made, or {_START_OVER}"
    return FormatError(f"{path}: the plan is gone", remedy=remedy)


def _not_a_plan(path: str, error: BaseException) -> FormatError:
    return FormatError(f"{path}: the plan of the shards is damaged ({error!r:.300})", remedy=_START_OVER)
