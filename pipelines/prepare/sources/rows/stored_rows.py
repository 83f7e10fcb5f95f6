"""Rows of Parquet row groups and of ingested record batches, read by piece.

    pieces      a/0 from 800    a/1 to 500    b/3    b/4 ...
    fetches     row group 0     row group 1   messages 3 and 4, which lie side by side: one read
    batches     one for each piece, with the columns asked for, in the types of the split

What is far away is fetched ahead by several threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.sources.files import access
from pipelines.prepare.sources.formats import stored_groups
from pipelines.prepare.sources.formats.casting import cast
from pipelines.prepare.sources.formats.groups import Pieces, StoredFile
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import visible_line, without_access

__all__ = ["read"]

_THREADS = 8
# Messages that lie side by side are fetched together up to this size.
_MOST_FETCHED_BYTES = 8 << 20

_REMEDIES = {
    "parquet": "copy the file again from where it was made, or leave it out",
    "ipc": "delete that file, and run the same command again, which makes it again",
}

# What comes of bytes that are not what they were or should be: names that are no UTF-8, a column or a batch that is
# not there.
_UNREADABLE = (OSError, EOFError, pa.ArrowException, UnicodeDecodeError, KeyError, ValueError, StopIteration)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fetch:
    """Groups of one file that are read together, and the pieces that they hold: `pieces` [first, last) each."""

    file: StoredFile
    groups: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[int, int], ...]


def read(
    pieces: Pieces, columns: Sequence[str], *, types: pa.Schema, addresses: Mapping[str, str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields (number of the first row, record batch with `columns`), one batch for each piece, in order.

    Raises: SourceError if a file is gone, has changed since the plan, cannot be decoded, or has a column of a type
    that cannot become that of the split.
    """
    wanted = pa.schema([types.field(name) for name in columns])

    remote = any(access.is_remote(addresses.get(file.path, file.path)) for file in pieces.files)

    def load(fetch: _Fetch) -> list[tuple[int, pa.RecordBatch]]:
        with access.opened(fetch.file, addresses) as handle:
            return _load(fetch, pieces, handle, types=wanted, remote=remote)

    for batches in ordered_map(load, _fetches(pieces), threads=_THREADS if remote else 1):
        yield from batches


def _fetches(pieces: Pieces) -> Iterator[_Fetch]:
    """Pieces of one group are decoded once where they follow one another."""
    files, at, length = pieces.file.tolist(), pieces.at.tolist(), pieces.length.tolist()
    first = 0
    while first < len(pieces):
        file = pieces.files[files[first]]
        groups, runs = [(at[first], length[first])], [(first, first + 1)]
        num_bytes, last = length[first], first + 1
        while last < len(pieces) and files[last] == files[first]:
            group, before = (at[last], length[last]), groups[-1]
            if group == before:
                runs[-1] = (runs[-1][0], last + 1)
            elif group[0] == sum(before) and before[1] and num_bytes + group[1] <= _MOST_FETCHED_BYTES:
                groups.append(group)
                runs.append((last, last + 1))
                num_bytes += group[1]
            else:
                break
            last += 1
        yield _Fetch(file=file, groups=tuple(groups), pieces=tuple(runs))
        first = last


def _load(
    fetch: _Fetch, pieces: Pieces, handle: pa.NativeFile, *, types: pa.Schema, remote: bool
) -> list[tuple[int, pa.RecordBatch]]:
    shown = without_access(fetch.file.path)
    try:
        tables = _tables(fetch, handle, types, remote=remote)
        found: list[tuple[int, pa.RecordBatch]] = []
        for table, run in zip(tables, fetch.pieces, strict=True):
            found += _cut(cast(table, types, where=shown), pieces, *run)
    except _UNREADABLE as error:
        first = int(pieces.starts[fetch.pieces[0][0]])
        raise SourceError(
            f"{shown}: {_named(fetch)}, row {first} of the split, cannot be decoded ({visible_line(str(error))})",
            remedy=_REMEDIES[fetch.file.format],
        ) from error
    return found


def _named(fetch: _Fetch) -> str:
    at, length = fetch.groups[0]
    return f"the record batches at byte {at}" if length else f"row group {at}"


def _tables(fetch: _Fetch, handle: pa.NativeFile, types: pa.Schema, *, remote: bool) -> Iterator[pa.RecordBatch]:
    if fetch.file.format == "parquet":
        return (stored_groups.read_group(fetch.file, handle, at, types, remote=remote) for at, _ in fetch.groups)
    return stored_groups.read_batches(fetch.file, handle, fetch.groups, types.names)


def _cut(batch: pa.RecordBatch, pieces: Pieces, first: int, last: int) -> list[tuple[int, pa.RecordBatch]]:
    """What pieces [first, last) have of a group. Raises: ValueError if it is too short."""
    found = []
    for piece in range(first, last):
        skip, count = int(pieces.skips[piece]), int(pieces.counts[piece])
        if skip + count > batch.num_rows:
            raise ValueError(f"it has {batch.num_rows} rows, expected at least {skip + count}")
        found.append((int(pieces.starts[piece]), batch.slice(skip, count)))
    return found
