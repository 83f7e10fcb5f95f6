"""Rows of Parquet row groups and of ingested record batches, read by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from pipelines.prepare.sources.groups import Pieces

__all__ = ["read"]


def read(
    pieces: Pieces, columns: Sequence[str], *, types: pa.Schema, addresses: Mapping[str, str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields (number of the first row, record batch with `columns`), one batch for each piece, in order."""
    raise NotImplementedError
