"""Read the footers and row groups of Parquet files."""

import contextlib
import dataclasses
import itertools
import json
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.sources.parquet import access, stored_columns
from pipelines.prepare.sources.parquet.groups import Groups, Pieces
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.sources.resolve.library import TARS
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import some, visible_line, without_access

# Largest row groups to read in place, since a row group is shuffled and decoded as a whole.
MOST_ROWS_IN_PLACE = 4_000
MOST_BYTES_IN_PLACE = 16 << 20
# Keys in the footer of an ingested part.
SHARD_ROWS = b"prep_tfrecords.shard_rows"
NOTES = b"prep_tfrecords.notes"

_THREADS = 32
# Threads for remote files.
_READERS = 8
# Serialized size of all cached footers; in memory they take about eight times as much.
_CACHED_BYTES = 8 << 20
# Largest request for neighbouring row groups, their largest decoded size, and the largest hole between two columns that
# is cheaper to fetch than to skip.
_FETCH_BYTES, _DECODED_BYTES = 32 << 20, 128 << 20
_HOLE_BYTES = 4 << 20
_MOST_DECODED_BYTES = 512 << 20
_DECODED_ROWS = 1_000
_UNREADABLE = (OSError, EOFError, pa.ArrowException, IndexError, KeyError, TypeError, ValueError, StopIteration)

# Indices of pieces that are decoded together, int64 [n], and the ranges of a remote file to request.
_Fetch = tuple[np.ndarray, Sequence[tuple[int, int]]]

_footers: dict[DataFile, pq.FileMetaData] = {}
_locks: dict[DataFile, threading.Lock] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Footer:
    """Schema and row groups of a Parquet file. `is_in_place`: the groups are small enough to be read without ingest.

    `groups.nulls` omits nulls inside lists. `notes`: an ingested part's warnings, by kind.
    """

    schema: pa.Schema
    groups: Groups
    is_in_place: bool
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)


def read_footers(files: Sequence[DataFile], columns: Collection[str] | None) -> list[Footer]:
    """Read the footers of Parquet files. Sizes in bytes include only `columns`, None for all. Raises: SourceError."""
    remote = any(access.is_remote(file.path) for file in files)
    known: dict[bytes, tuple[pa.Schema, list[int], dict[str, int]]] = {}

    def read(file: DataFile) -> Footer:
        with _as_source_error(file, "cannot be read as a Parquet file"), access.opened(file, {}) as handle:
            opened = pq.ParquetFile(handle)
            key = opened.schema_arrow.serialize().to_pybytes()
            if key not in known:
                known[key] = (opened.schema_arrow, *_leaves(opened.schema, columns))
            schema, leaves, flat = known[key]
            return _footer(opened.metadata, schema, leaves, flat, file=file.as_planned)

    return list(ordered_map(read, files, threads=min(_THREADS, len(files)) if remote else 1))


def _leaves(schema: pq.ParquetSchema, columns: Collection[str] | None) -> tuple[list[int], dict[str, int]]:
    leaves: list[int] = []
    flat: dict[str, int] = {}  # positions in `leaves` of columns and fields that are not in lists
    for index, column in enumerate(schema):
        parts = column.path.split(".")
        # A column's name may contain dots.
        if columns is None or any(".".join(parts[:count]) in columns for count in range(1, len(parts) + 1)):
            is_field = column.max_repetition_level == 0 and column.path not in flat
            if is_field or column.path == column.name:  # a column takes precedence over a field
                flat[column.path] = len(leaves)
            leaves.append(index)
    return leaves, flat


def _footer(
    metadata: pq.FileMetaData, schema: pa.Schema, leaves: list[int], flat: Mapping[str, int], *, file: DataFile
) -> Footer:
    # Lists, because arrays take longer to fill. Ten million row groups take a few minutes.
    sizes: list[tuple[int, int, int, int]] = []
    nulls: dict[str, list[int]] = {name: [] for name in flat}
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        chunks = [group.column(leaf) for leaf in leaves]
        num_bytes = sum([chunk.total_uncompressed_size for chunk in chunks])
        stored_bytes = sum([chunk.total_compressed_size for chunk in chunks])
        # Some writers omit the total size of a row group.
        sizes.append((group.num_rows, num_bytes, stored_bytes, max(group.total_byte_size, num_bytes)))
        for name, position in flat.items():
            statistics = chunks[position].statistics
            if statistics is not None and statistics.has_null_count:
                nulls[name].append(statistics.null_count)
    num_rows, num_bytes_G, stored_bytes_G, all_bytes = map(_narrow, np.array(sizes, np.int64).reshape(-1, 4).T)
    source_rows = num_rows.sum(keepdims=True, dtype=np.int64)
    if file.ingested:
        source_rows = np.array(json.loads((metadata.metadata or {}).get(SHARD_ROWS, b"[]")), np.int64)
        if source_rows.sum() != metadata.num_rows:
            raise ValueError("its numbers of rows differ from those that were written")
    groups = Groups(
        files=(file,),
        num_rows=num_rows,
        file=np.zeros(len(sizes), np.int32),
        at=np.arange(len(sizes), dtype=np.int32),
        num_bytes=num_bytes_G,
        stored_bytes=stored_bytes_G,
        source_rows=source_rows,
        nulls={name: _narrow(np.array(counts)) for name, counts in nulls.items() if len(counts) == len(sizes)},
    )
    is_in_place = (num_rows <= MOST_ROWS_IN_PLACE).all() and (all_bytes <= MOST_BYTES_IN_PLACE).all()
    notes = json.loads((metadata.metadata or {}).get(NOTES, b"{}")) if file.ingested else {}
    return Footer(schema=schema, groups=groups, is_in_place=bool(is_in_place), notes=notes)


