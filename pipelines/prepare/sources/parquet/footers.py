"""Footers of Parquet files: columns, and the rows, bytes and nulls of each row group.

    file     PAR1 | row group 0 | row group 1 | ... | footer | its length | PAR1
    read                                         tail ───────────────────────┤   once more if the footer is longer

A footer is parsed by pyarrow; only the schema and arrays of numbers are kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.sources.parquet import access, casting
from pipelines.prepare.sources.parquet.access import FileVersion
from pipelines.prepare.sources.parquet.groups import Groups, StoredFile
from pipelines.prepare.sources.resolve.data_files import DataFile
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import visible_line, without_access

__all__ = [
    "INGEST_AGAIN",
    "MOST_BYTES_IN_PLACE",
    "MOST_ROWS_IN_PLACE",
    "SHARD_ROWS",
    "Footer",
    "fetch_footer",
    "groups_of",
    "is_in_place",
    "parse_footer",
    "read_footers",
    "require_columns",
]

# Row groups up to these sizes are read in place, as blocks: the shuffle moves them, and workers decode them whole.
MOST_ROWS_IN_PLACE = 4_000
MOST_BYTES_IN_PLACE = 16 << 20
# The key in the footer of an ingested part, for the rows of each shard.
SHARD_ROWS = b"prep_tfrecords.shard_rows"
INGEST_AGAIN = "delete that file, and run the same command again, which makes it again"

_THREADS = 32
# For 200 remote files of 2 MB, tails of this size are a fifth of the bytes that the launcher is allowed to receive.
_LEAST_TAIL = 8 << 10
_TAIL_SHARE = 1024
_MOST_FOOTER_BYTES = 1 << 30
_MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
_END_BYTES = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Footer:
    """A parsed footer of G row groups. `schema` includes metadata; all arrays are int64 [G].

    `num_bytes` are uncompressed bytes of the requested columns, `stored_bytes` their compressed bytes, and `all_bytes`
    uncompressed bytes of all columns. `nulls` counts nulls of the columns and of fields of structs, but not in
    lists, where that is known. `shard_rows` int64 [S]: rows of each shard of an ingested part.
    """

    schema: pa.Schema
    num_rows: np.ndarray
    num_bytes: np.ndarray
    stored_bytes: np.ndarray
    all_bytes: np.ndarray
    nulls: Mapping[str, np.ndarray]
    shard_rows: np.ndarray


def read_footers(files: Sequence[DataFile], columns: Collection[str] | None, *, ingested: bool = False) -> list[Footer]:
    """Read the footers of Parquet files, in their order, with the bytes of `columns` (None: all columns).

    Columns that a file lacks count no bytes.

    Raises: SourceError if a file cannot be read, is damaged, or has changed.
    """
    remote = any(access.is_remote(file.path) for file in files)
    leaves = _ColumnLeavesCache(columns)

    def read(file: DataFile) -> Footer:
        with access.opened(file, {}) as handle:
            content = fetch_footer(file, handle, ingested=ingested)
        opened = parse_footer(file, content, ingested=ingested)
        with _as_source_error(file, ingested=ingested):
            return _footer(opened.metadata, leaves.of(opened), ingested=ingested)

    return list(ordered_map(read, files, threads=min(_THREADS, len(files)) if remote else 1))


def require_columns(files: Sequence[DataFile], found: Sequence[Footer], types: pa.Schema) -> None:
    """Check that every file has the columns of `types`, in types that can be cast without changing a value.

    Raises: SourceError, which names the file.
    """
    # Files with the same columns share the schema.
    last: pa.Schema | None = None
    for file, footer in zip(files, found, strict=True):
        if footer.schema is not last:
            casting.require_castable(footer.schema, types, where=without_access(file.path))
            last = footer.schema


def is_in_place(footer: Footer) -> bool:
    """Whether all row groups are small enough to be read as blocks."""
    return bool((footer.num_rows <= MOST_ROWS_IN_PLACE).all() and (footer.all_bytes <= MOST_BYTES_IN_PLACE).all())


def groups_of(file: DataFile, footer: Footer, *, ingested: bool = False) -> Groups:
    """Return a file's row groups as groups of rows; of an ingested part with the rows of each of its shards."""
    count = len(footer.num_rows)
    version = "" if file.stamp is not None else file.version
    stored = StoredFile(
        path=without_access(file.path), size=file.size, ingested=ingested, version=version, stamp=file.stamp
    )
    return Groups(
        files=(stored,),
        num_rows=footer.num_rows,
        file=np.zeros(count, np.int32),
        at=np.arange(count, dtype=np.int64),
        num_bytes=footer.num_bytes,
        stored_bytes=footer.stored_bytes,
        source_rows=footer.shard_rows if ingested else footer.num_rows.sum(keepdims=True).astype(np.int64),
        nulls=footer.nulls,
    )


def fetch_footer(file: FileVersion, handle: pa.NativeFile, *, ingested: bool = False) -> bytes:
    """Read the footer of an open file, by one or two reads of its end. Raises: SourceError."""
    with _as_source_error(file, ingested=ingested):
        return _footer_bytes(handle, file.size)


def parse_footer(file: FileVersion, footer: bytes, *, ingested: bool = False) -> pq.ParquetFile:
    """Parse a footer; the result serves for metadata only. Raises: SourceError."""
    with _as_source_error(file, ingested=ingested):
        # pyarrow parses the footer of a file that consists of nothing else.
        return pq.ParquetFile(pa.BufferReader(_MAGIC + footer))


