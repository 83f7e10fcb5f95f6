"""What the footers of Parquet files say: columns, and of each row group its rows, bytes and nulls.

    file     PAR1 | row group 0 | row group 1 | ... | footer | its length | PAR1
    read                                         tail ───────────────────────┤   once more if the footer is longer

A footer is parsed by pyarrow, and only arrays are kept of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.sources.files import access
from pipelines.prepare.sources.files.access import FileVersion
from pipelines.prepare.sources.files.data_files import DataFile
from pipelines.prepare.sources.formats import casting
from pipelines.prepare.sources.formats.groups import Groups, StoredFile
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import visible_line, without_access

__all__ = [
    "MOST_BYTES_IN_PLACE",
    "MOST_ROWS_IN_PLACE",
    "Footer",
    "fetched",
    "in_place_groups",
    "is_in_place",
    "parsed",
    "read_footers",
    "require_columns",
]

# Blocks are what the shuffle permutes, and what is decoded at once.
MOST_ROWS_IN_PLACE = 4_000
MOST_BYTES_IN_PLACE = 16 << 20

_THREADS = 32
# Where 200 files of 2 MB are far away, this is a fifth of what the launcher may receive.
_LEAST_TAIL = 8 << 10
_TAIL_SHARE = 512
_MOST_FOOTER_BYTES = 1 << 30
_MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
_END_BYTES = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Footer:
    """What a footer says of G row groups. `schema` has its metadata; all arrays are int64 [G].

    `num_bytes` are those of the columns asked for, uncompressed, and `stored_bytes` the same as they lie in the file;
    `all_bytes` are uncompressed bytes of all columns. `nulls` has the flat columns whose nulls are known.
    """

    schema: pa.Schema
    num_rows: np.ndarray
    num_bytes: np.ndarray
    stored_bytes: np.ndarray
    all_bytes: np.ndarray
    nulls: Mapping[str, np.ndarray]


def read_footers(files: Sequence[DataFile], columns: Collection[str] | None) -> list[Footer]:
    """The footers of Parquet files, in their order, with the bytes of `columns` (None: all of them). A column that a
    file doesn't have counts no bytes.

    Raises: SourceError if a file cannot be read, is damaged, or has changed.
    """
    remote = any(access.is_remote(file.path) for file in files)
    layouts = _Layouts(columns)

    def read(file: DataFile) -> Footer:
        with access.opened(file, {}) as handle:
            opened = parsed(file, fetched(file, handle))
        return _footer(opened.metadata, layouts.of(opened))

    return list(ordered_map(read, files, threads=min(_THREADS, len(files)) if remote else 1))


def require_columns(files: Sequence[DataFile], found: Sequence[Footer], types: pa.Schema) -> None:
    """Raises: SourceError if a file, which it names, lacks one of the columns, or has it in a type that can't become
    that of `types` without another value. Other columns don't matter.
    """
    # Files with the same columns share the schema.
    last: pa.Schema | None = None
    for file, footer in zip(files, found, strict=True):
        if footer.schema is not last:
            casting.require(footer.schema, types, place=without_access(file.path))
            last = footer.schema


def is_in_place(footer: Footer) -> bool:
    """Whether all row groups are small enough to be read as blocks."""
    return bool((footer.num_rows <= MOST_ROWS_IN_PLACE).all() and (footer.all_bytes <= MOST_BYTES_IN_PLACE).all())


def in_place_groups(file: DataFile, footer: Footer) -> Groups:
    """The file's row groups."""
    count = len(footer.num_rows)
    version = "" if file.stamp is not None else file.version
    stored = StoredFile(
        path=without_access(file.path), format="parquet", size=file.size, version=version, stamp=file.stamp
    )
    return Groups(
        files=(stored,),
        num_rows=footer.num_rows,
        file=np.zeros(count, np.int32),
        at=np.arange(count, dtype=np.int64),
        length=np.zeros(count, np.int64),
        num_bytes=footer.num_bytes,
        stored_bytes=footer.stored_bytes,
        nulls=footer.nulls,
    )


def fetched(file: FileVersion, handle: pa.NativeFile) -> bytes:
    """The footer of an open file as it lies there, by one or two reads of its end. Raises: SourceError."""
    with _explained(file):
        return _footer_bytes(handle, file.size)


