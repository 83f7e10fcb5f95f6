"""What the user's functions make of a split's columns, and the test that they may be called batch by batch.

    a few hundred rows from all along each split
        ──► each function on all of them at once     columns and their types; what is still a class label
        ──► and on two halves                        must come to the same, or the function depends on the batch

A column whose values no map has changed here keeps the class names that the source has for it. Whatever a map gives is
what it is in Arrow: to name classes, give strings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.prepare.sources.formats.features import Column, Columns, columns_of
from pipelines.prepare.sources.formats.groups import Groups
from pipelines.prepare.sources.rows.reading import RowChanges, RowReader, conform, place_of
from pipelines.prepare.sources.rows.user_functions import UserFunction, call
from tfrecord_io.errors import PrepError, SourceError

__all__ = ["Changed", "changes_of", "with_functions"]

_CLUSTERS = 16
_CLUSTER_ROWS = 32
_MOST_BYTES = 16 << 20
# What is read for a sample, as stored: so much of the split, or so many bytes, and one group in any case.
_STORED_SHARE = 1 / 200
_STORED_BYTES = 2 << 20

_log = logging.getLogger(__name__)


class Changed(NamedTuple):
    """By split, what reads the rows as the functions make them, and the columns that they then have."""

    readers: Mapping[str, RowReader]
    columns: Mapping[str, Columns]


def with_functions(
    readers: Mapping[str, RowReader],
    groups: Mapping[str, Groups],
    columns: Mapping[str, Columns],
    functions: Sequence[UserFunction],
    *,
    asked: Collection[str],
) -> Changed:
    """The source's splits with their rows taken through the functions. One that is not `asked` for, and that they
    cannot take, is left out with a warning.

    Raises: SourceError if a function fails on rows of the sample, or depends on the batch.
    """
    if not functions:
        return Changed(readers, columns)
    found: dict[str, tuple[RowReader, Columns]] = {}
    for name, reader in readers.items():
        with contextlib.nullcontext() if name in asked else _warning(name):
            found[name] = _with_functions(reader, groups[name], columns[name], tuple(functions))
    return Changed(
        {name: reader for name, (reader, _) in found.items()}, {name: each for name, (_, each) in found.items()}
    )


def changes_of(
    functions: tuple[UserFunction, ...],
    known: Columns,
    samples: Iterable[tuple[pa.Table, str]],
    *,
    split: str,
    rows: int,
) -> tuple[RowChanges, Columns]:
    """What the functions make of the rows: looked at in the first of the samples, each with its name, of which they
    leave a row. `rows` are those of the split.

    Raises: SourceError as `with_functions`, and if they leave none at all.
    """
    seen = 0
    for table, place in samples:
        seen += table.num_rows
        found = _examine(functions, table, known, place=place)
        if found is not None:
            columns = _columns(found.schema, found.known)
            changes = RowChanges(functions=functions, schema=columns.arrow_schema, share=found.rows / seen)
            return changes, columns
    filters = " and ".join(function.option for function in functions if function.kind == "filter")
    raise SourceError(
        f"split {split!r}: {filters} leave none of its {rows} rows",
        remedy="look at the filter, or choose other splits with --split",
    )


@contextlib.contextmanager
def _warning(split: str) -> Iterator[None]:
    try:
        yield
    except PrepError as error:
        _log.warning("split %r is not asked for, and its labels are not looked at: %s", split, error.cause)


def _with_functions(
    reader: RowReader, groups: Groups, known: Columns, functions: tuple[UserFunction, ...]
) -> tuple[RowReader, Columns]:
    if not groups.total_rows:
        return reader, known
    changes, columns = changes_of(
        functions, known, _samples(reader, groups), split=reader.split, rows=groups.total_rows
    )
    return dataclasses.replace(reader, changes=changes), columns


def _samples(reader: RowReader, groups: Groups) -> Iterator[tuple[pa.Table, str]]:
    """Rows from all along the split; and if the filters leave none of them, all rows, batch by batch."""
    names = reader.types.names
    batches, num_bytes = [], 0
    for _, batch in reader.read(groups.pieces(_clusters(groups)), names):
        batches.append(batch)
        num_bytes += batch.nbytes
        if num_bytes > _MOST_BYTES:
            break
    table = pa.Table.from_batches(batches)
    yield table, f"{table.num_rows} sampled rows of split {reader.split!r}"
    for first, batch in reader.read(groups.pieces([(0, groups.total_rows)]), names):
        yield pa.Table.from_batches([batch]), place_of(first, batch.num_rows, split=reader.split)


def _clusters(groups: Groups) -> list[tuple[int, int]]:
    """Short runs of rows in groups from all along the split: in fewer of them where groups are large."""
    stored = int(groups.stored_bytes.sum())
    room = max(stored * _STORED_SHARE, _STORED_BYTES)
    count = int(np.clip(room * len(groups) // max(stored, 1), 1, min(_CLUSTERS, len(groups))))
    chosen = np.linspace(0, len(groups), count + 1).astype(int)[:-1]
    found = []
    for index in chosen.tolist():
        start, stop = int(groups.ends[index] - groups.num_rows[index]), int(groups.ends[index])
        edges = np.linspace(start, stop, -(-_CLUSTERS // count) + 1).astype(int)
        ends = np.minimum(edges[:-1] + _CLUSTER_ROWS, edges[1:])
        found += [(int(low), int(high)) for low, high in zip(edges[:-1], ends, strict=True) if low < high]
    return found


class _Examined(NamedTuple):
    """The columns after all functions, those of the source that are still what they were, and the rows left."""

    schema: pa.Schema
    known: Mapping[str, Column]
    rows: int


def _examine(
    functions: Sequence[UserFunction], table: pa.Table, known: Mapping[str, Column], *, place: str
) -> _Examined | None:
    """What the functions make of some rows; None if they leave none of them.

    Raises: SourceError as `call`, and if a function depends on the batch.
    """
    for function in functions:
        result = call(function, table, place=place)
        _require_same(function, table, result, place=place)
        if isinstance(result, pa.Table):
            known = {name: column for name, column in known.items() if _is_unchanged(name, table, result)}
            table = result
        else:
            table = table.filter(pa.array(result))
        if not table.num_rows:
            return None
    return _Examined(table.schema, known, table.num_rows)


def _require_same(function: UserFunction, table: pa.Table, whole: pa.Table | np.ndarray, *, place: str) -> None:
    """Raises: SourceError if the function gives something else for halves of the rows than for all of them at once."""
    half = table.num_rows // 2
    if not half:
        return
    parts = [
        call(function, part, place=f"the {which} half of {place}")
        for which, part in (("first", table.slice(0, half)), ("second", table.slice(half)))
    ]
    differ = _differing(whole, parts, place=place) if isinstance(whole, pa.Table) else []
    where = f", in {', '.join(map(repr, differ[:5]))}" if differ else ""
    if differ or (isinstance(whole, np.ndarray) and not np.array_equal(whole, np.concatenate(parts))):
        raise SourceError(
            f"{function.option} depends on the batch: it gives other values for {place} at once than for two halves of "
            f"them{where}",
            remedy="let what it says of a row depend on that row alone: no random numbers, no sums over rows, nothing "
            "remembered between calls",
        )


def _differing(whole: pa.Table, parts: Sequence[pa.Table], *, place: str) -> list[str]:
    """The columns of which the parts have not the values of `whole`."""
    joined = pa.Table.from_batches([conform(part, whole.schema, place=place) for part in parts])
    differ = [name for name in whole.column_names if not _are_equal(whole.column(name), joined.column(name))]
    return differ + sorted({name for part in parts for name in part.column_names}.difference(whole.column_names))


def _is_unchanged(name: str, before: pa.Table, after: pa.Table) -> bool:
    return name in after.column_names and bool(before.column(name).equals(after.column(name)))


def _are_equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """As values: NaN is equal to NaN, which it is not for Arrow, and it does not matter how values are encoded."""
    if pa.types.is_dictionary(one.type):
        one, other = one.cast(one.type.value_type), other.cast(one.type.value_type)
    if one.equals(other):
        return True
    has_floats = any(word in str(one.type) for word in ("float", "double"))
    return has_floats and repr(one.to_pylist()) == repr(other.to_pylist())


def _columns(schema: pa.Schema, known: Mapping[str, Column]) -> Columns:
    """What `datasets` says of the columns. Raises: SourceError for a type that it does not know."""
    return Columns((field.name, known[field.name] if field.name in known else _column(field)) for field in schema)


def _column(field: pa.Field) -> Column:
    """Without the field's metadata, which may be of what a map has replaced."""
    if not _has_name(field.type):
        raise SourceError(
            f"the user's functions give column {field.name!r} as {field.type}, which `datasets` has no name for",
            remedy="cast it to text, numbers or lists of them, or drop it with table.drop_columns",
        )
    return columns_of(pa.schema([pa.field(field.name, field.type)]))[field.name]


def _has_name(kind: pa.DataType) -> bool:
    """Whether `datasets` has a name for a type, and so for all that it holds."""
    if pa.types.is_dictionary(kind):
        return _has_name(kind.value_type)
    if pa.types.is_map(kind) or pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind):
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return isinstance(kind, pa.JsonType)
    return all(_has_name(kind.field(index).type) for index in range(kind.num_fields))
