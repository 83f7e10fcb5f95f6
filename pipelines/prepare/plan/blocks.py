"""The blocks of a split, with their predicted bytes of output.

    the sample read all rows     blocks of neighbouring rows, predicted from the length of each
    it did not                   parts of row groups, predicted from the bytes of the group

No row is read for this. Ten million groups take some seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from pipelines.prepare.plan.planning import ROOM, Blocks, ShardSpec, cut_rows
from pipelines.prepare.plan.sampling import Sample
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.parquet.groups import Cover, cover
from pipelines.prepare.sources.rows.reading import SplitSource

__all__ = ["forecast", "nulls_by_reason"]


def forecast(spec: ShardSpec, split: SplitSource, sample: Sample, *, block_rows: int) -> Blocks:
    """Cut the split into blocks of about `block_rows` rows or fewer."""
    read = sample.read
    if read.whole:
        predicted = np.where(read.usable, sample.sizes(read.text_bytes, np.arange(len(read.numbers))), 0.0)
        blocks = cut_rows(read.numbers, predicted, rows=block_rows, row_bytes=sample.row_bytes)
        return dataclasses.replace(blocks, text_bytes=int(read.text_bytes.sum()))
    found = cover(split.groups.ends, split.ranges)
    text_bytes, usable = _texts_of_groups(spec, split, sample)
    numbers = np.searchsorted(split.groups.ends, read.numbers[read.usable], "right")
    sizes = sample.sizes.of_groups(read.text_bytes[read.usable], numbers)
    rows = found.counts * usable[found.groups]
    predicted = rows * sizes(text_bytes[found.groups], found.ends - found.counts / 2)
    blocks = _cut(found, predicted, rows=block_rows, row_bytes=sample.row_bytes)
    return dataclasses.replace(blocks, text_bytes=round(float((rows * text_bytes[found.groups]).sum())))


def _texts_of_groups(spec: ShardSpec, split: SplitSource, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean bytes of text of each group's usable rows, and the share of its rows that is usable: float64 [N].

    The source counts the bytes of a group: of other columns too, and of a dictionary only its entries. The rows that
    were read give the bytes of text for each of these bytes, and the share of rows without a null that is usable.
    """
    groups, read = split.groups, sample.read
    rows = np.maximum(groups.num_rows, 1)
    # One row may have several nulls.
    nulls = [counts for _, counts in nulls_by_reason(split, spec.columns)]
    filled = np.maximum(rows - np.max([np.zeros_like(rows), *nulls], axis=0), 0)
    group_bytes = groups.num_bytes / np.maximum(filled, 1)
    owner = np.searchsorted(groups.ends, read.numbers, "right")
    usable = min(1.0, float(read.usable.sum() / max((filled / rows)[owner].sum(), 1.0)))
    ratio = read.text_bytes[read.usable].sum() / max(group_bytes[owner[read.usable]].sum(), 1.0)
    return group_bytes * ratio, usable * filled / rows


def nulls_by_reason(split: SplitSource, columns: ColumnPlan) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the nulls of each group, int64 [N], of each column that must not be null, with the reason for which they
    reject a row. None if user functions may fill them in or drop the rows.
    """
    required = {feature.name: "column_null" for feature in columns.kept}
    if columns.label:
        required[columns.label.column] = "label_null"
    required |= {name: f"{purpose}_null" for purpose, name in columns.nested.items() if name not in columns.optional}
    required |= dict.fromkeys(columns.texts, "text_null")
    for name, reason in required.items():
        if name in split.groups.nulls and split.reader.is_plain:
            yield reason, split.groups.nulls[name]


def _cut(found: Cover, predicted: np.ndarray, *, rows: int, row_bytes: float) -> Blocks:
    """Return parts of groups as blocks: a group with the rows or bytes of n blocks is cut into n equal ones.

    A group slightly larger than a block stays whole, since a cut group is decoded twice.
    """
    by_bytes = np.ceil(predicted / max(ROOM * rows * row_bytes, 1.0)).astype(np.int64)
    times = np.minimum(np.maximum((2 * found.counts + rows) // (2 * rows), by_bytes), found.counts)
    if (times <= 1).all():
        return Blocks(found.starts, found.starts + found.counts, predicted)
    owner = np.repeat(np.arange(len(found)), times)
    turn = np.arange(len(owner)) - (np.cumsum(times) - times)[owner]
    starts, counts, times = found.starts[owner], found.counts[owner], times[owner]
    low, high = counts * turn // times, counts * (turn + 1) // times
    return Blocks(starts + low, starts + high, predicted[owner] * (high - low) / counts)
