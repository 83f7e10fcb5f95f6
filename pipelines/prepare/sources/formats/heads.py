"""The column types of text formats, decided once from the files' heads, by the readers of `datasets`.

first file of the first split       its first 10 MB of JSON, 10,000 rows of CSV: the types, as `load_dataset` has them
a column that is null all through   looked for in the heads of some other files
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from pipelines.prepare.options.suggestions import to_utf8
from pipelines.prepare.sources.files import byte_ranges
from pipelines.prepare.sources.files.data_files import DataFile, FileKind
from pipelines.prepare.sources.formats import json_lines, text_readers
from pipelines.prepare.sources.splits import file_kinds
from tfrecord_io.errors import ColumnError, PrepError, SourceError
from tfrecord_io.shown import first_line, without_access

__all__ = ["check_header", "text_types"]

# Files that are asked for the type of a column, and how much of each.
_MOST_HEADS = 8
_HEAD_BYTES = 1 << 18


def text_types(
    splits: Mapping[str, Sequence[DataFile]],
    kind: FileKind,
    *,
    addresses: Mapping[str, str],
    wanted: Collection[str] = (),
) -> pa.Schema:
    """The columns of the source, with the description of `datasets` as metadata. Files have rows, or are left out.
    `wanted` are columns that will be read.

    Raises: SourceError if a head cannot be read, or no file has a row; ColumnError if a header line names a wanted
        column twice.
    """
    files = [file for some in splits.values() for file in some]
    heads = ((number, _described(file, kind, addresses=addresses, wanted=wanted)) for number, file in enumerate(files))
    number, types = next(((number, found) for number, found in heads if found is not None), (0, None))
    if types is None:
        raise SourceError(
            f"{without_access(files[0].path)}: no rows, expected at least one",
            remedy="check the files for their content",
        )
    others = [file for file in files[number + 1 :] if file.size][: _MOST_HEADS - 1]
    return _without_nulls(types, others, kind, addresses=addresses)


def check_header(file: DataFile, *, wanted: Collection[str], addresses: Mapping[str, str]) -> None:
    """Looks at the header line of a CSV file, for what its reader would take without a word: of two columns of one name
    the first, and of a first row with more fields than names its first field for the name of the row.

    Raises: ColumnError if several columns have a `wanted` name; SourceError.
    """
    names, num_fields = _header(file, separator=file_kinds.SEPARATORS[file.kind], addresses=addresses)
    if repeated := sorted({name for name in names if name in wanted and names.count(name) > 1}):
        raise ColumnError(
            f"{without_access(file.path)}: the header line names several columns {', '.join(map(repr, repeated))}, "
            "expected one of each name",
            remedy="rename them in the file",
        )
    if num_fields > len(names):
        raise SourceError(
            f"{without_access(file.path)}: {num_fields} fields in the first row, but {len(names)} names in the header "
            "line",
            remedy="name every column in the header line, and end no row with a separator",
        )


open_head = partial(byte_ranges.open_file, block_bytes=_HEAD_BYTES)


def _described(
    file: DataFile, kind: FileKind, *, addresses: Mapping[str, str], wanted: Collection[str]
) -> pa.Schema | None:
    if kind in file_kinds.SEPARATORS:
        check_header(file, wanted=wanted, addresses=addresses)
    with _explained(file, addresses=addresses):
        return text_readers.described(kind, lambda: open_head(file, addresses=addresses))


def _without_nulls(
    types: pa.Schema, others: Sequence[DataFile], kind: FileKind, *, addresses: Mapping[str, str]
) -> pa.Schema:
    """The types, with those of other files for columns that have only nulls in the first."""
    for file in others:
        if not (unknown := [field.name for field in types if _is_unknown(field.type)]):
            break
        found = _described_by_head(file, kind, addresses=addresses)
        if found is not None:
            types = _replaced(types, {name: found.field(name).type for name in unknown if name in found.names})
    return types


def _described_by_head(file: DataFile, kind: FileKind, *, addresses: Mapping[str, str]) -> pa.Schema | None:
    """The columns by the first lines of a file; None if they say nothing, which is nothing against the file."""
    with contextlib.suppress(Exception):
        head = byte_ranges.read_head(file, _HEAD_BYTES, addresses=addresses)
        whole = head if len(head) < _HEAD_BYTES else head[: head.rfind(b"\n") + 1]
        return text_readers.described(kind, lambda: text_readers.in_memory(whole))
    return None


def _replaced(types: pa.Schema, known: Mapping[str, pa.DataType]) -> pa.Schema:
    import datasets

    fields = [field.with_type(known.get(field.name, field.type)) for field in types]
    return datasets.Features.from_arrow_schema(pa.schema(fields)).arrow_schema if known else types


def _is_unknown(kind: pa.DataType) -> bool:
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return pa.types.is_null(kind) or any(map(_is_unknown, inner))


@contextlib.contextmanager
def _explained(file: DataFile, *, addresses: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except PrepError:
        raise
    except UnicodeDecodeError as error:
        found = error.object[error.start : error.start + 8]
        raise SourceError(
            f"{without_access(file.path)}: cannot be read: not UTF-8, {error.reason} at {found!r}",
            remedy=to_utf8(error.object),
        ) from error
    except Exception as error:  # of each reader others
        broken = _broken_row(file, addresses=addresses)
        raise SourceError(
            f"{without_access(file.path)}{f', {broken}' if broken else f': cannot be read: {first_line(error)}'}",
            remedy="mend the file or leave it out, or name another config or format",
        ) from error


def _broken_row(file: DataFile, *, addresses: Mapping[str, str]) -> str | None:
    """Which row of JSON lines cannot be read. Readers count rows from where they began to parse."""
    if file.kind != "json":
        return None
    with open_head(file, addresses=addresses) as stream:
        return json_lines.broken_row(stream)


def _header(file: DataFile, *, separator: str, addresses: Mapping[str, str]) -> tuple[list[str], int]:
    """The names in the header line, and the number of fields in the first row; none where they cannot be read."""
    try:
        with open_head(file, addresses=addresses) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="")
            records = file_kinds.first_records(text, separator=separator)
    except (ValueError, csv.Error):
        return [], 0
    return (records[0], len(records[1]) if len(records) > 1 else 0) if records else ([], 0)
