"""Pack documents into rows of exactly L tokens, with little padding. Only documents longer than a row are split.

This is best-fit decreasing bin packing (Ding et al., arXiv:2404.10830). It puts rows of short documents last, so the
rows are then sorted by the position of their first piece. docs/format.md has an example.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import DTypeLike

from pipelines.prepare.tokenize.ragged import RaggedTokens, offsets_of
from tfrecord_io.codec.kernels import jit, lowest_bit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """R rows of tokens, each with the pieces of one or more documents.

    Row r has the pieces [edges[r], edges[r + 1]). Piece i has `sizes[i]` tokens of document `documents[i]`, from its
    token `firsts[i]` on, special tokens included. All arrays are int64; `edges` is [R + 1].
    """

    documents: np.ndarray
    firsts: np.ndarray
    sizes: np.ndarray
    edges: np.ndarray

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def num_tokens(self) -> np.ndarray:
        """Number of tokens per row, int64 [R]."""
        return np.diff(offsets_of(self.sizes)[self.edges])

    def rows(self, start: int, stop: int) -> Packing:
        low, high = self.edges[start], self.edges[min(stop, len(self))]
        return Packing(
            documents=self.documents[low:high],
            firsts=self.firsts[low:high],
            sizes=self.sizes[low:high],
            edges=self.edges[start : stop + 1] - low,
        )

    def parts(self, row: int) -> list[tuple[int, int, int]]:
        """Return (document, start, stop) for each piece of a row: the piece has the row's tokens [start, stop)."""
        chosen = self.rows(row, row + 1)
        stops = np.cumsum(chosen.sizes)
        return list(zip(chosen.documents.tolist(), (stops - chosen.sizes).tolist(), stops.tolist(), strict=True))


