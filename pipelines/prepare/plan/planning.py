"""Plan the shards of a split: their number, and the rows of each shard.

Rows form blocks of at most 4,000 consecutive rows, or fewer if rows are long. The blocks are permuted by the seed, or
left in source order. Then cuts between rows make shards of equal predicted size. This size is within 10 % of the target
if the split's size is near a multiple of the target, or at least 4.5 times the target.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.prepare.options.config import Compression, LayoutConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.parquet.groups import Pieces
from pipelines.prepare.sources.rows.reading import SplitSource
from pipelines.prepare.tokenize.ragged import offsets_of
from tfrecord_io.format import record_index
from tfrecord_io.manifest import TokenizerFacts
from tfrecord_io.schema import Schema

RowRanges = tuple[tuple[int, int], ...]

MAX_BLOCK_ROWS = 4_000
# More blocks per shard make shards more alike. But a shard decodes all row groups that contain its blocks.
_BLOCKS_PER_SHARD = 32
# Runs of neighbouring blocks per shard, for the Hub, which limits requests: about one per run.
_RUNS_PER_SHARD = 5

# Maximum size of a block, as a multiple of the predicted size of that many average rows.
ROOM = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardSpec:
    """Everything, except the rows, that determines the bytes of shards. `length`: tokens in the longest record."""

    columns: ColumnPlan
    schema: Schema
    layout: LayoutConfig
    length: int
    facts: TokenizerFacts
    compression: Compression
    seed: int
    shuffle: bool

    @property
    def index_stride(self) -> int | None:
        """Number of records per offset in a shard's index; None for compressed shards, which have no index."""
        return record_index.STRIDE if self.compression == "none" else None

    def form(self) -> dict[str, Any]:
        """Return the features of the records and a digest of the class names, as JSON values for the fingerprint."""
        features = [dataclasses.asdict(feature) for feature in self.schema.features]
        names = json.dumps(self.columns.label_names).encode()
        return {
            "features": [{**feature, "shape": list(feature["shape"]), "meaning": None} for feature in features],
            "classes": hashlib.sha256(names).hexdigest(),
        }

    def schema_of(self, length: int | None) -> Schema:
        """Return the schema of records with `length` tokens. None: the schema if all records have the same length."""
        return self.schema if length is None else self.schema.with_row_length(length)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """N blocks of consecutive rows of a split. `starts`, `stops` int64 [N]: the rows [start, stop) of each block.

    `predicted_bytes` float64 [N]: predicted size of each block's records.
    """

    starts: np.ndarray
    stops: np.ndarray
    predicted_bytes: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Blocks]) -> Blocks:
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardTask:
    """Unit of work: make shard `index` of `count` from `num_rows` rows of a split.

    `pieces`: where these rows are, in reading order; None until `plan_files.task_of` looks them up.
    """

    split: str
    index: int
    count: int
    num_rows: int
    pieces: Pieces | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def row_ranges(self) -> RowRanges:
        """The task's rows as ranges [start, stop) of row numbers, in reading order."""
        pieces = self.located
        return tuple((start, stop) for start, stop in _merged(pieces.starts, pieces.starts + pieces.counts).tolist())

    @property
    def located(self) -> Pieces:
        """The task's `pieces`. Must not be called while they are None."""
        assert self.pieces is not None, "plan_files.task_of looks them up"
        return self.pieces


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """Plan of one split. Its shards contain the rows `ranges` of `source_split`; shard i has `rows[i]` of them.

    `predicted_bytes`: predicted size of all shards. `tasks_before`: tasks of the build and earlier appends. `spans`
    int64 [n, 2]: the row ranges of all shards, one shard after another; None for a plan read from its file.
    """

    split: str
    source_split: str
    ranges: RowRanges
    predicted_bytes: int
    rows: tuple[int, ...]
    tasks_before: int = 0
    spans: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def num_shards(self) -> int:
        return len(self.rows)

    @property
    def tasks_after(self) -> int:
        """Number of tasks of the build and all appends so far, such as the 12 in `00003-of-00012`."""
        return self.tasks_before + self.num_shards

    @functools.cached_property
    def _offsets(self) -> np.ndarray:
        assert self.spans is not None, "a new plan has spans"
        ends = np.cumsum(self.spans[:, 1] - self.spans[:, 0])
        return np.searchsorted(ends, np.cumsum([0, *self.rows]), "right")

    def spans_of(self, first: int, last: int) -> np.ndarray:
        """Return the row ranges of the shards `first` to `last` - 1, int64 [n, 2]."""
        assert self.spans is not None, "a new plan has spans"
        return self.spans[self._offsets[first] : self._offsets[last]]

    def tasks(self) -> list[ShardTask]:
        """Return one task per shard."""
        return [
            ShardTask(split=self.split, index=index, count=self.tasks_after, num_rows=rows)
            for index, rows in enumerate(self.rows, start=self.tasks_before)
        ]


def split_seed(split: str) -> int:
    """Return a number for the split `split`, which makes random seeds differ between splits."""
    return zlib.crc32(split.encode())


def block_rows(*, row_bytes: float, shard_bytes: int) -> int:
    """Return the maximum number of rows in a block. `row_bytes`: mean size of a row's records."""
    return int(min(MAX_BLOCK_ROWS, max(1, shard_bytes / (_BLOCKS_PER_SHARD * max(row_bytes, 1.0)))))


