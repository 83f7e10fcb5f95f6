"""Ragged arrays of tokens, which tokenizers return and layouts take."""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Sequence

import numpy as np

from tfrecord_io.codec.kernels import jit


@dataclasses.dataclass(frozen=True)
class RaggedTokens:
    """N token sequences of different lengths in one array. `ids` [T]: all tokens, any integer dtype.

    `offsets` int64 [N + 1], from 0 to T: sequence i is ids[offsets[i]:offsets[i + 1]].
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens in each sequence, int64 [N]."""
        return np.diff(self.offsets)

    def take(self, order: np.ndarray) -> RaggedTokens:
        offsets = offsets_of(self.lengths[order])
        ids = np.empty(int(offsets[-1]), self.ids.dtype)
        _gather(self.ids, self.offsets, order, offsets, ids)
        return RaggedTokens(ids, offsets)

    def part(self, starts: np.ndarray, lengths: np.ndarray) -> RaggedTokens:
        """Return part of each sequence: `lengths` tokens from the index `starts` on, both int64 [N]."""
        offsets = offsets_of(lengths)
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1] + starts - offsets[:-1], lengths)
        return RaggedTokens(self.ids[places], offsets)

    def common_prefixes(self, second: RaggedTokens) -> np.ndarray:
        """Return how many tokens from the start each sequence shares with the same one in `second`, int64 [N]."""
        shared = np.empty(len(self), np.int64)
        _count_shared(self.ids, self.offsets, second.ids, second.offsets, shared)
        return shared


def concatenated(parts: Sequence[RaggedTokens]) -> RaggedTokens:
    lengths = np.concatenate([part.lengths for part in parts])
    return RaggedTokens(np.concatenate([part.ids for part in parts]), offsets_of(lengths))


def exchanged(ragged: RaggedTokens, indices: np.ndarray, replacements: RaggedTokens) -> RaggedTokens:
    """Return a copy of `ragged` with the sequences at `indices` replaced."""
    order = np.arange(len(ragged))
    order[indices] = len(ragged) + np.arange(len(replacements))
    return concatenated([ragged, replacements]).take(order)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return the offsets of N sequences of the lengths `lengths`, from 0 to their sum, int64 [N + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def id_dtype(vocab_size: int) -> np.dtype:
    """Return the dtype for the token ids of a vocabulary: uint16 if it can hold them, else int32."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.int32)


def from_lists(lists: Sequence[list[int]], *, dtype: np.dtype) -> RaggedTokens:
    """Build a ragged array from lists of ids. Raises: OverflowError if an id does not fit `dtype`."""
    joined = array.array("I")  # reads a list of int in 11 ns per element, NumPy in 25
    for values in lists:
        joined.fromlist(values)
    ids = np.asarray(joined)
    # Without this check, NumPy would silently wrap larger ids.
    if len(ids) and int(ids.max()) > np.iinfo(dtype).max:
        raise OverflowError(f"the token id {ids.max()}, expected at most {np.iinfo(dtype).max}")
    return RaggedTokens(ids.astype(dtype), offsets_of(np.fromiter(map(len, lists), np.int64, len(lists))))


@jit
def _gather(source, source_offsets, order, offsets, out):  # type: ignore[no-untyped-def]
    for index in range(len(order)):
        # Indices are unsigned because Numba checks the sign of signed ones.
        start, at = np.uint64(source_offsets[order[index]]), np.uint64(offsets[index])
        for position in range(np.uint64(offsets[index + 1]) - at):
            out[at + np.uint64(position)] = source[start + np.uint64(position)]


@jit
def _count_shared(ids, offsets, others, other_offsets, shared):  # type: ignore[no-untyped-def]
    for index in range(len(shared)):
        first, second = offsets[index], other_offsets[index]
        size = min(offsets[index + 1] - first, other_offsets[index + 1] - second)
        count = 0
        while count < size and ids[first + count] == others[second + count]:
            count += 1
        shared[index] = count
