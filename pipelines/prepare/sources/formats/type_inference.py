"""Inferring the column types of text formats once, from the heads of files, by the readers of `datasets`.

first file of the first split       10 MB of JSON or 10,000 rows of CSV decide the types, as in `load_dataset`
a column with nulls only            its type is taken from the head of another file
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

# The number of files that may decide the type of a column, and the bytes read of each.
_MOST_HEADS = 8
_HEAD_BYTES = 1 << 18


def text_types(
    splits: Mapping[str, Sequence[DataFile]],
    kind: FileKind,
    *,
    addresses: Mapping[str, str],
    wanted: Collection[str] = (),
) -> pa.Schema:
    """Return the columns of the source, with the features of `datasets` as metadata; `wanted` columns will be read.

    Raises: SourceError if a head cannot be read, or no file has rows; ColumnError if a header line names a wanted
        column twice.
    """
    files = [file for some in splits.values() for file in some]
    heads = ((number, _infer(file, kind, addresses=addresses, wanted=wanted)) for number, file in enumerate(files))
    number, types = next(((number, schema) for number, schema in heads if schema is not None), (0, None))
    if types is None:
        raise SourceError(
            f"{without_access(files[0].path)}: no rows, expected at least one",
            remedy="check the files for their content",
        )
    others = [file for file in files[number + 1 :] if file.size][: _MOST_HEADS - 1]
    return _without_nulls(types, others, kind, addresses=addresses)


def check_header(file: DataFile, *, wanted: Collection[str], addresses: Mapping[str, str]) -> None:
    """Check the header line of a CSV file for mistakes that its reader silently accepts.

    Of two columns with one name it reads the first; if the first row has more fields than names, it takes the first
    field as a row index.

    Raises: ColumnError if several columns have a `wanted` name; SourceError.
    """
    names, num_fields = _header(file, separator=file_kinds.SEPARATORS[file.kind], addresses=addresses)
    if repeated := sorted({name for name in names if name in wanted and names.count(name) > 1}):
        raise ColumnError(
            f"{without_access(file.path)}: the header line names several columns {', '.join(map(repr, repeated))}, "
            "expected each name once",
            remedy="rename them in the file",
        )
    if num_fields > len(names):
        raise SourceError(
            f"{without_access(file.path)}: {num_fields} fields in the first row, but {len(names)} names in the header "
            "line",
            remedy="name every column in the header line, and end no row with a separator",
        )


open_head = partial(byte_ranges.open_file, block_bytes=_HEAD_BYTES)


def _infer(
    file: DataFile, kind: FileKind, *, addresses: Mapping[str, str], wanted: Collection[str]
) -> pa.Schema | None:
    if kind in file_kinds.SEPARATORS:
        check_header(file, wanted=wanted, addresses=addresses)
    with _as_source_error(file, addresses=addresses):
        return text_readers.infer_schema(kind, lambda: open_head(file, addresses=addresses))


def _without_nulls(
    types: pa.Schema, others: Sequence[DataFile], kind: FileKind, *, addresses: Mapping[str, str]
) -> pa.Schema:
    """Replace the types of columns that have only nulls in the first file by those of other files."""
    for file in others:
        if not (unknown := [field.name for field in types if _has_null_type(field.type)]):
            break
        inferred = _infer_from_head(file, kind, addresses=addresses)
        if inferred is not None:
            types = _replaced(types, {name: inferred.field(name).type for name in unknown if name in inferred.names})
    return types


def _infer_from_head(file: DataFile, kind: FileKind, *, addresses: Mapping[str, str]) -> pa.Schema | None:
    """Infer the columns from the first lines of a file; None if that fails, which is no error of the file."""
    with contextlib.suppress(Exception):
        head = byte_ranges.read_head(file, _HEAD_BYTES, addresses=addresses)
        lines = head if len(head) < _HEAD_BYTES else head[: head.rfind(b"\n") + 1]
        return text_readers.infer_schema(kind, lambda: text_readers.in_memory(lines))
    return None


def _replaced(types: pa.Schema, known: Mapping[str, pa.DataType]) -> pa.Schema:
    import datasets

    fields = [field.with_type(known.get(field.name, field.type)) for field in types]
    return datasets.Features.from_arrow_schema(pa.schema(fields)).arrow_schema if known else types


def _has_null_type(kind: pa.DataType) -> bool:
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return pa.types.is_null(kind) or any(map(_has_null_type, inner))


@contextlib.contextmanager
def _as_source_error(file: DataFile, *, addresses: Mapping[str, str]) -> Iterator[None]:
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
    except Exception as error:  # each reader has its own errors
        broken = _broken_row(file, addresses=addresses)
        raise SourceError(
            f"{without_access(file.path)}{f', {broken}' if broken else f': cannot be read: {first_line(error)}'}",
            remedy="correct the file or leave it out, or name another config or format",
        ) from error


def _broken_row(file: DataFile, *, addresses: Mapping[str, str]) -> str | None:
    """Name the row of JSON lines that cannot be read: readers count rows from where they began to parse."""
    if file.kind != "json":
        return None
    with open_head(file, addresses=addresses) as stream:
        return json_lines.describe_broken_row(stream)


def _header(file: DataFile, *, separator: str, addresses: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the names in the header line, and the number of fields in the first row; none if they cannot be read."""
    try:
        with open_head(file, addresses=addresses) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="")
            records = file_kinds.first_records(text, separator=separator)
    except (ValueError, csv.Error):
        return [], 0
    return (records[0], len(records[1]) if len(records) > 1 else 0) if records else ([], 0)
