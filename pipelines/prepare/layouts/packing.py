"""Packing: whole documents into rows of exactly L tokens, so that little is padding and no short document is cut.

With L = 8, documents a to e of 3, 11, 4, 2 and 5 tokens, in a shard's order ('.' is padding):

    pieces         a a a | b b b b b b b b | B B B | c c c c | d d | e e e e e       b, longer than L, gives two
    longest first  b: a new row; e: a new row; c: a new row; a: behind e; B: behind c; d fits nowhere: a new row

    input_ids      b b b b b b b b    B B B c c c c .    d d . . . . . .    a a a e e e e e
    segment_ids    1 1 1 1 1 1 1 1    1 1 1 2 2 2 2 0    1 1 0 0 0 0 0 0    1 1 1 2 2 2 2 2
    positions      0 1 2 3 4 5 6 7    0 1 2 0 1 2 3 0    0 1 0 0 0 0 0 0    0 1 2 0 1 2 3 4

A piece goes into the row with the least room that is enough; among several, into the one that came to have that room
last. This is best-fit decreasing bin packing, which Ding et al. use for language models (arXiv:2404.10830), over all
documents of a shard. Taking the longest first makes the rows full, but would leave rows of short documents for the
end. So the piece that opened a row decides its place: rows follow each other as those pieces do in the shard's order,
be it random or the source's. Inside a row, all pieces keep that order.

The least room that is enough is found in a bitmap of the rooms that there are, 64 to a word.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pipelines.prepare.tokenize.document_frames import DocumentFrame
from pipelines.prepare.tokenize.ragged import RaggedTokens, offsets_of
from tfrecord_io.codec.kernels import jit, lowest_bit

__all__ = ["Packing", "lay_out", "pack"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """The pieces of documents that make each of R rows.

    Row r has the pieces from `edges[r]` up to `edges[r + 1]`, one segment each. A piece is the tokens [first, first +
    size) of a document, counting what is put around it. All int64; `edges` [R + 1].
    """

    documents: np.ndarray
    firsts: np.ndarray
    sizes: np.ndarray
    edges: np.ndarray

    def __len__(self) -> int:
        return len(self.edges) - 1

    def rows(self, start: int, stop: int) -> Packing:
        """Return the rows from `start` up to, not including, `stop`."""
        low, high = self.edges[start], self.edges[min(stop, len(self))]
        return Packing(
            documents=self.documents[low:high],
            firsts=self.firsts[low:high],
            sizes=self.sizes[low:high],
            edges=self.edges[start : stop + 1] - low,
        )

    def parts(self, row: int) -> list[tuple[int, int, int]]:
        """Return (document, start, stop) for each segment of a row, in order; [start, stop) are its positions."""
        chosen = self.rows(row, row + 1)
        stops = np.cumsum(chosen.sizes)
        return list(zip(chosen.documents.tolist(), (stops - chosen.sizes).tolist(), stops.tolist(), strict=True))


def pack(lengths: np.ndarray, *, length: int, order: np.ndarray | None = None) -> Packing:
    """Pack the documents with the indices `order` (default: all) into rows of at most `length` tokens.

    `lengths` int64 [N] are the documents' tokens, with what is put around them. A document of length 0 is in no row.
    """
    chosen = np.arange(len(lengths)) if order is None else order
    documents, firsts, sizes = _split(lengths[chosen], chosen, length)
    row_of_piece, num_rows = _best_fit(sizes, length)
    edges = offsets_of(np.bincount(row_of_piece, minlength=num_rows))
    documents, firsts, sizes = _grouped(row_of_piece, edges, documents, firsts, sizes)
    return Packing(documents=documents, firsts=firsts, sizes=sizes, edges=edges)


def lay_out(
    documents: RaggedTokens,
    packing: Packing,
    *,
    length: int,
    pad_id: int,
    frame: DocumentFrame,
    loss_mask: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Lay the rows of `packing` out as arrays, padded on the right.

    `frame` is put around each document; the packing must count its tokens.

    Returns: input_ids int32 [R, length]; segment_ids and positions [R, length], uint16 if that can hold `length`, else
    int32; loss_mask uint8 [R, length] if `loss_mask` (one value for each token of `documents`) is given, with 0 on
    padding and on what is before a document, and 1 on what is after it.
    """
    shape = (len(packing), length)
    narrow = np.uint16 if length < 2**16 else np.int32
    segment_ids, positions = np.empty(shape, narrow), np.empty(shape, narrow)
    _mark(packing.sizes, packing.edges, segment_ids, positions)
    places = (documents.offsets, packing.documents, packing.firsts, packing.sizes, packing.edges)
    before, after = np.array(frame.before, np.int32), np.array(frame.after, np.int32)
    laid_out: dict[str, np.ndarray] = {
        "input_ids": np.empty(shape, np.int32),
        "segment_ids": segment_ids,
        "positions": positions,
    }
    _place(documents.ids, *places, before, after, pad_id, laid_out["input_ids"])
    if loss_mask is not None:
        laid_out["loss_mask"] = np.empty(shape, np.uint8)
        _place(loss_mask, *places, np.zeros_like(before), np.ones_like(after), 0, laid_out["loss_mask"])
    return laid_out


