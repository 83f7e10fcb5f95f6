"""Text formats read by the readers of `datasets`, whatever the file lies on.

    DataFile ── byte_ranges ──► bytes ── a file system of this process ──► load_dataset(..., streaming=True) ──► tables

`datasets` is given addresses such as `ingest://7/rows.csv`, and opens them through fsspec; what they name are the
streams that are open here at the time. So every file is read with our time limits, retries and messages, and no
address with credentials is passed on.
"""

from __future__ import annotations

import bisect
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
from pipelines.prepare.sources.formats.casting import MisfitError, unknown_column

__all__ = ["ByteSource", "described", "tables"]

ByteSource = Callable[[], AbstractContextManager[io.BufferedReader]]

_PROTOCOL = "ingest"
_BUILDERS = {"json": ("json", "jsonl"), "csv": ("csv", "csv"), "tsv": ("csv", "csv"), "text": ("text", "txt")}

# A file that begins with as many blanks is damaged.
_HEAD_BYTES = 1 << 16

_numbers = itertools.count()
_being_read: dict[str, tuple[ByteSource, contextlib.ExitStack]] = {}
# The first use of a reader changes its module, and looks for whether that is done already.
_first_use = threading.Lock()


def described(kind: FileKind, source: ByteSource) -> pa.Schema | None:
    """The columns of a file as `datasets` decides them by its head, with its features as metadata; None of a file
    without rows.
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
    """The rows of a file with these types. Raises: whatever the reader, pandas and pyarrow raise."""
    import datasets

    # Told the features beforehand, the reader of CSV would refuse a number that is missing in a later chunk.
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
    """Whether a file has no row, which some readers take for an error. Of text, a blank line is a row."""
    with source() as stream:
        head = stream.read(_HEAD_BYTES)
    return not head if kind == "text" else not head.strip()


def _cast(table: pa.Table, types: pa.Schema) -> pa.Table:
    """As `datasets` casts what it reads. Raises: MisfitError for a row that has other types."""
    from datasets.table import table_cast

    try:
        return table_cast(table, types)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise _misfit(table, types) from error


def _misfit(table: pa.Table, types: pa.Schema) -> MisfitError:
    """What is wrong with the first row that cannot be cast."""
    if unknown := unknown_column(table.column_names, types.names):
        return MisfitError(unknown, rows=0)
    for field in types:
        column = table.select([name for name in table.column_names if name == field.name])
        if column.num_columns and _fails(column, field):
            row = bisect.bisect_left(range(len(table)), True, key=partial(_fails_up_to, column, field))
            found = column.schema.field(0).type
            return MisfitError(f"column {field.name!r} holds {found}, expected {field.type}", rows=row)
    return MisfitError("other types than the source", rows=0)


def _fails_up_to(column: pa.Table, field: pa.Field, row: int) -> bool:
    return _fails(column.slice(0, row + 1), field)


def _fails(column: pa.Table, field: pa.Field) -> bool:
    from datasets.table import table_cast

    try:
        table_cast(column, pa.schema([field]))
    except (pa.ArrowException, ValueError, TypeError):
        return True
    return False


def _tables(dataset: Any) -> Iterator[pa.Table]:
    # The size only counts where rows are put together from Python's own values.
    yield from dataset.with_format("arrow").iter(1000)


@contextlib.contextmanager
def _opened(kind: FileKind, source: ByteSource, *, features: Any, mixed: bool) -> Iterator[Any]:
    import datasets

    reader, suffix = _BUILDERS[kind]
    key = f"{next(_numbers)}/rows.{suffix}"
    with contextlib.ExitStack() as opened:
        _being_read[key] = source, opened
        opened.callback(_being_read.pop, key)
        # A lock is all that is written there; the user's own cache may not be there, or not be writable.
        cache = opened.enter_context(tempfile.TemporaryDirectory(prefix="prep-tfrecords-"))
        with _first_use:
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
    # Values of several types become JSON where types are decided, and are refused where these are known: `datasets`
    # would put quotes around each text of the chunk. Traces of agents are rows like others.
    wanted = {"parse_agent_traces": False, **({} if mixed else {"on_mixed_types": None})}
    return {name: value for name, value in wanted.items() if name in known}


class _OpenSources(fsspec.AbstractFileSystem):
    """The sources that are being read in this process, as fsspec has it."""

    protocol = _PROTOCOL
    cachable = False

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Raises: FileNotFoundError."""
        name = self._strip_protocol(path)
        if name not in _being_read:
            raise FileNotFoundError(name)
        return {"name": name, "type": "file", "size": None}

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        """A stream of bytes or text, which is closed when its source has been read."""
        source, opened = _being_read[self._strip_protocol(path)]
        stream = opened.enter_context(source())
        # `datasets` hands the encoding to whoever makes the file system.
        return stream if "b" in mode else io.TextIOWrapper(stream, encoding="utf-8")


fsspec.register_implementation(_PROTOCOL, _OpenSources, clobber=True)


def _is_of_others(record: logging.LogRecord) -> bool:
    return f"{_PROTOCOL}://" not in record.getMessage()


# What readers log of our addresses says nothing to a user, and comes as an error as well.
for _name in ("json.json", "csv.csv"):
    logging.getLogger(f"datasets.packaged_modules.{_name}").addFilter(_is_of_others)


@contextlib.contextmanager
def in_memory(content: bytes) -> Iterator[io.BufferedReader]:
    """Bytes as a source."""
    with io.BytesIO(content) as stream:
        yield io.BufferedReader(cast("io.RawIOBase", stream))
