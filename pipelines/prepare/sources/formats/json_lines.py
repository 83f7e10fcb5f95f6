"""JSON lines parsed by pyarrow with the types of the source.

The reader of `datasets` infers the types of each 10 MB anew, casts the rows, and holds Python's lock for much of the
time. Parsing a chunk with known types takes less than half of the processor time, and lets threads work in parallel.
Chunks that do not fit are left to `datasets` (see `readers`), so that the same rows are accepted; only a value that
`datasets` would silently change is refused.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json

from pipelines.prepare.sources.files import byte_ranges
from pipelines.prepare.sources.files.data_files import DataFile
from pipelines.prepare.sources.formats.casting import RowTypeError, first_failing, unexpected_column
from tfrecord_io.shown import first_line

__all__ = [
    "begins_with_row",
    "check_utf8",
    "chunks",
    "describe_broken_row",
    "find_mismatch",
    "is_row_line",
    "parse",
    "supports",
]

# The chunk size of `datasets`.
_CHUNK_BYTES = 10 << 20
# Sizes of heads to read until one has a whole line; most first lines are short.
_HEAD_BYTES = (1 << 16, 1 << 20, _CHUNK_BYTES)
_FIRST_LINE = re.compile(rb"\S[^\n]*")
# Features without a meaning beyond their Arrow type.
_PLAIN = frozenset({"Value", "List", "Sequence", "LargeList"})


def supports(types: pa.Schema) -> bool:
    """Whether pyarrow reads rows of these types as `datasets` does."""
    described = (types.metadata or {}).get(b"huggingface")
    return described is None or _feature_types(json.loads(described)) <= _PLAIN


def chunks(stream: io.BufferedReader) -> Iterator[memoryview]:
    """Yield the lines of a stream, about 10 MB at a time. A chunk is valid until the next one is requested."""
    buffer, held = bytearray(_CHUNK_BYTES), 0
    while taken := stream.readinto(memoryview(buffer)[held:]):
        filled = held + taken
        end = buffer.rfind(b"\n", held, filled) + 1
        if end:
            yield memoryview(buffer)[:end]
        rest = memoryview(buffer)[end:filled]
        # A larger line needs a new buffer: the old one cannot be resized while the caller holds a chunk of it.
        target = buffer if end else bytearray(2 * len(buffer))
        target[: len(rest)], buffer, held = bytes(rest), target, len(rest)
    if held:
        yield memoryview(buffer)[:held]


def begins_with_row(file: DataFile, *, addresses: Mapping[str, str]) -> bool:
    """Whether a file begins with a line that is a row, not with an array or a row over several lines."""
    head = b""
    for num_bytes in _HEAD_BYTES:
        head = byte_ranges.read_head(file, num_bytes, addresses=addresses)
        if b"\n" in head.lstrip():
            break
    return is_row_line(head)


def is_row_line(head: bytes | memoryview) -> bool:
    """Whether the first line that is not blank is a JSON object."""
    line = _FIRST_LINE.search(head)
    try:
        return line is not None and isinstance(json.loads(line[0]), dict)
    except ValueError:
        return False


def parse(chunk: bytes | memoryview, types: pa.Schema) -> pa.Table:
    """Parse the rows of a chunk. Raises: pa.ArrowInvalid, pa.ArrowNotImplementedError if they have other types."""
    if not _FIRST_LINE.search(chunk):
        return types.empty_table()
    table = pa.json.read_json(
        pa.BufferReader(pa.py_buffer(chunk)),
        read_options=pa.json.ReadOptions(block_size=len(chunk), use_threads=False),
        parse_options=pa.json.ParseOptions(explicit_schema=types, unexpected_field_behavior="error"),
    )
    return pa.Table.from_arrays([table[name] for name in types.names], schema=types)


def check_utf8(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows whose texts are UTF-8, which the parser does not check.

    Raises: UnicodeDecodeError after the rows before the first one that is not.
    """
    if _is_utf8(table):
        yield table
        return
    good = first_failing(len(table), lambda num_rows: not _is_utf8(table.slice(0, num_rows)))
    yield table.slice(0, good)
    table.slice(good).to_pylist()  # raises


def _is_utf8(table: pa.Table) -> bool:
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def find_mismatch(chunk: bytes, types: pa.Schema) -> RowTypeError:
    """Describe the first line of a chunk that `parse` refuses."""
    lines = chunk.split(b"\n")
    failing = first_failing(len(lines), lambda count: _fails(lines[:count], types))
    before = b"\n".join([*lines[:failing], b""])
    problem = _difference(lines[min(failing, len(lines) - 1)], types)
    return RowTypeError(problem, rows_before=parse(before, types).num_rows, bytes_before=len(before))


def describe_broken_row(stream: io.BufferedReader) -> str | None:
    """Name the first line that is not JSON, and why; None if the first chunk has none, or rows are not lines."""
    chunk = bytes(next(chunks(stream), b""))
    if not is_row_line(chunk):
        return None
    lines = (line for line in chunk.split(b"\n") if line.strip())
    reasons = ((row, _why_broken(line)) for row, line in enumerate(lines))
    return next((f"row {row:,}: not a JSON object ({reason})" for row, reason in reasons if reason), None)


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
        return f"not a JSON object ({first_line(error)})"
    if unexpected := unexpected_column(found.column_names, types.names):
        return unexpected
    for field in found.schema:
        kept = pa.schema([types.field(field.name)])
        if _fails([json.dumps({field.name: json.loads(line)[field.name]}).encode()], kept):
            return f"column {field.name!r} holds {field.type}, expected {kept.field(0).type}"
    return "other types than the source"


def _feature_types(described: Any) -> set[str]:
    """Return the names of all feature types in the description that `datasets` writes into a schema."""
    if isinstance(described, list):
        return set().union(*map(_feature_types, described))
    if not isinstance(described, dict):
        return set()
    own = {described["_type"]} if isinstance(described.get("_type"), str) else set()
    return own.union(*map(_feature_types, described.values()))