@jit
def _split(lengths, order, length):  # type: ignore[no-untyped-def]
    """Pieces of at most `length` tokens, in order: document, first token and size of each. `lengths` are in that order
    already.
    """
    count = 0
    for size in lengths:
        count += (size + length - 1) // length
    documents, firsts, sizes = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    piece = 0
    for place in range(len(order)):
        for first in range(0, lengths[place], length):
            documents[piece] = order[place]
            firsts[piece] = first
            sizes[piece] = min(lengths[place] - first, length)
            piece += 1
    return documents, firsts, sizes


@jit
def _best_fit(sizes, length):  # type: ignore[no-untyped-def]
    """Assign pieces to rows by best fit. Returns: rows, int64 [P], numbered by their first pieces; their number."""
    order = _longest_first(sizes, length)
    # No two rows would fit into one, so that all but one are half full on average.
    most = min(len(sizes), 2 * sizes.sum() // length + 1)
    row_of_piece = np.empty(len(sizes), np.int64)
    opener, below = np.empty(most, np.int64), np.empty(most, np.int64)
    top = np.full(length, -1, np.int64)  # of the stack of rows with that much room; `below` are the others
    bits = np.zeros((length >> 6) + 1, np.uint64)
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
        if left:
            if top[left] < 0:
                bits[left >> 6] |= np.uint64(1) << np.uint64(left & 63)
            below[row] = top[left]
            top[left] = row
    return _renumbered(row_of_piece, opener[:num_rows]), num_rows


@jit
def _longest_first(sizes, length):  # type: ignore[no-untyped-def]
    """Return the indices of the pieces by falling size; equal sizes keep their order."""
    at = np.zeros(length + 1, np.int64)
    for size in sizes:
        at[length - size] += 1
    total = 0
    for index in range(length + 1):
        total, at[index] = total + at[index], total
    order = np.empty(len(sizes), np.int64)
    for piece in range(len(sizes)):
        place = length - sizes[piece]
        order[at[place]] = piece
        at[place] += 1
    return order


@jit
def _renumbered(row_of_piece, opener):  # type: ignore[no-untyped-def]
    """Return the rows renumbered in the order of the pieces that opened them."""
    new = np.empty(len(opener), np.int64)
    num_rows = 0
    for piece in range(len(row_of_piece)):
        row = row_of_piece[piece]
        if opener[row] == piece:
            new[row] = num_rows
            num_rows += 1
    for piece in range(len(row_of_piece)):
        row_of_piece[piece] = new[row_of_piece[piece]]
    return row_of_piece


@jit
def _grouped(row_of_piece, edges, documents, firsts, sizes):  # type: ignore[no-untyped-def]
    """Group the pieces' values by row; the values of row r begin at `edges[r]`."""
    at = edges.copy()
    by_row = np.empty_like(documents), np.empty_like(firsts), np.empty_like(sizes)
    for piece in range(len(row_of_piece)):
        row = row_of_piece[piece]
        place = at[row]
        at[row] += 1
        by_row[0][place] = documents[piece]
        by_row[1][place] = firsts[piece]
        by_row[2][place] = sizes[piece]
    return by_row


@jit
def _next_set(bits, at):  # type: ignore[no-untyped-def]
    """Return the first set bit at or after `at`, or -1."""
    first = at >> 6
    rest = bits[first] >> np.uint64(at & 63)
    if rest:
        return at + lowest_bit(rest)
    for word in range(first + 1, len(bits)):
        if bits[word]:
            return (word << 6) + lowest_bit(bits[word])
    return -1


# Indices that cannot be negative: a loop over signed ones tests each, and reaches a fifth of the speed (measured).
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
def _place(values, offsets, documents, firsts, sizes, edges, before, after, fill, out):  # type: ignore[no-untyped-def]
    """Write the value of each token into its place, `before` and `after` around documents, and `fill` elsewhere."""
    ahead = len(before)
    length = np.uint64(out.shape[1])
    out = out.reshape(-1)
    at = np.uint64(0)
    for row in range(len(edges) - 1):
        for piece in range(edges[row], edges[row + 1]):
            begin, end = offsets[documents[piece]], offsets[documents[piece] + 1]
            start = begin + firsts[piece] - ahead
            stop = start + sizes[piece]
            for index in range(start, min(stop, begin)):
                out[at] = before[index - begin + ahead]
                at += np.uint64(1)
            source = np.uint64(min(max(start, begin), end))
            copied = np.uint64(max(min(stop, end), begin)) - source
            for index in range(copied):
                out[at + index] = values[source + index]
            at += copied
            for index in range(max(start, end), stop):
                out[at] = after[index - end]
                at += np.uint64(1)
        row_end = np.uint64(row + 1) * length
        for place in range(at, row_end):
            out[place] = fill
        at = row_end
