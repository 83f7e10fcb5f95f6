"""Plans on disk: one small file for a split, and a part for every 64 shards, so that a worker reads only its part.

    in the Beam graph                                         (split, index, count) of each shard: a few bytes
    OUT/.prep/FINGERPRINT/SPLIT/plan.json                     rows of each shard, digests of the parts; written last
    OUT/.prep/FINGERPRINT/SPLIT/files.json                    rows of each file of the source, for trace and repair
    OUT/.prep/FINGERPRINT/SPLIT/tasks-00000-DIGEST.arrow.zst  the pieces of shards 0 to 63, see `plan_parts`

A part's name contains its digest, so that its content never changes, and no job takes a part of another.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.dataset import plan_parts, reservation
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.dataset.plan_parts import Part
from pipelines.prepare.plan.planning import RowRanges, ShardTask, SplitPlan, require_partition
from pipelines.prepare.sources.parquet.groups import Groups, StoredFile
from tfrecord_io.errors import FingerprintMismatchError, FormatError, OutputError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import NAME, SHA256, WRONG, count, items, mapping, text

__all__ = [
    "PlanHeader",
    "TaskKey",
    "all_tasks",
    "folder",
    "key_of",
    "read_file_rows",
    "read_header",
    "read_header_in",
    "require_whole",
    "rows_of_shards",
    "task_of",
    "write",
]

# A task as plain values: split, index, count.
TaskKey = tuple[str, int, int]

_PART_SHARDS = 64
# A part has at most about this many pieces: fewer shards, if groups are tiny.
_PART_PIECES = 1 << 18
# Threads, since writing waits for the disk or the remote service.
_WRITERS = 8
_PARTS_HELD = 4
_JOBS_HELD = 16

_HEADER = "plan.json"
_START_OVER = "start over with --overwrite"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanHeader:
    """The content of plan.json: the rows of each shard, and the SHA-256 of each part, one for `part_shards` shards.

    The first of its tasks is number `tasks_before` of the split: earlier generations of the dataset made those before.
    """

    split: str
    source_split: str
    ranges: RowRanges
    predicted_bytes: int
    rows: tuple[int, ...]
    part_shards: int
    parts: tuple[str, ...]
    tasks_before: int = 0

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self.rows)

    @property
    def tasks_after(self) -> int:
        """Number of tasks of the split up to and with these, the `of` in their names."""
        return self.tasks_before + self.num_shards

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of plan.json."""
        document = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if not self.tasks_before:
            del document["tasks_before"]
        return {"origin": document.pop("source_split"), **document}

    @classmethod
    def from_json(cls, document: Any, *, path: str) -> PlanHeader:
        """Parse what `to_json` gave. `path` names the file in errors. Raises: FormatError if it is something else."""
        try:
            fields = mapping(document)
            header = cls(
                split=text(fields["split"], NAME),
                source_split=text(fields["origin"]),
                ranges=_row_ranges(fields["ranges"]),
                predicted_bytes=count(fields["predicted_bytes"]),
                rows=tuple(map(count, items(fields["rows"]))),
                part_shards=count(fields["part_shards"]),
                parts=tuple(text(digest, SHA256) for digest in items(fields["parts"])),
                tasks_before=count(fields.get("tasks_before", 0)),
            )
            header._check()
        except WRONG as error:
            raise FormatError(f"{path}: not a plan ({error!r:.300})", remedy=_START_OVER) from error
        return header

    def _check(self) -> None:
        """Raise ValueError if the numbers contradict each other."""
        rows = sum(stop - start for start, stop in self.ranges)
        if not self.rows or min(self.rows) < 1 or sum(self.rows) != rows:
            raise ValueError(f"shards of {sum(self.rows)} rows, expected the {rows} of the ranges")
        if not self.part_shards or len(self.parts) != -(-len(self.rows) // self.part_shards):
            raise ValueError(f"{len(self.parts)} parts of {self.part_shards} shards for {len(self.rows)} shards")


def key_of(task: ShardTask) -> TaskKey:
    """Return the key of a task, from which `task_of` finds it again."""
    return task.split, task.index, task.count


def write(job: Job, plan: SplitPlan, groups: Groups) -> PlanHeader:
    """Write the plan of a split that has none, before any of its shards.

    Raises: OutputError if another job has written another plan meanwhile (on a local disk the lock prevents that).
    """
    rows = plan.shard_rows
    groups = dataclasses.replace(groups, files=tuple(_relative(job.root, file) for file in groups.files))
    part_shards = _part_shards(plan, groups)

    def write_part(at: int) -> str:
        first, last = at * part_shards, min((at + 1) * part_shards, plan.num_shards)
        content = plan_parts.encode(groups.pieces(plan.spans(first, last)), first=first, rows=rows[first:last])
        digest = hashlib.sha256(content).hexdigest()
        storage.write_bytes(_part_path(job, plan.split, at, digest), content, inside=job.root)
        return digest

    with ThreadPoolExecutor(_WRITERS) as writers:
        parts = tuple(writers.map(write_part, range(-(-plan.num_shards // part_shards))))
    header = PlanHeader(
        split=plan.split,
        source_split=plan.source_split,
        ranges=plan.ranges,
        predicted_bytes=plan.predicted_bytes,
        rows=tuple(rows.tolist()),
        part_shards=part_shards,
        parts=parts,
        tasks_before=job.splits[plan.split].tasks_before,
    )
    text_of_rows = json.dumps({"rows": groups.source_rows.tolist()}) + "\n"
    storage.write_bytes(_file_rows_path(job.work_path(plan.split)), text_of_rows.encode(), inside=job.root)
    document = json.dumps(header.to_json(), sort_keys=True) + "\n"
    storage.write_bytes(_header_path(job, plan.split), document.encode(), inside=job.root, replacing=0)
    return header


def read_header(job: Job, split: str) -> PlanHeader | None:
    """Return the plan that an earlier run left, or None.

    Raises: FingerprintMismatchError if it was made for other rows of the split; FormatError if it is damaged.
    """
    asked = job.splits[split]
    header = read_header_in(
        job.work_path(split), split=split, source_split=asked.source_split, ranges=asked.ranges, root=job.root
    )
    if header is not None and header.tasks_before != asked.tasks_before:
        raise FormatError(
            f"{_header_path(job, split)}: its first task is number {header.tasks_before}, expected "
            f"{asked.tasks_before}",
            remedy=_START_OVER,
        )
    return header


def read_header_in(folder: str, *, split: str, source_split: str, ranges: RowRanges, root: str) -> PlanHeader | None:
    """Return the plan in the `folder` of a split, or None; it must be of these rows. Raises: as `read_header`."""
    path = storage.join(folder, _HEADER)
    try:
        header = _parsed(storage.read_bytes(path), path)
    except FileNotFoundError:
        return None
    if header.split != split:
        raise FormatError(f"{path}: the plan of split {header.split!r}, expected {split!r}", remedy=_START_OVER)
    if (header.source_split, header.ranges) != (source_split, ranges):
        raise FingerprintMismatchError(
            f"{root}: split {split!r} was planned for the rows {_shown(header.source_split, header.ranges)}, "
            f"but now the rows {_shown(source_split, ranges)} are asked for",
            remedy="choose another --output, or start over with --overwrite",
        )
    return header


def read_file_rows(folder: str) -> np.ndarray:
    """Return the rows of each file of the split whose plan is in `folder`, int64 [S]. Raises: FormatError."""
    path = _file_rows_path(folder)
    try:
        rows = [count(each) for each in items(mapping(json_fields.load(storage.read_bytes(path)))["rows"])]
    except (FileNotFoundError, *WRONG) as error:
        raise FormatError(
            f"{path}: missing or damaged; it says how many rows each file has",
            remedy="copy .prep/ again from where the dataset was made, or build it anew with --overwrite",
        ) from error
    return np.array(rows, np.int64)


def rows_of_shards(root: str, fingerprint: str, split: str) -> Iterator[np.ndarray]:
    """Yield the numbers of the rows of each shard in reading order, int64 [N]; needs the plan alone, not the source.

    Raises: FormatError if the plan is gone or damaged.
    """
    where = folder(root, fingerprint, split)
    path = storage.join(where, _HEADER)
    try:
        header = _parsed(storage.read_bytes(path), path)
        for at, digest in enumerate(header.parts):
            first = at * header.part_shards
            part = _read_part(
                _part_file(where, at, digest), digest, first, header.rows[first : first + header.part_shards]
            )
            for index in range(first, min(first + header.part_shards, header.num_shards)):
                pieces = part.shard(index)
                spans = zip(pieces.starts.tolist(), pieces.counts.tolist(), strict=True)
                yield np.concatenate([np.arange(start, start + rows) for start, rows in spans])
    except FileNotFoundError as error:
        raise FormatError(
            f"{where}: the plan is not there", remedy="copy .prep/ again from where the dataset was made"
        ) from error


def folder(root: str, fingerprint: str, split: str) -> str:
    """Return the folder with the plan of a split."""
    return storage.join(root, WORK_FOLDER, fingerprint, split)


def all_tasks(header: PlanHeader) -> list[ShardTask]:
    """Return one task for each shard, without its pieces."""
    return [
        ShardTask(split=header.split, index=index, count=header.tasks_after, num_rows=rows)
        for index, rows in enumerate(header.rows, start=header.tasks_before)
    ]


def require_whole(job: Job, header: PlanHeader) -> None:
    """Read and check all parts, for a job that continues with a plan that it did not make.

    Raises: OutputError if one is gone; FormatError if one is damaged, or if they do not have every row exactly once.
    """
    with ThreadPoolExecutor(_WRITERS) as readers:
        spans = list(readers.map(lambda at: _part(job, header, at, read=_read_part).spans, range(len(header.parts))))
    try:
        require_partition(header.ranges, np.concatenate(spans))
    except ValueError as error:
        path = _header_path(job, header.split)
        raise FormatError(f"{path}: not a plan ({error})", remedy=_START_OVER) from error


def task_of(job: Job, key: TaskKey) -> ShardTask:
    """Return the task of a key, with its pieces.

    Raises: OutputError if there is no plan; FormatError if it is damaged, or another one.
    """
    split, index, num_tasks = key
    header = read_header(job, split)
    if header is None:
        raise _gone(job, split)
    if header.tasks_after != num_tasks:
        raise FormatError(
            f"{_header_path(job, split)}: the plan has {header.tasks_after} shards, expected {num_tasks}",
            remedy="run the same command again; finished shards are kept",
        )
    in_plan = index - header.tasks_before
    with _lock_of(job.work_path()):  # threads that need one part at the same time wait for the one that reads it
        part = _part(job, header, in_plan // header.part_shards, read=_cached_part)
    pieces = part.shard(in_plan)
    pieces = dataclasses.replace(pieces, files=tuple(_absolute(job.root, file) for file in pieces.files))
    return ShardTask(split=split, index=index, count=num_tasks, num_rows=pieces.num_rows, pieces=pieces)


def _relative(root: str, file: StoredFile) -> StoredFile:
    """Make the path relative to the output if the file is in it, so that a plan does not depend on where that is."""
    inside = storage.join(root, "")
    path = file.path.removeprefix(inside)
    return file if path == file.path else dataclasses.replace(file, path=path)


def _absolute(root: str, file: StoredFile) -> StoredFile:
    is_whole = "://" in file.path or os.path.isabs(file.path)
    return file if is_whole else dataclasses.replace(file, path=storage.join(root, file.path))


def _part_shards(plan: SplitPlan, groups: Groups) -> int:
    shard_pieces = (len(plan.starts) + len(groups)) / plan.num_shards
    return max(1, min(_PART_SHARDS, int(_PART_PIECES / shard_pieces)))


def _part(job: Job, header: PlanHeader, at: int, *, read: Callable[..., Part]) -> Part:
    path, first = _part_path(job, header.split, at, header.parts[at]), at * header.part_shards
    try:
        return read(path, header.parts[at], first, header.rows[first : first + header.part_shards])
    except FileNotFoundError:
        raise _gone(job, header.split) from None


def _gone(job: Job, split: str) -> OutputError:
    reservation.require_own(job)
    return OutputError(
        f"{job.work_path(split)}: the plan is gone",
        remedy=f"copy .prep/ again from where the dataset was made, or {_START_OVER}",
    )


@functools.lru_cache(maxsize=_PARTS_HELD)
def _parsed(content: bytes, path: str) -> PlanHeader:
    try:
        document = json_fields.load(content, any_depth=True)
    except ValueError as error:
        raise FormatError(f"{path}: not JSON ({error})", remedy=_START_OVER) from error
    return PlanHeader.from_json(document, path=path)


def _header_path(job: Job, split: str) -> str:
    return job.work_path(split, _HEADER)


def _file_rows_path(folder: str) -> str:
    return storage.join(folder, "files.json")


def _part_path(job: Job, split: str, at: int, digest: str) -> str:
    return _part_file(job.work_path(split), at, digest)


def _part_file(folder: str, at: int, digest: str) -> str:
    return storage.join(folder, f"tasks-{at:05d}-{digest[:16]}.arrow.zst")


def _read_part(path: str, digest: str, first: int, rows: tuple[int, ...]) -> Part:
    """Read one part. Raises: FileNotFoundError; FormatError if it is damaged or another one; OutputError."""
    content = storage.read_bytes(path)
    if (got := hashlib.sha256(content).hexdigest()) != digest:
        raise FormatError(f"{path}: has the digest {got:.16}, expected {digest:.16}", remedy=_START_OVER)
    try:
        return plan_parts.decode(content, first=first, rows=rows)
    except plan_parts.DAMAGED as error:
        raise FormatError(f"{path}: not a part of a plan ({error!r:.300})", remedy=_START_OVER) from error


_cached_part = functools.lru_cache(maxsize=_PARTS_HELD)(_read_part)


@functools.lru_cache(maxsize=_JOBS_HELD)
def _lock_of(work_path: str) -> threading.Lock:
    """Return the lock for reading a job's plan in this process, so that no job waits for another one's storage."""
    return threading.Lock()


def _row_ranges(value: Any) -> RowRanges:
    row_ranges = tuple((count(start), count(stop)) for start, stop in map(items, items(value)))
    if not row_ranges or any(stop <= start for start, stop in row_ranges):
        raise ValueError("row ranges, expected [start, stop) with 0 <= start < stop")
    return row_ranges


def _shown(source_split: str, ranges: Sequence[tuple[int, int]]) -> str:
    spans = "+".join(f"[{start}:{stop}]" for start, stop in ranges[:8])
    return f"{source_split}{spans}{' …' if len(ranges) > 8 else ''}"