def _narrow(values: np.ndarray) -> np.ndarray:
    # saves memory: there may be 100 million values
    return values.astype(np.int32) if values.max(initial=0) < 2**31 else values.copy()


def read_rows(
    pieces: Pieces, columns: Sequence[str], *, types: pa.Schema, addresses: Mapping[str, str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """For each piece, yield the number of its first row and a record batch with `columns`.

    `types`: schema to cast to. `addresses`: see `opened`. Raises: SourceError.
    """
    wanted = stored_columns.schema_of(types, columns)
    remote = any(access.is_remote(addresses.get(file.path, file.path)) for file in pieces.files)

    def place_of(index: int) -> tuple[DataFile, str]:
        place = f"row group {pieces.at[index]}, row {pieces.starts[index]} of the split,"
        return pieces.files[pieces.file[index]], f"{place} cannot be decoded"

    def fetches(run: np.ndarray) -> list[_Fetch]:
        if not remote:
            return [(run, ())]
        file, fault = place_of(run[0])
        with _as_source_error(file, fault), access.opened(file, addresses) as handle:
            metadata = _metadata(file, handle)
            leaves, _ = _leaves(metadata.schema, columns)
            return [
                (run[np.isin(pieces.at[run], groups)], _ranges(metadata, groups, leaves))
                for groups in _batched(metadata, np.unique(pieces.at[run]).tolist(), leaves)
            ]

    def load(fetch: _Fetch) -> list[tuple[int, pa.RecordBatch]]:
        which, ranges = fetch
        at = pieces.at[which]
        groups = list(range(int(at[0]), int(at[-1]) + 1))
        file, fault = place_of(which[0])
        with _as_source_error(file, fault):
            with access.opened(file, addresses, ahead=ranges) as handle:
                metadata = _metadata(file, handle)
                rows = np.array([metadata.row_group(group).num_rows for group in groups])
                ends = np.cumsum(rows)
                skips = pieces.skips[which] + (ends - rows)[at - at[0]]
                stops = skips + pieces.counts[which]
                batch = _read_groups(file, handle, groups, wanted, stop=int(stops.max()))
            if (stops > np.minimum(ends[at - at[0]], batch.num_rows)).any():
                raise ValueError(f"it has {some(batch.num_rows, 'row')}, expected at least {stops.max()}")
            cut = (batch.slice(skip, stop - skip) for skip, stop in zip(skips.tolist(), stops.tolist(), strict=True))
            return list(zip(pieces.starts[which].tolist(), cut, strict=True))

    threads = _READERS if remote else 1
    runs = ordered_map(fetches, _runs(pieces, neighbours=remote), threads=threads)
    for batches in ordered_map(load, itertools.chain.from_iterable(runs), threads=threads):
        yield from batches


def _runs(pieces: Pieces, *, neighbours: bool) -> list[np.ndarray]:
    steps = np.diff(pieces.at)
    apart = (steps != 0) & (steps != 1) if neighbours else steps != 0
    edges = [0, *(np.flatnonzero((np.diff(pieces.file) != 0) | apart) + 1).tolist(), len(pieces)]
    return [np.arange(start, stop) for start, stop in itertools.pairwise(edges) if start < stop]


def _batched(metadata: pq.FileMetaData, groups: Sequence[int], leaves: Sequence[int]) -> Iterator[list[int]]:
    batch: list[int] = []
    room, decoded_room = _FETCH_BYTES, _DECODED_BYTES
    for group in groups:
        size = sum(stop - start for start, stop in _ranges(metadata, [group], leaves))
        decoded = sum(metadata.row_group(group).column(leaf).total_uncompressed_size for leaf in leaves)
        if batch and (size > room or decoded > decoded_room):
            yield batch
            batch, room, decoded_room = [], _FETCH_BYTES, _DECODED_BYTES
        batch.append(group)
        room, decoded_room = room - size, decoded_room - decoded
    yield batch


def _ranges(metadata: pq.FileMetaData, groups: Sequence[int], leaves: Sequence[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    chunks = [metadata.row_group(group).column(leaf) for group in groups for leaf in leaves]
    sizes = [(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size) for chunk in chunks]
    for start, size in sorted(sizes):
        if ranges and start - ranges[-1][1] <= _HOLE_BYTES:
            start, size = ranges[-1][0], start + size - ranges.pop()[0]
        ranges.append((start, start + size))
    return ranges


@contextlib.contextmanager
def _as_source_error(file: DataFile, fault: str) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        remedy = "copy the file again from its origin, or leave it out"
        if file.ingested:
            remedy = "delete the file, and run the same command again to make a new one"
        elif file.path.endswith((".zip", *TARS)):
            remedy = "unpack it: Parquet files inside archives are not read"
        cause = f"{without_access(file.path)}: {fault} ({visible_line(str(error))})"
        raise SourceError(cause, remedy=remedy) from error


def _read_groups(
    file: DataFile, handle: pa.NativeFile, groups: Sequence[int], wanted: pa.Schema, *, stop: int
) -> pa.RecordBatch:
    batches, rows, num_bytes = list[pa.RecordBatch](), 0, 0
    for batch in _decoded(file, handle, groups, wanted):
        batches.append(batch)
        rows, num_bytes = rows + batch.num_rows, num_bytes + batch.nbytes
        if num_bytes > _MOST_DECODED_BYTES:
            raise SourceError(
                f"{without_access(file.path)}: row group {groups[0]} has {num_bytes:,} bytes in "
                f"{some(rows, 'decoded row')}, expected at most {_MOST_DECODED_BYTES:,} bytes",
                remedy="write the file again with smaller row groups, such as row_group_size=10, or leave it out",
            )
        if rows >= stop:
            break
    table = pa.Table.from_batches(batches, wanted).combine_chunks()
    return table.to_batches()[0] if rows else pa.RecordBatch.from_pylist([], schema=wanted)


def read_group(file: DataFile, group: int, types: pa.Schema) -> Iterator[pa.Table]:
    """Yield a row group, cast to `types`, in tables of about 16 MB. Raises: SourceError."""
    held, num_bytes = list[pa.RecordBatch](), 0
    with _as_source_error(file, f"row group {group} cannot be decoded"), access.opened(file, {}) as handle:
        for batch in _decoded(file, handle, [group], types):
            held.append(batch)
            num_bytes += batch.nbytes
            if num_bytes > MOST_BYTES_IN_PLACE:
                yield pa.Table.from_batches(held)
                held, num_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _decoded(
    file: DataFile, handle: pa.NativeFile, groups: Sequence[int], types: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield rows in small batches, because 70 kB of a dictionary-encoded column may be gigabytes when decoded.

    Texts are read as dictionaries and measured first. pyarrow 25 can't do so for nested texts, so they are read in
    batches of few rows.
    """
    metadata = _metadata(file, handle)
    chunks = [metadata.row_group(group).column(leaf) for group in groups for leaf in range(metadata.num_columns)]
    texts = [chunk for chunk in chunks if chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page]
    nested = max((chunk.total_uncompressed_size for chunk in texts if "." in chunk.path_in_schema), default=0)
    reader = pq.ParquetFile(
        handle,
        metadata=metadata,
        read_dictionary=[chunk.path_in_schema for chunk in texts if "." not in chunk.path_in_schema],
        pre_buffer=access.is_remote(file.path),
        page_checksum_verification=True,
    )
    rows = max(1, min(_DECODED_ROWS, _MOST_DECODED_BYTES // 8 // max(nested, 1)))
    for stored in reader.iter_batches(rows, row_groups=groups, columns=types.names, use_threads=False):
        for batch in _in_parts(stored_columns.select(stored, types.names)):
            yield stored_columns.cast(batch, types, where=without_access(file.path))


def _in_parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows > 1 and sum(map(_decoded_bytes, batch.columns)) > MOST_BYTES_IN_PLACE:
        half = batch.num_rows // 2
        yield from _in_parts(batch.slice(0, half))
        yield from _in_parts(batch.slice(half))
    else:
        yield batch


def _decoded_bytes(column: pa.Array) -> int:
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    return int(pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0)


def _metadata(file: DataFile, handle: pa.NativeFile) -> pq.FileMetaData:
    with _locks.setdefault(file, threading.Lock()):
        if (metadata := _footers.get(file)) is None:
            metadata = pq.ParquetFile(handle).metadata
            while sum(footer.serialized_size for footer in list(_footers.values())) > _CACHED_BYTES:
                _footers.pop(next(iter(list(_footers))), None)
            _footers[file] = metadata
        return metadata
