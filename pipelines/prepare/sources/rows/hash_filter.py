"""Divide rows among the splits of `--hold-out` by a hash of their content.

Equal texts have equal hashes, whatever the batch, machine or Arrow encoding:

    a text              xxh3_64 of its UTF-8 bytes
    a list, a struct    xxh3_64 of the hashes of its items, or of its fields by name
    a number            xxh3_64 of its text
    several columns     xxh3_64 of their hashes, in order
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipelines.prepare.sources.parquet.stored_columns import is_list
from tfrecord_io.manifest import HELD_OUT, NOT_HELD_OUT

# Bound of hashes, so that JSON numbers hold them exactly.
HASHES = 1 << 48
_SHIFT = np.uint64(64 - 48)
# Makes these hashes independent of other uses of the seed.
_PURPOSE = 7
_NULL = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HashFilter:
    """Filter that keeps rows with a hash in [low, high) if `held_out`, or else all other rows.

    `columns` are hashed. A row with a null is never held out, unless the null is in an `optional` column.
    """

    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()
    seed: int
    low: int
    high: int
    held_out: bool

    @property
    def share(self) -> float:
        """Approximate fraction of rows that the filter keeps, above 0 and below 1."""
        share = (self.high - self.low) / HASHES
        return share if self.held_out else 1.0 - share

    def reasons(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the reason why each of n rows is left out, str objects [n], '' for kept rows."""
        seed = int(np.random.SeedSequence([self.seed, _PURPOSE]).generate_state(1, np.uint64)[0])
        hashes = row_hashes([batch.column(name) for name in self.columns], seed=seed) >> _SHIFT
        inside = (hashes >= self.low) & (hashes < self.high)
        for name in set(self.columns).difference(self.optional):
            inside &= ~np.asarray(batch.column(name).is_null())
        return np.where(inside != self.held_out, NOT_HELD_OUT if self.held_out else HELD_OUT, "").astype(object)


def row_hashes(columns: Sequence[pa.Array], *, seed: int) -> np.ndarray:
    """Return a hash of each of n rows, uint64 [n]. `seed` must be below 2^64."""
    hashes = [_hashes(column, seed) for column in columns]
    return hashes[0] if len(hashes) == 1 else _joined(hashes, seed)


def _hashes(column: pa.Array, seed: int) -> np.ndarray:
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _hashes(column.storage, seed)
    if pa.types.is_dictionary(kind):
        return _hashes(column.cast(kind.value_type), seed)
    if pa.types.is_struct(kind):
        hashes = _joined([_hashes(column.field(name), seed) for name in sorted(field.name for field in kind)], seed)
    elif is_list(kind):
        ends = 8 * np.append(0, np.cumsum(pc.list_value_length(column).fill_null(0)))
        hashes = _digests(_hashes(column.flatten(), seed).astype("<u8").tobytes(), ends, seed)
    elif pa.types.is_null(kind):
        hashes = np.full(len(column), _NULL)
    else:
        is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
        try:
            texts = column.cast(pa.large_binary() if is_binary else pa.large_string())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # nested, or without a text form
            texts = pa.array([repr(value) for value in column.to_pylist()], pa.large_string())
        hashes = _digests(*text_buffers(texts), seed)
    return np.where(np.asarray(column.is_null()), _NULL, hashes)


def _joined(hashes: Sequence[np.ndarray], seed: int) -> np.ndarray:
    ends = np.arange(len(hashes[0]) + 1) * 8 * len(hashes)
    return _digests(np.stack(hashes, axis=1).astype("<u8").tobytes(), ends, seed)


def text_buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the joined bytes of n large strings or binaries, uint8, and their offsets, int64 [n + 1]."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets or bytes(8), np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]], ends - ends[0]


def _digests(content: Any, ends: np.ndarray, seed: int) -> np.ndarray:
    view, digest = memoryview(content), xxhash.xxh3_64_intdigest
    return np.array([digest(view[start:stop], seed) for start, stop in itertools.pairwise(ends.tolist())], np.uint64)
