"""Rows left out by a decision that was made before the plan and is stored beside it: duplicates, contaminated rows.

    row     reason               of_split   of_row
    17      duplicate            train      3            row 3 of train stays
    40      contaminated:gsm8k                           has a run of words of that evaluation set

A decision follows from the source and the options, so that shards stay functions of plan and source.
"""

from __future__ import annotations

import dataclasses
import functools
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare import storage
from tfrecord_io.errors import FormatError

__all__ = ["TYPES", "DecidedRows", "decode", "encode"]

TYPES = pa.schema([("row", pa.int64()), ("reason", pa.string()), ("of_split", pa.string()), ("of_row", pa.int64())])
_MOST_BYTES = 1 << 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecidedRows:
    """The decided rows of one split, in the file `path`, or `content` until that is written. A `share` of all stay."""

    path: str
    share: float = 1.0
    content: pa.Table | None = dataclasses.field(default=None, compare=False, repr=False)

    def reasons(self, first: int, count: int) -> np.ndarray:
        """Return why each of the rows from `first` on is left out, str objects [count]; empty for rows that stay.

        Raises: FormatError if the file is gone or damaged.
        """
        table = self.content if self.content is not None else _stored(self.path)
        rows = table["row"].to_numpy()
        inside = slice(*np.searchsorted(rows, [first, first + count]))
        found = np.full(count, "", object)
        found[rows[inside] - first] = table["reason"].slice(inside.start, inside.stop - inside.start).to_pylist()
        return found

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "content": None}  # workers read the file


def encode(table: pa.Table) -> bytes:
    """Return the content of the file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def decode(path: str) -> pa.Table:
    """Read a file. Raises: FormatError if it is gone or damaged."""
    remedy = "copy .prep/ again from where the dataset was made, or build it anew with --overwrite"
    try:
        table = pq.read_table(io.BytesIO(storage.read_bytes(path, most_bytes=_MOST_BYTES)))
    except (OSError, pa.ArrowException) as error:
        raise FormatError(
            f"{path}: the rows that were left out are gone or damaged ({error})", remedy=remedy
        ) from error
    if not table.schema.equals(TYPES):
        raise FormatError(f"{path}: columns {table.schema.names}, expected {TYPES.names}", remedy=remedy)
    return table


_stored = functools.lru_cache(maxsize=8)(decode)
