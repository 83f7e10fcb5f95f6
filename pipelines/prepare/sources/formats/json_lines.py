"""Rows of JSON lines by pyarrow's own reader, with the types that were decided for the source.

The reader of `datasets` decides the types of each 10 MB anew, casts what it finds, and holds Python's lock for much of
the time. Here a chunk is read with the types as they are, which takes less than half of the processor time and lets
threads work side by side. What does not fit is left to `datasets`, chunk by chunk, so that neither more nor less is
accepted than there; only a value that `datasets` would change without a word is refused.
"""

from __future__ import annotations

import bisect
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json

from pipelines.prepare.sources.files import byte_ranges
from pipelines.prepare.sources.files.data_files import DataFile
from pipelines.prepare.sources.formats.casting import MisfitError, unknown_column
from tfrecord_io.shown import first_line

__all__ = ["begins", "broken_row", "checked", "chunks", "is_line", "misfit", "parse", "serves"]

# As `datasets` cuts a file.
_CHUNK_BYTES = 10 << 20
# Most first lines are short.
_HEAD_BYTES = (1 << 16, 1 << 20, _CHUNK_BYTES)
_FIRST_LINE = re.compile(rb"\S[^\n]*")
# Features that are nothing more than their Arrow type.
_PLAIN = frozenset({"Value", "List", "Sequence", "LargeList"})


def serves(types: pa.Schema) -> bool:
    """Whether pyarrow alone reads rows of these types as `datasets` does."""
    described = (types.metadata or {}).get(b"huggingface")
    return described is None or _feature_types(json.loads(described)) <= _PLAIN


def chunks(stream: io.BufferedReader) -> Iterator[memoryview]:
    """The lines of a stream, about 10 MB at a time. A chunk is good until the next one is asked for."""
    buffer, held = bytearray(_CHUNK_BYTES), 0
    while taken := stream.readinto(memoryview(buffer)[held:]):
        filled = held + taken
        end = buffer.rfind(b"\n", held, filled) + 1
        if end:
            yield memoryview(buffer)[:end]
        rest = memoryview(buffer)[end:filled]
        # Whoever has read a chunk may hold it still: what is left of it goes elsewhere, if a line needs more room.
        target = buffer if end else bytearray(2 * len(buffer))
        target[: len(rest)], buffer, held = bytes(rest), target, len(rest)
    if held:
        yield memoryview(buffer)[:held]


def begins(file: DataFile, *, addresses: Mapping[str, str]) -> bool:
    """Whether a file begins with a line that is a row, as opposed to an array or a row over several lines."""
    head = b""
    for num_bytes in _HEAD_BYTES:
        head = byte_ranges.read_head(file, num_bytes, addresses=addresses)
        if b"\n" in head.lstrip():
            break
    return is_line(head)


def is_line(head: bytes | memoryview) -> bool:
    """Whether the first line that is not blank is a JSON object."""
    line = _FIRST_LINE.search(head)
    try:
        return line is not None and isinstance(json.loads(line[0]), dict)
    except ValueError:
        return False


def parse(chunk: bytes | memoryview, types: pa.Schema) -> pa.Table:
    """The rows of a chunk. Raises: pa.ArrowInvalid, pa.ArrowNotImplementedError if they do not have these types."""
    if not _FIRST_LINE.search(chunk):
        return types.empty_table()
    table = pa.json.read_json(
        pa.BufferReader(pa.py_buffer(chunk)),
        read_options=pa.json.ReadOptions(block_size=len(chunk), use_threads=False),
        parse_options=pa.json.ParseOptions(explicit_schema=types, unexpected_field_behavior="error"),
    )
    return pa.Table.from_arrays([table[name] for name in types.names], schema=types)


def checked(table: pa.Table) -> Iterator[pa.Table]:
    """The rows, once it is known that all texts are UTF-8: the parser takes any bytes for text.

    Raises: UnicodeDecodeError behind the last row before one that is not.
    """
    if _is_utf8(table):
        yield table
        return
    good = bisect.bisect_left(range(len(table)), True, key=lambda row: not _is_utf8(table.slice(0, row + 1)))
    yield table.slice(0, good)
    table.slice(good).to_pylist()


def _is_utf8(table: pa.Table) -> bool:
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def misfit(chunk: bytes, types: pa.Schema) -> MisfitError:
    """What is wrong with the first line of a chunk that `parse` does not take."""
    lines = chunk.split(b"\n")
    failing = bisect.bisect_left(range(len(lines)), True, key=lambda last: _fails(lines[: last + 1], types))
    before = b"\n".join([*lines[:failing], b""])
    what = _difference(lines[min(failing, len(lines) - 1)], types)
    return MisfitError(what, rows=parse(before, types).num_rows, num_bytes=len(before))


def broken_row(stream: io.BufferedReader) -> str | None:
    """Where the first line is that is no JSON, and why; None if the first chunk has none, or holds no rows in lines."""
    chunk = bytes(next(chunks(stream), b""))
    if not is_line(chunk):
        return None
    lines = (line for line in chunk.split(b"\n") if line.strip())
    reasons = ((row, _why_broken(line)) for row, line in enumerate(lines))
    return next((f"row {row:,}: no JSON object ({reason})" for row, reason in reasons if reason), None)


def _why_broken(line: bytes) -> str | None:
    try:
        json.loads(line)
    except ValueError as error:
        return first_line(error)
    return None


def _fails(lines: Sequence[bytes], types: pa.Schema) -> bool:
    try:
        parse(b"\n".join(lines), types)
    except pa.ArrowException:
        return True
    return False


def _difference(line: bytes, types: pa.Schema) -> str:
    try:
        found = pa.json.read_json(pa.BufferReader(line), read_options=pa.json.ReadOptions(block_size=len(line) or 1))
    except pa.ArrowException as error:
        return f"no JSON object ({first_line(error)})"
    if unknown := unknown_column(found.column_names, types.names):
        return unknown
    for field in found.schema:
        kept = pa.schema([types.field(field.name)])
        if _fails([json.dumps({field.name: json.loads(line)[field.name]}).encode()], kept):
            return f"column {field.name!r} holds {field.type}, expected {kept.field(0).type}"
    return "other types than the source"


def _feature_types(described: Any) -> set[str]:
    """Names of all kinds of features in the description that `datasets` leaves in a schema."""
    if isinstance(described, list):
        return set().union(*map(_feature_types, described))
    if not isinstance(described, dict):
        return set()
    own = {described["_type"]} if isinstance(described.get("_type"), str) else set()
    return own.union(*map(_feature_types, described.values()))
