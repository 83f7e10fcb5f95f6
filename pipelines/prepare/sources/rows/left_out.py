"""Marking rows that are left out on purpose, by a column of reason codes beside the columns of the source.

    text                 \\0left_out
    'Good. Really.'      0                 stays
    null                 1                 filtered: one of the user's filters left it out
    'Fine.'              2                 held out: for another split (or 3, not held out for this one)

Rows keep their numbers. A batch has the column only if it has such rows; their other values mean nothing.
`extraction.validate` turns codes into reasons, which the ledger counts.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tfrecord_io.format.ledger import LEFT_OUT

__all__ = ["CODES", "codes_of", "kept_rows", "with_codes", "without_codes"]

# Codes by reason; 0 is for rows that are kept.
CODES = {reason: code for code, reason in enumerate(LEFT_OUT, start=1)}

# No column of a source has such a name.
_COLUMN = "\0left_out"


def with_codes(batch: pa.RecordBatch, codes: np.ndarray) -> pa.RecordBatch:
    """Return the rows with their codes, int8 [n].

    If most rows are left out, their values become null, so that their text is neither copied nor counted.
    """
    kept = codes == 0
    if kept.all():
        return batch
    arrays = batch.columns
    if 2 * kept.sum() < len(kept):
        indices = pa.array(np.arange(len(kept)), mask=~kept)
        arrays = [column.take(indices) for column in arrays]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(codes, pa.int8())], names=[*batch.schema.names, _COLUMN])


def codes_of(batch: pa.RecordBatch) -> np.ndarray | None:
    """Return the code of each row, int8 [n]; None if all rows are kept."""
    index = batch.schema.get_field_index(_COLUMN)
    return None if index < 0 else np.asarray(batch.column(index).to_numpy(zero_copy_only=False))


def kept_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that are not left out."""
    codes = codes_of(batch)
    return batch if codes is None else without_codes(batch.filter(pa.array(codes == 0)))


def without_codes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without the column of codes."""
    return batch.select([name for name in batch.schema.names if name != _COLUMN])