def parsed(file: FileVersion, footer: bytes) -> pq.ParquetFile:
    """The footer of a file. Raises: SourceError."""
    with _explained(file):
        # It says where columns lie from the start of the file on, and nothing of what is there is needed.
        return pq.ParquetFile(pa.BufferReader(_MAGIC + footer))


@contextlib.contextmanager
def _explained(file: FileVersion) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, ValueError) as error:
        raise SourceError(
            f"{without_access(file.path)}: no Parquet file that can be read ({visible_line(str(error))})",
            remedy="copy it again from where it was made, or leave it out",
        ) from error


def _footer_bytes(handle: pa.NativeFile, size: int) -> bytes:
    """The footer with its length and the magic number behind it."""
    if size < len(_MAGIC) + _END_BYTES:
        raise ValueError(f"it has {size} bytes")
    tail = _read(handle, size - min(size, max(_LEAST_TAIL, size // _TAIL_SHARE)), size)
    if tail[-len(_MAGIC) :] == _ENCRYPTED:
        raise ValueError("its footer is encrypted")
    if tail[-len(_MAGIC) :] != _MAGIC:
        raise ValueError("it does not end as a Parquet file does; it is truncated, or something else")
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
class _Layout:
    """Where the columns asked for are in a footer: the indices of all their `leaves`, and the places in there of `flat`
    ones by column.
    """

    schema: pa.Schema
    num_leaves: int
    leaves: tuple[int, ...]
    flat: Mapping[str, int]


class _Layouts:
    """The layouts of footers. Files of a dataset have mostly the same columns, and those of wide tables are looked
    through once.
    """

    def __init__(self, columns: Collection[str] | None) -> None:
        self._columns = columns
        self._last: _Layout | None = None

    def of(self, opened: pq.ParquetFile) -> _Layout:
        """The layout of a footer: the same object for files with the same columns, which saves memory too."""
        schema, last = opened.schema_arrow, self._last
        num_leaves = opened.metadata.num_columns
        if last is None or last.num_leaves != num_leaves or not last.schema.equals(schema, check_metadata=True):
            leaves, flat = self._find(opened.schema)
            self._last = last = _Layout(schema=schema, num_leaves=num_leaves, leaves=leaves, flat=flat)
        return last

    def _find(self, schema: pq.ParquetSchema) -> tuple[tuple[int, ...], dict[str, int]]:
        leaves: list[int] = []
        flat: dict[str, int] = {}
        for index, column in enumerate(schema):
            if self._columns is None or any(prefix in self._columns for prefix in _prefixes(column.path)):
                if column.path == column.name:
                    flat[column.name] = len(leaves)
                leaves.append(index)
        return tuple(leaves), flat


def _prefixes(path: str) -> Iterator[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`: names of columns may have dots in them."""
    parts = path.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _footer(metadata: pq.FileMetaData, layout: _Layout) -> Footer:
    # Ten million row groups are looked at in a few minutes: lists are faster to fill than arrays.
    rows: list[int] = []
    unpacked: list[int] = []
    stored: list[int] = []
    total: list[int] = []
    nulls: dict[str, list[int]] = {name: [] for name in layout.flat}
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        chunks = [group.column(leaf) for leaf in layout.leaves]
        rows.append(group.num_rows)
        unpacked.append(sum([chunk.total_uncompressed_size for chunk in chunks]))
        stored.append(sum([chunk.total_compressed_size for chunk in chunks]))
        total.append(group.total_byte_size)
        for name, place in layout.flat.items():
            statistics = chunks[place].statistics
            if statistics is not None and statistics.has_null_count:
                nulls[name].append(statistics.null_count)
    num_bytes = np.array(unpacked, np.int64)
    return Footer(
        schema=layout.schema,
        num_rows=np.array(rows, np.int64),
        num_bytes=num_bytes,
        stored_bytes=np.array(stored, np.int64),
        # Some writers leave the sum of all columns out.
        all_bytes=np.maximum(np.array(total, np.int64), num_bytes),
        nulls={name: np.array(counted, np.int64) for name, counted in nulls.items() if len(counted) == len(rows)},
    )