@contextlib.contextmanager
def _as_source_error(file: FileVersion, *, ingested: bool) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, ValueError, TypeError) as error:
        remedy = "copy it again from where it was made, or leave it out"
        if ingested:
            remedy = INGEST_AGAIN
        elif file.path.endswith(".zip"):
            remedy = "unpack it: Parquet is read in place"
        raise SourceError(
            f"{without_access(file.path)}: cannot be read as a Parquet file ({visible_line(str(error))})", remedy=remedy
        ) from error


def _footer_bytes(handle: pa.NativeFile, size: int) -> bytes:
    """Return the footer, the 4 bytes of its length, and the magic number."""
    if size < len(_MAGIC) + _END_BYTES:
        raise ValueError(f"it has {size} bytes")
    tail = _read(handle, size - min(size, max(_LEAST_TAIL, size // _TAIL_SHARE)), size)
    if tail[-len(_MAGIC) :] == _ENCRYPTED:
        raise ValueError("its footer is encrypted")
    if tail[-len(_MAGIC) :] != _MAGIC:
        raise ValueError("it does not end like a Parquet file; it is truncated, or of another kind")
    length = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little") + _END_BYTES
    if length + len(_MAGIC) > size or length > _MOST_FOOTER_BYTES:
        raise ValueError(f"its footer would have {length:,} bytes")
    if length > len(tail):
        tail = _read(handle, size - length, size - len(tail)) + tail
    return tail[-length:]


def _read(handle: pa.NativeFile, start: int, stop: int) -> bytes:
    content: bytes = handle.read_at(stop - start, start)
    if len(content) != stop - start:
        raise EOFError(f"it ends before byte {stop:,}")
    return content


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ColumnLeaves:
    """The indices of the Parquet `leaves` of the requested columns; `flat` is the position in `leaves` of each column
    or field of a struct outside of lists.
    """

    schema: pa.Schema
    num_leaves: int
    leaves: tuple[int, ...]
    flat: Mapping[str, int]


class _ColumnLeavesCache:
    """The leaves of the last footer, which mostly serve for the next one: finding them takes long in wide tables."""

    def __init__(self, columns: Collection[str] | None) -> None:
        self._columns = columns
        self._last: _ColumnLeaves | None = None

    def of(self, opened: pq.ParquetFile) -> _ColumnLeaves:
        """Return the leaves in a footer: the same object for files with the same columns, which saves memory."""
        schema, last = opened.schema_arrow, self._last
        num_leaves = opened.metadata.num_columns
        if last is None or last.num_leaves != num_leaves or not last.schema.equals(schema, check_metadata=True):
            leaves, flat = self._find(opened.schema)
            self._last = last = _ColumnLeaves(schema=schema, num_leaves=num_leaves, leaves=leaves, flat=flat)
        return last

    def _find(self, schema: pq.ParquetSchema) -> tuple[tuple[int, ...], dict[str, int]]:
        leaves: list[int] = []
        flat: dict[str, int] = {}
        for index, column in enumerate(schema):
            if self._columns is None or any(prefix in self._columns for prefix in _prefixes(column.path)):
                is_field = column.max_repetition_level == 0 and column.path not in flat
                if is_field or column.path == column.name:  # a column's own name comes first
                    flat[column.path] = len(leaves)
                leaves.append(index)
        return tuple(leaves), flat


def _prefixes(path: str) -> Iterator[str]:
    """Yield `a`, `a.b` and `a.b.c` of `a.b.c`: the name of a column may itself have dots."""
    parts = path.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _shard_rows(metadata: pq.FileMetaData) -> np.ndarray:
    rows = np.array(json.loads((metadata.metadata or {}).get(SHARD_ROWS, b"[]")), np.int64)
    if rows.sum() != metadata.num_rows:
        raise ValueError("it has not the rows that were written")
    return rows


def _footer(metadata: pq.FileMetaData, columns: _ColumnLeaves, *, ingested: bool) -> Footer:
    # Lists are faster to fill than arrays: ten million row groups take a few minutes.
    rows: list[int] = []
    uncompressed: list[int] = []
    stored: list[int] = []
    total: list[int] = []
    nulls: dict[str, list[int]] = {name: [] for name in columns.flat}
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        chunks = [group.column(leaf) for leaf in columns.leaves]
        rows.append(group.num_rows)
        uncompressed.append(sum([chunk.total_uncompressed_size for chunk in chunks]))
        stored.append(sum([chunk.total_compressed_size for chunk in chunks]))
        total.append(group.total_byte_size)
        for name, position in columns.flat.items():
            statistics = chunks[position].statistics
            if statistics is not None and statistics.has_null_count:
                nulls[name].append(statistics.null_count)
    num_bytes = np.array(uncompressed, np.int64)
    return Footer(
        schema=columns.schema,
        num_rows=np.array(rows, np.int64),
        num_bytes=num_bytes,
        stored_bytes=np.array(stored, np.int64),
        # Some writers leave out the total of all columns.
        all_bytes=np.maximum(np.array(total, np.int64), num_bytes),
        nulls={name: np.array(counted, np.int64) for name, counted in nulls.items() if len(counted) == len(rows)},
        shard_rows=_shard_rows(metadata) if ingested else np.zeros(0, np.int64),
    )
