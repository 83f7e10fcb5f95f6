"""The source as the user's functions make it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.prepare.opened import Columns, Source, SplitSource
from pipelines.prepare.sources.function_check import changes_of
from pipelines.prepare.sources.row_changes import place_of
from pipelines.prepare.sources.user_functions import UserFunction
from pipelines.prepare.stepped_files import SteppedFiles
from tfrecord_io.errors import PrepError

__all__ = ["stepped"]

_CLUSTERS = 16
_CLUSTER_ROWS = 32
_MOST_BYTES = 16 << 20

_log = logging.getLogger(__name__)


def stepped(source: Source, functions: Sequence[UserFunction]) -> Source:
    """The source with its rows taken through the functions. A split that was not asked for, and that they cannot take,
    is left out of `all_splits` with a warning.

    Raises: SourceError if a function fails on rows of the sample, or depends on the batch.
    """
    if not functions:
        return source
    tried = {name: _plan_or_warn(name, source, tuple(functions)) for name in source.all_splits}
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


def _plan_or_warn(name: str, source: Source, functions: tuple[UserFunction, ...]) -> _Planned | None:
    try:
        return _plan(source.all_splits[name], source.columns[name], functions)
    except PrepError as error:
        if name in source.splits:
            raise
        _log.warning("split %r is not asked for, and its labels are not looked at: %s", name, error.cause)
    return None


def _plan(split: SplitSource, known: Columns, functions: tuple[UserFunction, ...]) -> _Planned:
    columns = tuple(known)
    assert not isinstance(split.files, SteppedFiles), "functions are called once"
    samples = _samples(split, columns)
    changes, named = changes_of(functions, known, samples, split=split.name, rows=split.num_rows)
    return _Planned(SteppedFiles(files=split.files, split=split.name, columns=columns, changes=changes), named)


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
