"""Trying user functions on sampled rows: the columns that they return, and whether results depend on the batch.

    a few hundred rows from all over each split
        ──► each function on all rows at once     columns and their types; columns that are still class labels
        ──► each function on two halves           the results must be the same

A column whose sampled values no map has changed keeps its class names. A changed column has its Arrow type; to name
classes, return strings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.resolve.features import Column, Columns, columns_of
from pipelines.prepare.sources.rows.function_calls import call
from pipelines.prepare.sources.rows.reading import RowChanges, RowReader, conform, describe_rows
from pipelines.prepare.sources.rows.user_functions import UserFunction
from tfrecord_io.errors import PrepError, SourceError

__all__ = ["ChangedSplits", "apply_functions", "examine_functions"]

_CLUSTERS = 16
_CLUSTER_ROWS = 32
_MOST_BYTES = 16 << 20
# Stored bytes to read for a sample: this share of the split or this many bytes, whichever is more, but one whole group.
_STORED_SHARE = 1 / 200
_STORED_BYTES = 2 << 20

_log = logging.getLogger(__name__)


class ChangedSplits(NamedTuple):
    """By split, the readers that apply the functions, and the columns of the changed rows."""

    readers: Mapping[str, RowReader]
    columns: Mapping[str, Columns]


def apply_functions(
    readers: Mapping[str, RowReader],
    groups: Mapping[str, Groups],
    columns: Mapping[str, Columns],
    functions: Sequence[UserFunction],
    *,
    requested: Collection[str],
) -> ChangedSplits:
    """Return readers that apply the functions to the source's splits.

    A split that is not `requested` is left out with a warning if the functions fail on it.

    Raises: SourceError if a function fails on rows of the sample, or depends on the batch.
    """
    if not functions:
        return ChangedSplits(readers, columns)
    changed: dict[str, tuple[RowReader, Columns]] = {}
    for name, reader in readers.items():
        with contextlib.nullcontext() if name in requested else _warning(name):
            changed[name] = _apply_to_split(reader, groups[name], columns[name], tuple(functions))
    return ChangedSplits(
        {name: reader for name, (reader, _) in changed.items()}, {name: each for name, (_, each) in changed.items()}
    )


def examine_functions(
    functions: tuple[UserFunction, ...],
    stored: Columns,
    samples: Iterable[tuple[pa.Table, str]],
    *,
    split: str,
    rows: int,
) -> tuple[RowChanges, Columns]:
    """Try the functions on samples, each with its name, until they leave a row; return changes and columns.

    `stored` are the columns before the functions, `rows` the number of rows of the split.

    Raises: SourceError as `apply_functions`, and if the functions leave no row of any sample.
    """
    seen = 0
    for table, where in samples:
        seen += table.num_rows
        examined = _examine(functions, table, stored, where=where)
        if examined is not None:
            columns = _columns(examined.schema, examined.unchanged)
            changes = RowChanges(functions=functions, schema=columns.arrow_schema, share=examined.rows / seen)
            return changes, columns
    filters = " and ".join(function.option for function in functions if function.kind == "filter")
    raise SourceError(
        f"split {split!r}: {filters} leave none of its {rows} rows",
        remedy="correct the filter, or choose other splits with --split",
    )


@contextlib.contextmanager
def _warning(split: str) -> Iterator[None]:
    try:
        yield
    except PrepError as error:
        _log.warning("split %r is not asked for, so its labels are ignored: %s", split, error.cause)


def _apply_to_split(
    reader: RowReader, groups: Groups, stored: Columns, functions: tuple[UserFunction, ...]
) -> tuple[RowReader, Columns]:
    if not groups.total_rows:
        return reader, stored
    changes, columns = examine_functions(
        functions, stored, _samples(reader, groups), split=reader.split, rows=groups.total_rows
    )
    return dataclasses.replace(reader, changes=changes), columns


def _samples(reader: RowReader, groups: Groups) -> Iterator[tuple[pa.Table, str]]:
    """Yield a sample of the split, then all rows, batch by batch, in case the filters leave none of the sample."""
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
        yield pa.Table.from_batches([batch]), describe_rows(first, batch.num_rows, split=reader.split)


def _clusters(groups: Groups) -> list[tuple[int, int]]:
    """Choose short row ranges in groups from all over the split; in fewer groups if these are large."""
    stored = int(groups.stored_bytes.sum())
    room = max(stored * _STORED_SHARE, _STORED_BYTES)
    count = int(np.clip(room * len(groups) // max(stored, 1), 1, min(_CLUSTERS, len(groups))))
    chosen = np.linspace(0, len(groups), count + 1).astype(int)[:-1]
    ranges = []
    for index in chosen.tolist():
        start, stop = int(groups.ends[index] - groups.num_rows[index]), int(groups.ends[index])
        edges = np.linspace(start, stop, -(-_CLUSTERS // count) + 1).astype(int)
        ends = np.minimum(edges[:-1] + _CLUSTER_ROWS, edges[1:])
        ranges += [(int(low), int(high)) for low, high in zip(edges[:-1], ends, strict=True) if low < high]
    return ranges


class _Examined(NamedTuple):
    """The schema after all functions, the stored columns that they left unchanged, and the number of rows left."""

    schema: pa.Schema
    unchanged: Mapping[str, Column]
    rows: int


def _examine(
    functions: Sequence[UserFunction], table: pa.Table, unchanged: Mapping[str, Column], *, where: str
) -> _Examined | None:
    """Apply the functions to some rows; None if they leave no row.

    Raises: SourceError as `call`, and if a function depends on the batch.
    """
    for function in functions:
        result = call(function, table, where=where)
        _require_same(function, table, result, where=where)
        if isinstance(result, pa.Table):
            unchanged = {name: column for name, column in unchanged.items() if _is_unchanged(name, table, result)}
            table = result
        else:
            table = table.filter(pa.array(result))
        if not table.num_rows:
            return None
    return _Examined(table.schema, unchanged, table.num_rows)


def _require_same(function: UserFunction, table: pa.Table, whole: pa.Table | np.ndarray, *, where: str) -> None:
    """Raise SourceError if the function returns other values for two halves of the rows than for all rows at once."""
    half = table.num_rows // 2
    if not half:
        return
    parts = [
        call(function, part, where=f"the {which} half of {where}")
        for which, part in (("first", table.slice(0, half)), ("second", table.slice(half)))
    ]
    differ = _differing(whole, parts, where=where) if isinstance(whole, pa.Table) else []
    columns = f", in {', '.join(map(repr, differ[:5]))}" if differ else ""
    if differ or (isinstance(whole, np.ndarray) and not np.array_equal(whole, np.concatenate(parts))):
        raise SourceError(
            f"{function.option} depends on the batch: it returns other values for {where} at once than for two halves "
            f"of them{columns}",
            remedy="let the result for a row depend on that row alone: no random numbers, no sums over rows, no state "
            "kept between calls",
        )


def _differing(whole: pa.Table, parts: Sequence[pa.Table], *, where: str) -> list[str]:
    """Return the columns whose values differ between `whole` and its parts."""
    joined = pa.Table.from_batches([conform(part, whole.schema, where=where) for part in parts])
    differ = [name for name in whole.column_names if not _are_equal(whole.column(name), joined.column(name))]
    return differ + sorted({name for part in parts for name in part.column_names}.difference(whole.column_names))


def _is_unchanged(name: str, before: pa.Table, after: pa.Table) -> bool:
    return name in after.column_names and bool(before.column(name).equals(after.column(name)))


def _are_equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Compare values: NaN equals NaN, unlike in Arrow, and a dictionary equals its values."""
    if pa.types.is_dictionary(one.type):
        one, other = one.cast(one.type.value_type), other.cast(one.type.value_type)
    if one.equals(other):
        return True
    has_floats = any(word in str(one.type) for word in ("float", "double"))
    return has_floats and repr(one.to_pylist()) == repr(other.to_pylist())


def _columns(schema: pa.Schema, unchanged: Mapping[str, Column]) -> Columns:
    """Describe columns; a changed one without its metadata, which may belong to what a map has replaced."""
    plain = (pa.field(field.name, field.type) for field in schema)
    return Columns((each.name, unchanged.get(each.name) or columns_of(pa.schema([each]))[each.name]) for each in plain)
