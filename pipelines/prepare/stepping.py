"""The source as the steps make it, and the test that they may be taken batch by batch.

    a few hundred rows from all along each split
        ──► each step on all of them at once     columns and their types; what is still a class label
        ──► and on two halves                    must come to the same, or the step depends on the batch

A column whose values no map has changed here keeps the class names that the source has for it. Whatever a map gives is
what it is in Arrow: to name classes, give strings.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.prepare.opened import Column, Columns, Source, SplitSource
from pipelines.prepare.stepped_files import SteppedFiles, conform, place_of
from pipelines.prepare.steps import Step, call
from tfrecord_io.errors import PrepError, SourceError

__all__ = ["stepped"]

_CLUSTERS = 16
_CLUSTER_ROWS = 32
_MOST_BYTES = 16 << 20

_log = logging.getLogger(__name__)


def stepped(source: Source, steps: Sequence[Step]) -> Source:
    """The source with its rows taken through `steps`. A split that was not asked for, and that they cannot take, is
    left out of `all_splits` with a warning.

    Raises: SourceError if a step fails on rows of the sample, or depends on the batch.
    """
    if not steps:
        return source
    tried = {name: _plan_or_warn(name, source, tuple(steps)) for name in source.all_splits}
    planned = {name: plan for name, plan in tried.items() if plan is not None}

    def replaced(split: SplitSource) -> SplitSource:
        return dataclasses.replace(split, files=planned[split.name].files)

    return dataclasses.replace(
        source,
        splits={name: replaced(split) for name, split in source.splits.items()},
        all_splits={name: replaced(split) for name, split in source.all_splits.items() if name in planned},
        columns={name: plan.columns for name, plan in planned.items()},
    )


class _Planned(NamedTuple):
    files: SteppedFiles
    columns: Columns


def _plan_or_warn(name: str, source: Source, steps: tuple[Step, ...]) -> _Planned | None:
    try:
        return _plan(source.all_splits[name], source.columns[name], steps)
    except PrepError as error:
        if name in source.splits:
            raise
        _log.warning("split %r is not asked for, and its labels are not looked at: %s", name, error.cause)
    return None


def _plan(split: SplitSource, known: Columns, steps: tuple[Step, ...]) -> _Planned:
    columns = tuple(known)
    assert not isinstance(split.files, SteppedFiles), "steps are taken once"
    seen = 0
    for table, place in _samples(split, columns):
        seen += table.num_rows
        found = _examine(steps, table, known, place=place)
        if found is not None:
            named = _columns(found.schema, found.known)
            files = SteppedFiles(
                files=split.files,
                split=split.name,
                columns=columns,
                steps=steps,
                schema=named.arrow_schema,
                share=found.rows / seen,
            )
            return _Planned(files, named)
    raise SourceError(
        f"split {split.name!r}: {' and '.join(step.option for step in steps if step.kind == 'filter')} leave none of "
        f"its {split.num_rows} rows",
        remedy="look at the filter, or choose other splits with --split",
    )


def _samples(split: SplitSource, columns: Sequence[str]) -> Iterator[tuple[pa.Table, str]]:
    """Rows from all along the split; and if the filters leave none of them, all rows, batch by batch."""
    edges = np.linspace(0, split.num_rows, _CLUSTERS + 1).astype(int)
    ends = np.minimum(edges[:-1] + _CLUSTER_ROWS, edges[1:])
    clusters = [(int(start), int(stop)) for start, stop in zip(edges[:-1], ends, strict=True) if start < stop]
    batches, num_bytes = [], 0
    for _, batch in split.files.read(clusters, columns, in_parts=True):
        batches.append(batch)
        num_bytes += batch.nbytes
        if num_bytes > _MOST_BYTES:
            break
    table = pa.Table.from_batches(batches)
    yield table, f"{table.num_rows} sampled rows of split {split.name!r}"
    for first, batch in split.read(split.ranges, columns, in_parts=True):
        yield pa.Table.from_batches([batch]), place_of(first, batch.num_rows, split=split.name)


class _Found(NamedTuple):
    """The columns after all steps, those of the source that are still what they were, and the rows left."""

    schema: pa.Schema
    known: Mapping[str, Column]
    rows: int


def _examine(steps: Sequence[Step], table: pa.Table, known: Mapping[str, Column], *, place: str) -> _Found | None:
    """What the steps make of some rows; None if they leave none of them.

    Raises: SourceError as `call`, and if a step depends on the batch.
    """
    for step in steps:
        result = call(step, table, place=place)
        _require_same(step, table, result, place=place)
        if isinstance(result, pa.Table):
            known = {name: column for name, column in known.items() if _is_unchanged(name, table, result)}
            table = result
        else:
            table = table.filter(pa.array(result))
        if not table.num_rows:
            return None
    return _Found(table.schema, known, table.num_rows)


def _require_same(step: Step, table: pa.Table, whole: pa.Table | np.ndarray, *, place: str) -> None:
    """Raises: SourceError if the step gives something else for halves of the rows than for all of them at once."""
    half = table.num_rows // 2
    if not half:
        return
    parts = [
        call(step, part, place=f"the {which} half of {place}")
        for which, part in (("first", table.slice(0, half)), ("second", table.slice(half)))
    ]
    differ = _differing(whole, parts, place=place) if isinstance(whole, pa.Table) else []
    where = f", in {', '.join(map(repr, differ[:5]))}" if differ else ""
    if differ or (isinstance(whole, np.ndarray) and not np.array_equal(whole, np.concatenate(parts))):
        raise SourceError(
            f"{step.option} depends on the batch: it gives other values for {place} at once than for two halves of "
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
    import datasets  # takes most of a second, and only steps need it here

    from pipelines.prepare.loading import described

    try:
        features = datasets.Features.from_arrow_schema(pa.schema([field]))
        found = described(features)[field.name]
        pa.nulls(1, field.type).cast(found.kind)  # a dictionary becomes its values
    except (ValueError, TypeError, NotImplementedError) as error:  # what Arrow raises is among them
        raise SourceError(
            f"the steps give column {field.name!r} as {field.type}, which `datasets` has no name for",
            remedy="cast it to text, numbers or lists of them, or drop it with table.drop_columns",
        ) from error
    return found
