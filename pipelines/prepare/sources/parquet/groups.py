"""Locate the rows of a split in groups, and in the pieces that a task reads.

    split rows   0 ............................... 4,200
    groups       a.parquet 0, 1, 2        b.parquet 0, 1      row groups of files or ingested parts
    row ranges          [800, 1500)    [3000, 3200)           the rows of a task
    pieces              a/0 from 800, a/1 to 500, b/0 ...     these ranges, cut where groups end

Groups stay on the launcher; pieces are sent to workers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipelines.prepare.sources.resolve.data_files import DataFile
from tfrecord_io.errors import SourceError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pieces:
    """P row ranges in reading order, each inside one group. All arrays are [P].

    `starts` int64: number of the first row in the split. `counts` int64: number of rows. `skips` int64: rows of the
    group before the first. `file` int32: index into `files`. `at` int64: index of the row group in the file.
    """

    files: tuple[DataFile, ...]
    starts: np.ndarray
    counts: np.ndarray
    skips: np.ndarray
    file: np.ndarray
    at: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_rows(self) -> int:
        return int(self.counts.sum())

    def part(self, which: slice) -> Pieces:
        """Return the pieces in the slice `which`, with only their files."""
        used, file = np.unique(self.file[which], return_inverse=True)
        arrays = {name: getattr(self, name)[which] for name in ("starts", "counts", "skips", "at")}
        return Pieces(files=tuple(self.files[index] for index in used), file=file.astype(np.int32), **arrays)


@dataclasses.dataclass(frozen=True)
class Cover:
    """N row ranges in reading order, each inside one group. All arrays are int64 [N].

    `groups`: index of each range's group. `starts`, `counts`: as in `Pieces`.
    """

    groups: np.ndarray
    starts: np.ndarray
    counts: np.ndarray

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def ends(self) -> np.ndarray:
        """Exclusive end of each range, counting covered rows from 0: int64 [N]."""
        return np.cumsum(self.counts)


def cover(ends: np.ndarray, ranges: Sequence[tuple[int, int]] | np.ndarray) -> Cover:
    """Cut row ranges [start, stop) where row groups end. `ends`: exclusive end of each group, int64 [N]."""
    spans = _spans(ranges)
    first = np.searchsorted(ends, spans[:, 0], "right")
    sizes = np.searchsorted(ends, spans[:, 1] - 1, "right") - first + 1
    stops = np.cumsum(sizes)
    group = np.arange(sizes.sum())
    group += np.repeat(first - (stops - sizes), sizes)
    # In place, since there may be 100 million groups.
    starts = ends[group - 1]
    starts[stops - sizes] = spans[:, 0]
    counts = ends[group]
    counts[stops - 1] = spans[:, 1]
    counts -= starts
    filled = counts > 0  # a group may have no rows
    return Cover(groups=group[filled], starts=starts[filled], counts=counts[filled])


def covers(ends: np.ndarray, ranges: Sequence[tuple[int, int]] | np.ndarray, *, most: int = 1 << 20) -> Iterator[Cover]:
    """Yield the result of `cover` in parts of at most `most` groups."""
    for start, stop in _spans(ranges).tolist():
        while start < stop:
            last = int(np.searchsorted(ends, start, "right")) + most - 1
            yield cover(ends, [(start, until := min(stop, int(ends[min(last, len(ends) - 1)])))])
            start = until


def in_ranges(span: Sequence[int], ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return row ranges for `span`, a range of positions among the rows of `ranges`. All are [start, stop).

    Example: `in_ranges((5, 12), [(100, 110), (200, 210)])` returns `[(105, 110), (200, 202)]`.
    """
    translated, first = [], 0
    for start, stop in ranges:
        last = first + stop - start
        low, high = max(span[0], first), min(span[1], last)
        if low < high:
            translated.append((start + low - first, start + high - first))
        first = last
    return translated


def _spans(ranges: Sequence[tuple[int, int]] | np.ndarray) -> np.ndarray:
    spans = np.asarray(ranges, np.int64).reshape(-1, 2)
    return spans[spans[:, 0] < spans[:, 1]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups:
    """N row groups that make up a split, in row order and without gaps.

    Arrays are [N], of any signed integer dtype, except `source_rows` int64 [S]: rows per source file, or per shard if
    files are unknown. `file`, `at`: as in `Pieces`. `num_bytes`: uncompressed size of the job's columns.
    `stored_bytes`: their size in the file. `nulls`: nulls by column, where known.
    """

    files: tuple[DataFile, ...]
    num_rows: np.ndarray
    file: np.ndarray
    at: np.ndarray
    num_bytes: np.ndarray
    stored_bytes: np.ndarray
    source_rows: np.ndarray
    nulls: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.num_rows)

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """Exclusive end of each group, int64 [N]."""
        return np.cumsum(self.num_rows, dtype=np.int64)

    @property
    def total_rows(self) -> int:
        return int(self.ends[-1]) if len(self) else 0

    def pieces(self, row_ranges: Sequence[tuple[int, int]] | np.ndarray) -> Pieces:
        """Split row ranges [start, stop) at the ends of row groups. Raises: SourceError if a row doesn't exist."""
        spans = _spans(row_ranges)
        if len(spans) and (spans.min() < 0 or spans[:, 1].max() > self.total_rows):
            raise SourceError(
                f"rows up to {spans[:, 1].max():,} were planned, but the source has only {self.total_rows:,}",
                remedy="restore the former source, or start over with --overwrite",
            )
        parts = cover(self.ends, spans)
        group = parts.groups
        return Pieces(
            files=self.files,
            starts=parts.starts,
            counts=parts.counts,
            skips=parts.starts - (self.ends[group] - self.num_rows[group]),
            file=self.file[group],
            at=self.at[group].astype(np.int64),
        )

    @classmethod
    def unread(cls, source_rows: np.ndarray, *, columns: Sequence[str] = ()) -> Groups:
        """Return a placeholder group, without nulls, for rows that will not be read."""
        none = np.zeros(1, np.int64)
        return cls(
            files=(DataFile(path="", size=0),),
            num_rows=source_rows.sum(keepdims=True),
            file=none.astype(np.int32),
            at=none,
            num_bytes=none,
            stored_bytes=none,
            source_rows=source_rows,
            nulls=dict.fromkeys(columns, none),
        )

    @classmethod
    def joined(cls, parts: Sequence[Groups]) -> Groups:
        offsets = np.cumsum([0, *(len(part.files) for part in parts)])
        columns = sorted(set.intersection(*(set(part.nulls) for part in parts))) if parts else []
        arrays = {
            name: np.concatenate([np.zeros(0, np.int8), *(getattr(part, name) for part in parts)])
            for name in ("num_rows", "at", "num_bytes", "stored_bytes", "source_rows")
        }
        shifted = [part.file + offset for part, offset in zip(parts, offsets, strict=False)]
        return cls(
            files=tuple(file for part in parts for file in part.files),
            file=np.concatenate([np.zeros(0, np.int32), *shifted]).astype(np.int32),
            nulls={name: np.concatenate([part.nulls[name] for part in parts]) for name in columns},
            **arrays,
        )
