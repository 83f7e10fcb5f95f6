"""Builders for layouts that do not join rows: each ragged value is padded to a fixed length, or to one of several.

    ragged input_ids     5 9 2 | 7 | 4 4        fields  input_ids: L = 4, filled with 0 on the right, and a mask
                                                                        attention_mask
    input_ids            5 9 2 0     7 0 0 0     4 4 0 0
    attention_mask       1 1 1 0     1 0 0 0     1 1 0 0

Values that are the same in every record are `constants`. For records of several lengths there is one builder for each
length, which lays out its rows as if the dataset had only that length:

    lengths 4, 8      rows of   3   6   2   9   4 tokens  (the fourth was cut to 8)
                      group 4:  0       2       4         rows of the task
                      group 8:      1       3
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from pipelines.prepare.layouts.base import Builder, Encoded, Lineage, Piece, permuted
from pipelines.prepare.options.bucket_lengths import bucket_of
from pipelines.prepare.options.config import Side
from pipelines.prepare.tokenize.ragged import GrowingRagged, RaggedTokens
from tfrecord_io.codec.kernels import jit
from tfrecord_io.errors import SchemaError

__all__ = ["BucketsBuilder", "Field", "LengthGroup", "RowsBuilder", "length_groups"]

_ROWS_PER_CHUNK = 1024
# A chunk has fewer long rows, since they are laid out with all of their padding.
_POSITIONS_PER_CHUNK = 1 << 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """Description of how the ragged values `name` become a feature [N, length], filled up with `fill` on `side`.

    `held`: their dtype while a shard is gathered. `laid_out`: the dtype of the feature. `mask`: the name of a feature
    that is 1 on the values and 0 elsewhere, or None. `length` None: one value a record, and the feature is [N].
    """

    name: str
    length: int | None
    fill: int
    side: Side
    held: np.dtype
    laid_out: np.dtype = dataclasses.field(default_factory=lambda: np.dtype(np.int32))
    mask: str | None = None


class RowsBuilder:
    """Builder that makes one record of each sequence, with other arrays beside it."""

    def __init__(self, fields: Sequence[Field], *, constants: Mapping[str, np.ndarray] | None = None) -> None:
        """Open the builder. `constants` are values [length] that are the same in every record."""
        self.rows_used = 0
        self.tokens_cut = 0
        self._fields = tuple(fields)
        self._constants = dict(constants or {})
        self._ragged = {field.name: GrowingRagged(field.held) for field in fields}
        self._arrays: list[dict[str, np.ndarray]] = []
        self._usable: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []
        self._num_sequences = self._num_rows = 0

    def add(self, encoded: Encoded) -> None:
        """Add the usable rows of a batch."""
        self.tokens_cut += encoded.tokens_cut
        for name, ragged in self._ragged.items():
            ragged.append(encoded.ragged[name])
        usable, owners = np.flatnonzero(encoded.usable), encoded.row_of_sequence
        # Unusable rows do not count: they are listed in rejected/.
        number = np.cumsum(encoded.reasons == "") - 1 + self._num_rows
        self._rows.append(number[owners[usable]])
        self._num_rows += int((encoded.reasons == "").sum())
        self._arrays.append({name: values[owners[usable]] for name, values in encoded.arrays.items()})
        self._usable.append(usable + self._num_sequences)
        self._num_sequences += len(owners)

    def chunks(self, rng: np.random.Generator | None) -> Iterator[dict[str, np.ndarray]]:
        """Yield columns by feature name, a thousand records at a time, or fewer long ones."""
        ragged = {name: growing.take_all() for name, growing in self._ragged.items()}
        first = self._arrays[0] if self._arrays else {}
        beside = {name: np.concatenate([batch[name] for batch in self._arrays]) for name in first}
        usable, rows = self._take()
        order = permuted(len(usable), rng)
        laid_out = np.zeros(int(rows.max(initial=-1)) + 1, bool)
        longest = max(field.length or 1 for field in self._fields)
        chunk_rows = max(1, min(_ROWS_PER_CHUNK, _POSITIONS_PER_CHUNK // longest))
        for start in range(0, len(order), chunk_rows):
            chosen = order[start : start + chunk_rows]
            laid_out[rows[chosen]] = True
            self.rows_used = int(np.count_nonzero(laid_out))
            yield {
                **self._laid_out(ragged, usable[chosen]),
                **{name: np.repeat(value[np.newaxis], len(chosen), axis=0) for name, value in self._constants.items()},
                **{name: values[chosen] for name, values in beside.items()},
            }

    def lineage(self, rng: np.random.Generator | None) -> Lineage:
        """Return the lineage of records: each comes from one row."""
        lengths = self._ragged[self._fields[0].name].take_all().lengths
        usable, rows = self._take()
        order = permuted(len(usable), rng)

        def pieces(record: int) -> list[Piece]:
            chosen = order[record]
            return [Piece(int(rows[chosen]), 0, int(lengths[usable[chosen]]))]

        return pieces

    def _take(self) -> tuple[np.ndarray, np.ndarray]:
        empty = np.zeros(0, np.int64)
        usable, rows = np.concatenate([empty, *self._usable]), np.concatenate([empty, *self._rows])
        for gathered in (self._usable, self._rows, self._arrays):
            gathered.clear()
        self._num_sequences = self._num_rows = 0
        return usable, rows

    def _laid_out(self, ragged: Mapping[str, RaggedTokens], order: np.ndarray) -> dict[str, np.ndarray]:
        out = {}
        for field in self._fields:
            values = ragged[field.name]
            if field.length is None:
                out[field.name] = values.ids[order].astype(field.laid_out)
                continue
            lengths = values.offsets[order + 1] - values.offsets[order]
            if int(lengths.max(initial=0)) > field.length:
                raise SchemaError(f"a row of {lengths.max()} tokens, expected at most {field.length}")
            out[field.name] = np.empty((len(order), field.length), field.laid_out)
            left = field.side == "left"
            _place(out[field.name], values.ids, values.offsets, order, left, field.fill)
            if field.mask is not None:
                positions, sizes = np.arange(field.length, dtype=np.int32), lengths.astype(np.int32)[:, None]
                mask = positions >= field.length - sizes if left else positions < sizes
                out[field.mask] = mask.view(np.int8)
        return out


# Indices are unsigned: for a signed one, each access tests whether it counts from the end, which takes several times as
# long as copying the element (measured).
@jit
def _place(out, values, offsets, order, left, fill):  # type: ignore[no-untyped-def]
    """Copy each sequence of `order` into a row, and `fill` into the rest of it."""
    length = np.uint64(out.shape[1])
    for row in range(len(order)):
        start, size = np.uint64(offsets[order[row]]), np.uint64(offsets[order[row] + 1] - offsets[order[row]])
        at = length - size if left else np.uint64(0)
        line = out[row]
        for position in range(at):
            line[np.uint64(position)] = fill
        for position in range(size):
            line[at + np.uint64(position)] = values[start + np.uint64(position)]
        for position in range(at + size, length):
            line[np.uint64(position)] = fill


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
                rows = usable[mine]
                beside = {name: values[rows] for name, values in encoded.arrays.items()}
                taken = encoded.take(rows)
                builder.add(dataclasses.replace(taken, arrays=beside, tokens_cut=int(cut[rows].sum())))
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
