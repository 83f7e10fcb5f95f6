"""Builder for records of several lengths: one builder for each length, which lays out its rows as if the dataset
had only that length.

    lengths 4, 8      rows of   3   6   2   9   4 tokens  (the fourth was cut to 8)
                      group 4:  0       2       4         rows of the task
                      group 8:      1       3
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pipelines.prepare.layouts.base import Builder, Encoded, Lineage, Piece
from pipelines.prepare.options.bucket_lengths import bucket_of

__all__ = ["BucketsBuilder", "LengthGroup", "length_groups"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthGroup:
    """The rows of a task whose records have one length.

    `length` is None if all records of the dataset have the same length, and `rows` too then. Otherwise `rows` int64 are
    the indices of the group's rows among the task's usable rows.
    """

    length: int | None
    builder: Builder
    rows: np.ndarray | None = None

    def lineage(self, rng: np.random.Generator | None) -> Lineage:
        """Return the lineage of the records, with indices among all usable rows of the task."""
        inner, rows = self.builder.lineage(rng), self.rows
        if rows is None:
            return inner
        return lambda record: [dataclasses.replace(piece, row=int(rows[piece.row])) for piece in inner(record)]


def length_groups(builder: Builder) -> tuple[LengthGroup, ...]:
    """Return what a builder has gathered, by length: at least one group; an empty one only if there is no other."""
    if isinstance(builder, BucketsBuilder):
        return builder.length_groups()
    return (LengthGroup(length=None, builder=builder),)


class BucketsBuilder:
    """Builder that makes one record of each row, with the smallest length that holds it."""

    def __init__(self, lengths: Sequence[int], open_builder: Callable[[int], Builder]) -> None:
        """Open the builder. `open_builder` returns the builder for records of one length."""
        self._lengths = tuple(lengths)
        self._builders = tuple(open_builder(length) for length in lengths)
        self._rows: tuple[list[np.ndarray], ...] = tuple([np.zeros(0, np.int64)] for _ in lengths)
        self._num_rows = 0

    @property
    def rows_used(self) -> int:
        """Number of rows that are in a record; final once all chunks are taken."""
        return sum(builder.rows_used for builder in self._builders)

    @property
    def tokens_cut(self) -> int:
        """Number of tokens that are in no record."""
        return sum(builder.tokens_cut for builder in self._builders)

    def add(self, encoded: Encoded) -> None:
        """Add the usable rows of a batch."""
        usable = np.flatnonzero(encoded.reasons == "")
        row_tokens = encoded.ragged["input_ids"].lengths
        cut = encoded.full_lengths - row_tokens
        bucket = bucket_of(self._lengths, row_tokens[usable])
        for at, builder in enumerate(self._builders):
            mine = np.flatnonzero(bucket == at)
            self._rows[at].append(self._num_rows + mine)
            if len(mine):
                builder.add(_taken(encoded, usable[mine], tokens_cut=int(cut[usable[mine]].sum())))
        self._num_rows += len(usable)

    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        """Yield columns by feature name, those of the shortest records first."""
        yield from itertools.chain.from_iterable(group.builder.chunks(rng) for group in self.length_groups())

    def lineage(self, rng: np.random.Generator | None) -> Lineage:
        """Return the lineage of the records that `chunks` would give with the same `rng`."""
        every = self.length_groups()
        lineages = [group.lineage(rng) for group in every]
        edges = np.cumsum([0, *(len(group.rows) for group in every if group.rows is not None)])

        def pieces(record: int) -> list[Piece]:
            at = int(np.searchsorted(edges, record, "right")) - 1
            return lineages[at](record - int(edges[at]))

        return pieces

    def length_groups(self) -> tuple[LengthGroup, ...]:
        """Return the groups that have rows, or the one of the longest records if none has."""
        every = [
            LengthGroup(length=length, builder=builder, rows=np.concatenate(rows))
            for length, builder, rows in zip(self._lengths, self._builders, self._rows, strict=True)
        ]
        return tuple(group for group in every if group.rows is not None and len(group.rows)) or (every[-1],)


def _taken(encoded: Encoded, rows: np.ndarray, *, tokens_cut: int) -> Encoded:
    beside = {name: values[rows] for name, values in encoded.arrays.items()}
    return dataclasses.replace(encoded.take(rows), arrays=beside, tokens_cut=tokens_cut)
