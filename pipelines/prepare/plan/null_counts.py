"""Rows that cannot be used because a column is null, told from how many nulls each group has of each column."""

from __future__ import annotations

import numpy as np

from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.formats.groups import Groups
from pipelines.prepare.sources.rows.reading import SplitSource

__all__ = ["by_column", "count_says", "reasons_of", "rows_with"]


def reasons_of(columns: ColumnPlan) -> dict[str, str]:
    """The columns that must not be null, each with the reason for which a row is rejected (see `columns`)."""
    nested = {name: f"{purpose}_null" for purpose, name in columns.nested.items() if purpose != "tools"}
    label = {columns.label.column: "label_null"} if columns.label else {}
    return {
        **{feature.name: "column_null" for feature in columns.kept},
        **label,
        **nested,
        **dict.fromkeys(columns.texts, "text_null"),
    }


def count_says(split: SplitSource) -> bool:
    """Whether nulls in the source say something about rows: a user's function may fill them in, or leave them out."""
    return split.reader.changes is None and split.reader.side is None


def by_column(groups: Groups, columns: ColumnPlan) -> dict[str, np.ndarray]:
    """How many values are null in each group, int64 [N], of the columns that must not be and where that is known."""
    return {name: groups.nulls[name] for name in reasons_of(columns) if name in groups.nulls}


def rows_with(groups: Groups, columns: ColumnPlan) -> np.ndarray:
    """Rows of each group with a null where none may be, int64 [N], at the least: several may be in the same row."""
    rows = np.zeros(len(groups), np.int64)
    for counts in by_column(groups, columns).values():
        rows = np.maximum(rows, counts)
    return rows
