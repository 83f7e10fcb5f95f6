"""Marking rows that are left out on purpose, by a column of reasons beside the columns of the source.

    text                 \\0left_out
    'Good. Really.'      ''                    stays
    null                 'filtered'            one of the user's filters left it out
    'Fine.'              'held_out'            for another split

Rows keep their numbers. A batch has the column only if it has such rows; their other values mean nothing. The ledger
counts the reasons (see `tfrecord_io.format.ledger`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["kept_rows", "reasons_of", "with_reasons", "without_reasons"]

# No column of a source has such a name.
_COLUMN = "\0left_out"


def with_reasons(batch: pa.RecordBatch, reasons: np.ndarray) -> pa.RecordBatch:
    """Return the rows with their reasons, str objects [n], empty for rows that stay.

    If most rows are left out, their values become null, so that their text is neither copied nor counted.
    """
    kept = reasons == ""
    if kept.all():
        return batch
    arrays = batch.columns
    if 2 * kept.sum() < len(kept):
        indices = pa.array(np.arange(len(kept)), mask=~kept)
        arrays = [column.take(indices) for column in arrays]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(reasons, pa.string())], names=[*batch.schema.names, _COLUMN])


def reasons_of(batch: pa.RecordBatch) -> np.ndarray | None:
    """Return the reason of each row, str objects [n], empty for rows that stay; None if all do."""
    index = batch.schema.get_field_index(_COLUMN)
    return None if index < 0 else np.asarray(batch.column(index).to_numpy(zero_copy_only=False))


def kept_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that are not left out."""
    reasons = reasons_of(batch)
    return batch if reasons is None else without_reasons(batch.filter(pa.array(reasons == "")))


def without_reasons(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without the column of reasons."""
    return batch.select([name for name in batch.schema.names if name != _COLUMN])