def cut_rows(numbers: np.ndarray, weights: np.ndarray, *, rows: int, row_bytes: float) -> Blocks:
    """Cut N rows into blocks of at most `rows` rows. `numbers` int64 [N]: row numbers. `weights` [N]: predicted bytes.

    A block ends earlier at about `ROOM` times the size of `rows` average rows. `row_bytes`: size of an average row.
    """
    limit = max(ROOM * rows * row_bytes, 1.0)
    before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
    # No term ever decreases, so the sum changes wherever one of them changes.
    period = np.arange(len(numbers)) // rows + before // limit
    long = weights >= limit
    begins = (np.diff(period, prepend=-1.0) != 0) | long | np.concatenate([[False], long[:-1]])
    begins[1:] |= np.diff(numbers) != 1
    edges = np.flatnonzero(begins)
    last = np.append(edges[1:], len(numbers)) - 1
    return Blocks(numbers[edges], numbers[last] + 1, np.add.reduceat(weights, edges))


def runs_of(blocks: Blocks, files: np.ndarray, *, shard_bytes: int) -> np.ndarray:
    """Divide the blocks into runs of about equal size, each inside a file. Return the index of each run's first block.

    `files` int64 [N]: the index of the file that contains each block. The result is int64 [R].
    """
    first = np.flatnonzero(np.diff(files, prepend=-1))
    ends = np.cumsum(np.maximum(blocks.predicted_bytes, 1e-9))
    edges = np.concatenate([[0.0], ends[first[1:] - 1], ends[-1:]])
    parts = np.maximum(1, np.rint(_RUNS_PER_SHARD * np.diff(edges) / shard_bytes)).astype(np.int64)
    owner = np.repeat(np.arange(len(first)), parts)
    part = np.arange(len(owner)) - (np.cumsum(parts) - parts)[owner]
    return np.unique(np.searchsorted(ends, edges[owner] + part * (np.diff(edges) / parts)[owner], "right"))


def plan_split(
    blocks: Blocks, split: SplitSource, *, shard_bytes: int, seed: int, shuffle: bool, runs: np.ndarray | None = None
) -> SplitPlan:
    """Distribute a split's blocks over shards of about `shard_bytes`. Each row is in one shard; no shard is empty.

    `runs`: the result of `runs_of`, to shuffle whole runs of blocks; None to shuffle single blocks.
    """
    order = np.arange(len(blocks.starts) if runs is None else len(runs), dtype=np.int32)  # half the memory of int64
    if shuffle:
        np.random.default_rng([seed, split_seed(split.name)]).shuffle(order)
    if runs is not None:
        sizes, first = np.diff(runs, append=len(blocks.starts))[order], runs[order]
        order = np.arange(len(blocks.starts), dtype=np.int32)
        order += np.repeat((first - (np.cumsum(sizes) - sizes)).astype(np.int32), sizes)
    rows = offsets_of((blocks.stops - blocks.starts)[order])
    weights = blocks.predicted_bytes[order]
    total = float(weights.sum())
    low = max(1, int(total // shard_bytes))
    nearest = min((low, low + 1), key=lambda candidate: abs(total / candidate / shard_bytes - 1.0))
    num_shards = 1 if total <= shard_bytes else min(nearest, int(rows[-1]))
    # Cut between rows so that the shards have equal weights, and at least one row each.
    ends = np.concatenate([[0.0], np.cumsum(np.maximum(weights, 1e-9))])
    cuts = np.rint(np.interp(np.linspace(0.0, ends[-1], num_shards + 1), ends, rows)).astype(np.int64)
    index = np.arange(num_shards + 1)
    cuts = np.minimum(np.maximum.accumulate(cuts - index) + index, rows[-1] - index[::-1])
    return SplitPlan(
        split=split.name,
        source_split=split.source_split,
        ranges=split.ranges,
        predicted_bytes=round(total),
        rows=tuple(np.diff(cuts).tolist()),
        tasks_before=split.tasks_before,
        spans=_spans(blocks.starts, order, rows, cuts, ascending=shuffle),  # the records are shuffled later
    )


def _spans(starts: np.ndarray, order: np.ndarray, rows: np.ndarray, cuts: np.ndarray, *, ascending: bool) -> np.ndarray:
    begins = np.union1d(rows[:-1], cuts[:-1])
    block = np.searchsorted(rows, begins, "right") - 1
    shard = np.searchsorted(cuts, begins, "right")
    lows = starts[order[block]] + begins - rows[block]
    highs = lows + np.diff(begins, append=cuts[-1])
    if ascending:
        by_row = np.lexsort((lows, shard))
        lows, highs = lows[by_row], highs[by_row]
    return _merged(lows, highs, owners=shard)


def _merged(starts: np.ndarray, stops: np.ndarray, owners: np.ndarray | None = None) -> np.ndarray:
    begins = np.ones(len(starts), bool)
    begins[1:] = starts[1:] != stops[:-1]
    if owners is not None:
        begins[1:] |= owners[1:] != owners[:-1]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(starts)) - 1
    return np.stack([starts[first], stops[last]], axis=1)