def pack(lengths: np.ndarray, *, length: int, order: np.ndarray | None = None, most: int | None = None) -> Packing:
    """Pack the documents at the indices `order` (default: all) into rows of at most `length` tokens.

    `lengths` int64 [N]: tokens per document; a document without tokens is in no row. `most`: maximum pieces in a row.
    """
    order = np.arange(len(lengths)) if order is None else order
    num_pieces = -(-lengths[order] // length)
    documents = np.repeat(order, num_pieces)
    firsts = length * (np.arange(len(documents)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces))
    sizes = np.minimum(lengths[documents] - firsts, length)
    row_of_piece, opener = _best_fit(sizes, np.argsort(-sizes, kind="stable"), length, most or len(sizes) + 1)
    row_of_piece = np.argsort(np.argsort(opener))[row_of_piece]
    by_row = np.argsort(row_of_piece, kind="stable")
    edges = offsets_of(np.bincount(row_of_piece, minlength=len(opener)))
    return Packing(documents=documents[by_row], firsts=firsts[by_row], sizes=sizes[by_row], edges=edges)


def join(lengths: np.ndarray, *, length: int, order: np.ndarray) -> Packing:
    """Join the documents at the indices `order`, then cut them into rows of `length` tokens. `lengths`: see `pack`."""
    order = order[lengths[order] > 0]
    stops = np.cumsum(lengths[order])
    starts = stops - lengths[order]
    row_starts = np.arange(0, int(lengths[order].sum()), length)
    # Merges two ascending runs in linear time, faster than the hashing of union1d.
    begins = np.sort(np.concatenate([starts, row_starts]), kind="stable")
    begins = begins[np.diff(begins, prepend=-1) > 0]
    at = np.searchsorted(stops, begins, "right")
    return Packing(
        documents=order[at],
        firsts=begins - starts[at],
        sizes=np.diff(begins, append=stops[-1:]),
        edges=np.append(np.searchsorted(begins, row_starts), len(begins)),
    )


def lay_out(values: RaggedTokens, packing: Packing, *, length: int, dtype: DTypeLike, fill: int = 0) -> np.ndarray:
    """Return R rows of values, [R, length] of `dtype`, padded on the right. `values`: one per token of a document."""
    out = np.empty((len(packing), length), dtype)
    starts = values.offsets[packing.documents] + packing.firsts
    place(values.ids, starts, packing.sizes, packing.edges, False, fill, out)
    return out


def segments(packing: Packing, *, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a segment id (1, 2, ...) and a position in the segment for each token of R rows, both [R, length].

    They are 0 on padding. Their dtype is uint16 if it can hold `length`, else int32.
    """
    shape, dtype = (len(packing), length), np.uint16 if length < 2**16 else np.int32
    segment_ids, positions = np.empty(shape, dtype), np.empty(shape, dtype)
    _mark(packing.sizes, packing.edges, segment_ids, positions)
    return segment_ids, positions


@jit
def _best_fit(sizes, order, length, most):  # type: ignore[no-untyped-def]
    # No two rows fit into one, unless one of them has `most` pieces. So all rows but one are half full on average.
    most_rows = min(len(sizes), 2 * sizes.sum() // length + 1 + len(sizes) // most)
    row_of_piece = np.empty(len(sizes), np.int64)
    opener, below = np.empty(most_rows, np.int64), np.empty(most_rows, np.int64)
    pieces = np.zeros(most_rows, np.int64)
    top = np.full(length, -1, np.int64)  # stack of rows per amount of room, linked by `below`
    bits = np.zeros((length >> 6) + 1, np.uint64)  # bitmap of the amounts of room
    num_rows = 0
    for piece in order:
        size = sizes[piece]
        room = _next_set(bits, size)
        if room < 0:
            row, room = num_rows, length
            opener[row] = piece
            num_rows += 1
        else:
            row = top[room]
            top[room] = below[row]
            if top[room] < 0:
                bits[room >> 6] &= ~(np.uint64(1) << np.uint64(room & 63))
        row_of_piece[piece] = row
        left = room - size
        pieces[row] += 1
        if left and pieces[row] < most:
            if top[left] < 0:
                bits[left >> 6] |= np.uint64(1) << np.uint64(left & 63)
            below[row] = top[left]
            top[left] = row
    return row_of_piece, opener[:num_rows]


@jit
def _next_set(bits, at):  # type: ignore[no-untyped-def]
    first = at >> 6
    rest = bits[first] >> np.uint64(at & 63)
    if rest:
        return at + lowest_bit(rest)
    for word in range(first + 1, len(bits)):
        if bits[word]:
            return (word << 6) + lowest_bit(bits[word])
    return -1


# Indices are unsigned because Numba checks the sign of signed ones: loops would take five times as long (measured).
@jit
def _mark(sizes, edges, segment_ids, positions):  # type: ignore[no-untyped-def]
    length = np.uint64(segment_ids.shape[1])
    segment_ids, positions = segment_ids.reshape(-1), positions.reshape(-1)
    at = np.uint64(0)
    for row in range(len(edges) - 1):
        for piece in range(edges[row], edges[row + 1]):
            size = np.uint64(sizes[piece])
            for position in range(size):
                segment_ids[at + position] = piece - edges[row] + 1
                positions[at + position] = position
            at += size
        row_end = np.uint64(row + 1) * length
        for place in range(at, row_end):
            segment_ids[place] = 0
            positions[place] = 0
        at = row_end


@jit
def place(values, starts, sizes, edges, left, fill, out):  # type: ignore[no-untyped-def]
    """Fill row r of `out` with the pieces [edges[r], edges[r + 1]) and pad it with `fill`, on the left if `left`.

    Piece i is the `sizes[i]` items of `values` from `starts[i]` on.
    """
    length = np.uint64(out.shape[1])
    for row in range(len(edges) - 1):
        line = out[row]
        at = length - np.uint64(sizes[edges[row] : edges[row + 1]].sum()) if left else np.uint64(0)
        for position in range(at):
            line[position] = fill
        for piece in range(edges[row], edges[row + 1]):
            start, size = np.uint64(starts[piece]), np.uint64(sizes[piece])
            for index in range(size):
                line[at + index] = values[start + index]
            at += size
        for position in range(at, length):
            line[position] = fill
