"""Reading text formats by the readers of `datasets`, from local files and from any storage.

    DataFile ── byte_ranges ──► bytes ── a file system of this process ──► load_dataset(..., streaming=True) ──► tables

`datasets` gets addresses such as `ingest://7/rows.csv`, which it opens through fsspec; they name the streams that are
open here at the time. So every file is read with our time limits, retries and messages, and `datasets` sees no
credentials.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

import fsspec
import pyarrow as pa

from pipelines.prepare.sources.files.data_files import FileKind
from pipelines.prepare.sources.formats.casting import RowTypeError, first_failing, unexpected_column

__all__ = ["ByteSource", "infer_schema", "tables"]

ByteSource = Callable[[], AbstractContextManager[io.BufferedReader]]

_PROTOCOL = "ingest"
_BUILDERS = {"json": ("json", "jsonl"), "csv": ("csv", "csv"), "tsv": ("csv", "csv"), "text": ("text", "txt")}

# A file that begins with so many blanks is damaged.
_HEAD_BYTES = 1 << 16

_numbers = itertools.count()
_being_read: dict[str, tuple[ByteSource, contextlib.ExitStack]] = {}
# `load_dataset` patches the module of a reader at its first use, which is not thread-safe.
_loading = threading.Lock()


def infer_schema(kind: FileKind, source: ByteSource) -> pa.Schema | None:
    """Return the columns that `datasets` infers from the head of a file, with its features as metadata.

    None for a file without rows.
    """
    import datasets

    if _is_blank(kind, source):
        return None
    with _opened(kind, source, features=None, mixed=True) as dataset:
        if dataset.features is not None:
            return dataset.features.arrow_schema
        first = next(_tables(dataset), None)
        return datasets.Features.from_arrow_schema(first.schema).arrow_schema if first else None


def tables(kind: FileKind, source: ByteSource, types: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a file with these types. Raises: whatever the reader, pandas and pyarrow raise."""
    import datasets

    # With features, the CSV reader refuses an integer column that has an empty cell in a later chunk.
    features = None if kind in ("csv", "tsv") else datasets.Features.from_arrow_schema(types)
    begun = False
    try:
        with _opened(kind, source, features=features, mixed=False) as dataset:
            for table in _tables(dataset):
                begun = True
                yield _cast(table, types)
    except Exception:
        if begun or not _is_blank(kind, source):
            raise


def _is_blank(kind: FileKind, source: ByteSource) -> bool:
    """Whether a file has no rows, for which some readers raise. In a text file, a blank line is a row."""
    with source() as stream:
        head = stream.read(_HEAD_BYTES)
    return not head if kind == "text" else not head.strip()


def _cast(table: pa.Table, types: pa.Schema) -> pa.Table:
    """Cast as `datasets` does. Raises: RowTypeError for a row that has other types."""
    from datasets.table import table_cast

    try:
        return table_cast(table, types)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise _mismatch(table, types) from error


def _mismatch(table: pa.Table, types: pa.Schema) -> RowTypeError:
    """Describe what is wrong with the first row that cannot be cast."""
    if unexpected := unexpected_column(table.column_names, types.names):
        return RowTypeError(unexpected, rows_before=0)
    for field in types:
        column = table.select([name for name in table.column_names if name == field.name])
        if column.num_columns and (row := first_failing(len(table), partial(_fails, column, field))) < len(table):
            held = column.schema.field(0).type
            return RowTypeError(f"column {field.name!r} holds {held}, expected {field.type}", rows_before=row)
    return RowTypeError("other types than the source", rows_before=0)


def _fails(column: pa.Table, field: pa.Field, num_rows: int) -> bool:
    """Whether the first rows of a column cannot be cast."""
    from datasets.table import table_cast

    try:
        table_cast(column.slice(0, num_rows), pa.schema([field]))
    except (pa.ArrowException, ValueError, TypeError):
        return True
    return False


def _tables(dataset: Any) -> Iterator[pa.Table]:
    # The batch size matters only to readers that make rows from Python values.
    yield from dataset.with_format("arrow").iter(1000)


@contextlib.contextmanager
def _opened(kind: FileKind, source: ByteSource, *, features: Any, mixed: bool) -> Iterator[Any]:
    import datasets

    reader, suffix = _BUILDERS[kind]
    key = f"{next(_numbers)}/rows.{suffix}"
    with contextlib.ExitStack() as opened:
        _being_read[key] = source, opened
        opened.callback(_being_read.pop, key)
        # Only a lock file is written to the cache; the user's own cache may be missing or read-only.
        cache = opened.enter_context(tempfile.TemporaryDirectory(prefix="prep-tfrecords-"))
        with _loading:
            dataset = datasets.load_dataset(
                reader,
                data_files=[f"{_PROTOCOL}://{key}"],
                split="train",
                streaming=True,
                features=features,
                cache_dir=cache,
                **_options(kind, mixed=mixed),
            )
        yield dataset


def _options(kind: FileKind, *, mixed: bool) -> dict[str, Any]:
    if kind == "tsv":
        return {"sep": "\t"}
    if kind != "json":
        return {}
    from datasets.packaged_modules.json.json import JsonConfig

    known = {field.name for field in dataclasses.fields(JsonConfig)}
    # Mixed values become JSON while types are inferred. Once types are known they are refused: `datasets` would put
    # quotes around each text of the chunk. Agent traces are ordinary rows.
    wanted = {"parse_agent_traces": False, **({} if mixed else {"on_mixed_types": None})}
    return {name: value for name, value in wanted.items() if name in known}


class _OpenSources(fsspec.AbstractFileSystem):
    """An fsspec file system of the sources that are being read in this process."""

    protocol = _PROTOCOL
    cachable = False

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return the metadata of a source. Raises: FileNotFoundError if it is not being read."""
        name = self._strip_protocol(path)
        if name not in _being_read:
            raise FileNotFoundError(name)
        return {"name": name, "type": "file", "size": None}

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        """Open a source as bytes or text; it is closed when the source has been read."""
        source, opened = _being_read[self._strip_protocol(path)]
        stream = opened.enter_context(source())
        # `datasets` passes the encoding to the file system's constructor, not to `open`.
        return stream if "b" in mode else io.TextIOWrapper(stream, encoding="utf-8")


fsspec.register_implementation(_PROTOCOL, _OpenSources, clobber=True)


def _is_of_others(record: logging.LogRecord) -> bool:
    return f"{_PROTOCOL}://" not in record.getMessage()


# Log records about these addresses mean nothing to a user, who sees the error as well.
for _name in ("json.json", "csv.csv"):
    logging.getLogger(f"datasets.packaged_modules.{_name}").addFilter(_is_of_others)


@contextlib.contextmanager
def in_memory(content: bytes) -> Iterator[io.BufferedReader]:
    """Open bytes as a source."""
    with io.BytesIO(content) as stream:
        yield io.BufferedReader(cast("io.RawIOBase", stream))
