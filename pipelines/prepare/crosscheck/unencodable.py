"""Finds and names the rows on which a tokenizer's own library fails."""

from __future__ import annotations

import numpy as np

from pipelines.prepare.layouts import BatchEncoder, Encoded
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize import library_failures
from tfrecord_io.errors import TokenizerError
from tfrecord_io.shown import first_line

__all__ = ["encode"]

_NAMED = 5


def encode(encoder: BatchEncoder, rows: Rows, *, split: str, numbers: np.ndarray) -> Encoded:
    """Return `encoder.encode(rows)`; `numbers` int64 [N] are the row numbers in the split.

    Raises: TokenizerError, which names the failing rows, if the tokenizer fails.
    """
    try:
        return encoder.encode(rows)
    except BaseException as error:
        if not library_failures.is_failure(error):
            raise
        raise _naming_rows(error, encoder, rows, split=split, numbers=numbers) from error


def _naming_rows(
    error: BaseException, encoder: BatchEncoder, rows: Rows, *, split: str, numbers: np.ndarray
) -> TokenizerError:
    causes = [_failure(encoder, rows.take(np.array([index]))) for index in range(len(rows))]
    failing = [index for index, cause in enumerate(causes) if cause]
    named = [f"{numbers[index]:,}" for index in failing[:_NAMED]]
    if len(failing) > _NAMED:
        named.append(f"{len(failing) - _NAMED:,} more")
    # Possibly no row fails alone, and only all rows together are too much.
    which = f"row{'s' * (len(named) > 1)} {', '.join(named)}" if named else f"rows {numbers[0]:,} to {numbers[-1]:,}"
    cause = causes[failing[0]] if failing else _cause(error)
    return TokenizerError(f"{which} of {split}: {cause}", remedy=library_failures.REMEDY)


def _failure(encoder: BatchEncoder, row: Rows) -> str:
    """Return the tokenizer's error for one row; empty if it does not fail on it."""
    try:
        encoder.encode(row)
    except BaseException as error:
        if not library_failures.is_failure(error):
            raise
        return _cause(error)
    return ""


def _cause(error: BaseException) -> str:
    return error.cause if isinstance(error, TokenizerError) else f"the tokenizer fails: {first_line(error)}"
