"""Warnings before making a dataset whose labels are perhaps not what was meant, by the sampled rows."""

from __future__ import annotations

import collections
import logging
from collections.abc import Collection, Iterator

import numpy as np

from pipelines.prepare.plan.sampling import Sample
from pipelines.prepare.sources.columns.labels import LabelPlan

__all__ = ["warn"]

# Fewer rows do not tell whether there are too many classes.
_FEWEST_ROWS = 20
_LISTED = 3

_log = logging.getLogger(__name__)


def warn(label: LabelPlan | None, samples: Collection[Sample], *, rows: int) -> None:
    """Warn of each thing in a line. `rows` is the number of rows in all splits of the source."""
    if label is None or not samples:
        return
    values = np.concatenate([sample.encoded.arrays["label"] for sample in samples])
    for line in _of_values(label, values) if label.names is None else _of_names(label.names, rows):
        _log.warning("label column %r: %s", label.column, line)


def _of_names(names: Collection[str], rows: int) -> Iterator[str]:
    alike: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
    for name in names:
        alike["".join(name.split()).casefold()].append(repr(name))
    groups = [" and ".join(group) for group in alike.values() if len(group) > 1]
    if groups:
        more = f" and {len(groups) - _LISTED} more" if len(groups) > _LISTED else ""
        yield f"{', '.join(groups[:_LISTED])}{more} differ only by case or blanks; a --map can make them one class"
    if len(names) > max(rows / 2, _FEWEST_ROWS):
        yield f"{len(names):,} classes of {rows:,} rows, so that most have a single row; is it the right column?"


def _of_values(label: LabelPlan, values: np.ndarray) -> Iterator[str]:
    distinct = np.unique(values)
    if label.several or not len(values):
        return
    span = f"{len(distinct):,} values from {distinct[0]:.0f} to {distinct[-1]:.0f}"
    if len(distinct) > max(len(values) / 2, _FEWEST_ROWS):
        if label.kind == "int":
            yield f"{len(distinct):,} classes of {len(values):,} sampled rows; is it the right column?"
    elif label.kind == "float":
        if np.array_equal(distinct, np.floor(distinct)):
            yield f"floats, but whole numbers ({span}), to be learned as numbers; --label-classes makes each a class"
    elif distinct[0] == -1 and len(distinct) > 2:
        yield (
            f"{np.mean(values == -1):.1%} are -1, a label like any other (only a ClassLabel's is none); leave out such "
            "rows with --filter, or make each value a class with --label-classes"
        )
    elif distinct[0] != 0 or 2 * len(distinct) <= distinct[-1]:
        yield f"{span}, which are not 0 to {len(distinct) - 1}; --label-classes makes each a class"
