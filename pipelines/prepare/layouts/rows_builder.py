"""Builder for layouts that do not join rows: each ragged value is padded to a fixed length.

    ragged input_ids     5 9 2 | 7 | 4 4        fields  input_ids: L = 4, filled with 0 on the right, and a mask
                                                                        attention_mask
    input_ids            5 9 2 0     7 0 0 0     4 4 0 0
    attention_mask       1 1 1 0     1 0 0 0     1 1 0 0

Values that are the same in every record are `constants`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipelines.prepare.layouts.base import Encoded, Lineage, Piece, joined, permuted
from pipelines.prepare.options.config import Side
from pipelines.prepare.tokenize import arrays
from pipelines.prepare.tokenize.ragged import GrowingRagged, RaggedTokens

__all__ = ["Field", "RowsBuilder"]

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
        beside = joined(self._arrays)
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
            out[field.name] = arrays.filled(
                values, length=field.length, value=field.fill, side=field.side, dtype=field.laid_out, order=order
            )
            if field.mask is not None:
                out[field.mask] = arrays.marked(values, length=field.length, side=field.side, order=order)
        return out
