"""Reading pieces of Parquet row groups and of ingested record batches.

    pieces      a/0 from 800    a/1 to 500    b/3    b/4 ...
    fetches     row group 0     row group 1   consecutive messages 3 and 4: one read
    batches     one for each piece, with the requested columns in the types of the split

Remote files are fetched ahead by several threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.sources.files import access
from pipelines.prepare.sources.formats import nested, stored_groups
from pipelines.prepare.sources.formats.casting import cast
from pipelines.prepare.sources.formats.groups import Pieces, StoredFile
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import visible_line, without_access

__all__ = ["read"]

_THREADS = 8
# Consecutive messages are fetched together up to this size.
_MOST_FETCHED_BYTES = 8 << 20

_REMEDIES = {
    "parquet": "copy the file again from where it was made, or leave it out",
    "ipc": "delete that file, and run the same command again, which makes it again",
}

# Errors of damaged files, such as a name that is not UTF-8, or a missing column or batch.
_UNREADABLE = (OSError, EOFError, pa.ArrowException, UnicodeDecodeError, KeyError, ValueError, StopIteration)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fetch:
    """Groups of one file that are read together, and for each group the range [first, last) of pieces in it."""

    file: StoredFile
    groups: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[int, int], ...]


def read(
    pieces: Pieces, columns: Sequence[str], *, types: pa.Schema, addresses: Mapping[str, str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (number of the first row, record batch with `columns`) for each piece, in order.

    Raises: SourceError if a file is gone, has changed since the plan, cannot be decoded, or has a column of a type
    that cannot be cast to that of the split.
    """
    wanted = nested.schema_of(types, columns)

    remote = any(access.is_remote(addresses.get(file.path, file.path)) for file in pieces.files)

    def load(fetch: _Fetch) -> list[tuple[int, pa.RecordBatch]]:
        with access.opened(fetch.file, addresses) as handle:
            return _load(fetch, pieces, handle, types=wanted, remote=remote)

    for batches in ordered_map(load, _fetches(pieces), threads=_THREADS if remote else 1):
        yield from batches


def _fetches(pieces: Pieces) -> Iterator[_Fetch]:
    """Yield fetches for the pieces, in order; consecutive pieces of one group are decoded once."""
    files, at, length = pieces.file.tolist(), pieces.at.tolist(), pieces.length.tolist()
    first = 0
    while first < len(pieces):
        file = pieces.files[files[first]]
        groups, ranges = [(at[first], length[first])], [(first, first + 1)]
        num_bytes, last = length[first], first + 1
        while last < len(pieces) and files[last] == files[first]:
            group, before = (at[last], length[last]), groups[-1]
            if group == before:
                ranges[-1] = (ranges[-1][0], last + 1)
            elif group[0] == sum(before) and before[1] and num_bytes + group[1] <= _MOST_FETCHED_BYTES:
                groups.append(group)
                ranges.append((last, last + 1))
                num_bytes += group[1]
            else:
                break
            last += 1
        yield _Fetch(file=file, groups=tuple(groups), pieces=tuple(ranges))
        first = last


def _load(
    fetch: _Fetch, pieces: Pieces, handle: pa.NativeFile, *, types: pa.Schema, remote: bool
) -> list[tuple[int, pa.RecordBatch]]:
    shown = without_access(fetch.file.path)
    try:
        tables = _tables(fetch, handle, types, remote=remote)
        batches: list[tuple[int, pa.RecordBatch]] = []
        for table, (first, last) in zip(tables, fetch.pieces, strict=True):
            batches += _cut(cast(table, types, where=shown), pieces, first, last)
    except _UNREADABLE as error:
        row = int(pieces.starts[fetch.pieces[0][0]])
        raise SourceError(
            f"{shown}: {_describe(fetch)}, row {row} of the split, cannot be decoded ({visible_line(str(error))})",
            remedy=_REMEDIES[fetch.file.format],
        ) from error
    return batches


def _describe(fetch: _Fetch) -> str:
    at, length = fetch.groups[0]
    return f"the record batches at byte {at}" if length else f"row group {at}"


def _tables(fetch: _Fetch, handle: pa.NativeFile, types: pa.Schema, *, remote: bool) -> Iterator[pa.RecordBatch]:
    if fetch.file.format == "parquet":
        return (stored_groups.read_group(fetch.file, handle, at, types, remote=remote) for at, _ in fetch.groups)
    return stored_groups.read_batches(fetch.file, handle, fetch.groups, types.names)


def _cut(batch: pa.RecordBatch, pieces: Pieces, first: int, last: int) -> list[tuple[int, pa.RecordBatch]]:
    """Cut pieces [first, last) out of a group's rows. Raises: ValueError if the group is too short."""
    batches = []
    for piece in range(first, last):
        skip, count = int(pieces.skips[piece]), int(pieces.counts[piece])
        if skip + count > batch.num_rows:
            raise ValueError(f"it has {batch.num_rows} rows, expected at least {skip + count}")
        batches.append((int(pieces.starts[piece]), batch.slice(skip, count)))
    return batches
