"""Packing as one would write it down: lists, and a look at every row for every piece."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

__all__ = ["Piece", "packed"]


@dataclasses.dataclass(frozen=True, order=True)
class Piece:
    """Tokens [first, first + size) of a document; `place` counts the pieces in the documents' order."""

    place: int
    document: int
    first: int
    size: int


@dataclasses.dataclass
class _Row:
    room: int
    changed: int
    pieces: list[Piece]


def packed(lengths: Sequence[int], *, length: int) -> list[list[Piece]]:
    """The pieces of each row, in order: best fit, longest first, rows by the pieces that opened them."""
    cuts = [(document, first) for document, size in enumerate(lengths) for first in range(0, size, length)]
    pieces = [
        Piece(place, document, first, min(length, lengths[document] - first))
        for place, (document, first) in enumerate(cuts)
    ]
    rows: list[_Row] = []
    for step, piece in enumerate(sorted(pieces, key=lambda piece: (-piece.size, piece.place))):
        fitting = [row for row in rows if row.room >= piece.size]
        row = min(fitting, key=lambda row: (row.room, -row.changed), default=None)
        if row is None:
            row = _Row(length, step, [])
            rows.append(row)
        row.pieces.append(piece)
        row.room -= piece.size
        row.changed = step
    rows.sort(key=lambda row: row.pieces[0])
    return [sorted(row.pieces) for row in rows]
