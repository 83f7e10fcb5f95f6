"""Rows that are left out on purpose, with the reason of each: codes in a column of their own beside the rows.

    text                 \\0left_out
    'Good. Really.'      0                 stays
    null                 1                 filtered: one of the user's filters left it out
    'Fine.'              2                 held out: for another split (or 3, not held out for this one)

Rows keep their numbers. The column is there only if a batch has such rows, and what else they hold means nothing.
`columns.validate` turns the codes into reasons, and the ledger counts them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tfrecord_io.format.ledger import LEFT_OUT

__all__ = ["CODES", "codes_of", "marked", "staying", "without_codes"]

# By reason; 0 is for rows that stay.
CODES = {reason: code for code, reason in enumerate(LEFT_OUT, start=1)}

# No column of a source is called so.
_COLUMN = "\0left_out"


def marked(batch: pa.RecordBatch, codes: np.ndarray) -> pa.RecordBatch:
    """The rows with their codes, int8 [n]. Where most are left out, their values become null: there is no text to copy
    or to weigh.
    """
    stay = codes == 0
    if stay.all():
        return batch
    arrays = batch.columns
    if 2 * stay.sum() < len(stay):
        kept = pa.array(np.arange(len(stay)), mask=~stay)
        arrays = [column.take(kept) for column in arrays]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(codes, pa.int8())], names=[*batch.schema.names, _COLUMN])


def codes_of(batch: pa.RecordBatch) -> np.ndarray | None:
    """The code of each row, int8 [n]; None if all stay."""
    index = batch.schema.get_field_index(_COLUMN)
    return None if index < 0 else np.asarray(batch.column(index).to_numpy(zero_copy_only=False))


def staying(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that are not left out."""
    codes = codes_of(batch)
    return batch if codes is None else without_codes(batch.filter(pa.array(codes == 0)))


def without_codes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of the source."""
    return batch.select([name for name in batch.schema.names if name != _COLUMN])
