"""Reading pieces of Parquet row groups.

    pieces      a/0 from 800    a/1 to 500    b/3    b/4 ...
    fetches     row group 0     row group 1   consecutive pieces of one group are decoded once
    batches     one for each piece, with the requested columns in the types of the split

Remote files are fetched ahead by several threads. Footers, needed for each group of a file, are cached.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.sources.parquet import access, footers, nested
from pipelines.prepare.sources.parquet.casting import cast
from pipelines.prepare.sources.parquet.groups import Pieces, StoredFile
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import visible_line, without_access

__all__ = ["read"]

_THREADS = 8
# Of cached footers as they are in files; parsed ones take about eight times as much memory.
_MOST_FOOTER_BYTES = 8 << 20

_COPY_AGAIN = "copy the file again from where it was made, or leave it out"

# Errors of damaged files, such as a name that is not UTF-8, or a missing column or batch.
_UNREADABLE = (OSError, EOFError, pa.ArrowException, UnicodeDecodeError, KeyError, ValueError, StopIteration)

_footers: dict[StoredFile, pq.FileMetaData] = {}
_locks: dict[StoredFile, threading.Lock] = {}


def read(
    pieces: Pieces, columns: Sequence[str], *, types: pa.Schema, addresses: Mapping[str, str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (number of the first row, record batch with `columns`) for each piece, in order.

    Raises: SourceError if a file is gone, has changed since the plan, cannot be decoded, or has a column of a type
    that cannot be cast to that of the split.
    """
    wanted = nested.schema_of(types, columns)
    remote = any(access.is_remote(addresses.get(file.path, file.path)) for file in pieces.files)

    def load(indices: Sequence[int]) -> list[tuple[int, pa.RecordBatch]]:
        """Return the rows of pieces of one row group, which is decoded once."""
        file, group = pieces.files[pieces.file[indices[0]]], int(pieces.at[indices[0]])
        shown = without_access(file.path)
        try:
            with access.opened(file, addresses) as handle:
                batch = cast(_read_group(file, group, handle, columns, remote=remote), wanted, where=shown)
            return [_cut(batch, pieces, piece) for piece in indices]
        except _UNREADABLE as error:
            row = int(pieces.starts[indices[0]])
            raise SourceError(
                f"{shown}: row group {group}, row {row} of the split, cannot be decoded ({visible_line(str(error))})",
                remedy=footers.INGEST_AGAIN if file.ingested else _COPY_AGAIN,
            ) from error

    groups = list(zip(pieces.file.tolist(), pieces.at.tolist(), strict=True))
    fetches = (list(same) for _, same in itertools.groupby(range(len(pieces)), key=groups.__getitem__))
    for batches in ordered_map(load, fetches, threads=_THREADS if remote else 1):
        yield from batches


def _read_group(
    file: StoredFile, group: int, handle: pa.NativeFile, names: Sequence[str], *, remote: bool
) -> pa.RecordBatch:
    """Read columns of a row group, and of a struct only its fields among them, in their stored types."""
    metadata = _metadata(file, handle)
    if group >= metadata.num_row_groups:
        raise ValueError(f"the file has {metadata.num_row_groups} row groups")
    reader = pq.ParquetFile(handle, metadata=metadata, pre_buffer=remote, page_checksum_verification=True)
    table = nested.select(reader.read_row_group(group, columns=list(names), use_threads=False), names)
    if table.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise ValueError(f"the row group has {table.nbytes:,} bytes, expected a few million")
    return batches[0]


def _metadata(file: StoredFile, handle: pa.NativeFile) -> pq.FileMetaData:
    """Return the parsed footer; the threads that need it wait for the one that fetches it."""
    with _locks.setdefault(file, threading.Lock()):
        if (found := _footers.get(file)) is None:
            found = footers.read_metadata(file, handle)
            while sum(each.serialized_size for each in list(_footers.values())) > _MOST_FOOTER_BYTES:
                _footers.pop(next(iter(list(_footers))), None)
            _footers[file] = found
        return found


def _cut(batch: pa.RecordBatch, pieces: Pieces, piece: int) -> tuple[int, pa.RecordBatch]:
    """Cut a piece out of its group's rows. Raises: ValueError if the group is too short."""
    skip, count = int(pieces.skips[piece]), int(pieces.counts[piece])
    if skip + count > batch.num_rows:
        raise ValueError(f"it has {batch.num_rows} rows, expected at least {skip + count}")
    return int(pieces.starts[piece]), batch.slice(skip, count)
