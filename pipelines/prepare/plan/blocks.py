"""The blocks of a split, with their predicted bytes of output.

    the sample read all rows     blocks of neighbouring rows, predicted from the length of each
    it did not                   parts of row groups, predicted from the bytes of the group, as if its rows were equal

No row is read for this. Ten million groups take some seconds.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pipelines.prepare.plan import group_curve, null_counts
from pipelines.prepare.plan.group_curve import GroupCurve, GroupRows
from pipelines.prepare.plan.planning import ROOM, Blocks, cut_rows
from pipelines.prepare.plan.sampling import Sample
from pipelines.prepare.plan.spec import ShardSpec
from pipelines.prepare.sources.parquet.groups import Cover, cover
from pipelines.prepare.sources.rows.reading import SplitSource

__all__ = ["Forecast", "forecast"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """A split's blocks and its bytes of text; these are exact if the sample read all rows."""

    blocks: Blocks
    text_bytes: int


def forecast(spec: ShardSpec, split: SplitSource, sample: Sample, *, block_rows: int) -> Forecast:
    """Cut the split into blocks of about `block_rows` rows or fewer."""
    curve, read = sample.curve, sample.read
    if read.whole:
        predicted = np.where(read.usable, curve(read.text_bytes, np.arange(len(read.numbers))), 0.0)
        blocks = cut_rows(read.numbers, predicted, rows=block_rows, row_bytes=curve.row_bytes)
        return Forecast(blocks=blocks, text_bytes=int(read.text_bytes.sum()))
    rows, along = _estimate_groups(spec, split, sample)
    found = cover(split.groups.ends, split.ranges)
    usable, row_bytes = found.counts * rows.share[found.groups], rows.row_bytes[found.groups]
    predicted = usable * along(row_bytes, found.ends - found.counts / 2)
    text_bytes = float((usable * along.text_bytes(row_bytes)).sum())
    blocks = _cut(found, predicted, rows=block_rows, row_bytes=curve.row_bytes)
    return Forecast(blocks=blocks, text_bytes=round(text_bytes))


def _estimate_groups(spec: ShardSpec, split: SplitSource, sample: Sample) -> tuple[GroupRows, GroupCurve]:
    """Return the rows of all groups, and a curve for their output, both estimated from the rows that were read."""
    read, says = sample.read, null_counts.count_says(split)
    null_rows = null_counts.rows_with(split.groups, spec.columns) if says else np.zeros(len(split.groups), np.int64)
    rows = GroupRows.of(split.groups, nulls=null_rows)
    groups = np.searchsorted(split.groups.ends, read.numbers, "right")
    share = min(1.0, float(read.usable.sum() / rows.share[groups].sum()))
    curve = group_curve.fit(
        sample.curve,
        text_bytes=read.text_bytes[read.usable],
        groups=groups[read.usable],
        row_bytes=rows.row_bytes,
        exact=read.in_whole_groups,
    )
    return rows.with_share(share), curve


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
