"""Rows that cannot be used because a column is null, counted from each row group's nulls without reading rows."""

from __future__ import annotations

import numpy as np

from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.rows.reading import SplitSource

__all__ = ["by_column", "count_says", "reasons_of", "rows_with"]


def reasons_of(columns: ColumnPlan) -> dict[str, str]:
    """Return the columns that must not be null, each with its reason for rejecting a row (see `columns.extraction`)."""
    nested = {name: f"{purpose}_null" for purpose, name in columns.nested.items() if name not in columns.optional}
    label = {columns.label.column: "label_null"} if columns.label else {}
    return {
        **{feature.name: "column_null" for feature in columns.kept},
        **label,
        **nested,
        **dict.fromkeys(columns.texts, "text_null"),
    }


def count_says(split: SplitSource) -> bool:
    """Whether nulls in the source tell which rows are rejected: user functions may fill them in or drop the rows."""
    return split.reader.is_plain


def by_column(groups: Groups, columns: ColumnPlan) -> dict[str, np.ndarray]:
    """Return the nulls of each group, int64 [N], for each column that must not be null and whose nulls are known."""
    return {name: groups.nulls[name] for name in reasons_of(columns) if name in groups.nulls}


def rows_with(groups: Groups, columns: ColumnPlan) -> np.ndarray:
    """Return a lower bound of each group's rows with a forbidden null, int64 [N]: one row may have several."""
    rows = np.zeros(len(groups), np.int64)
    for counts in by_column(groups, columns).values():
        rows = np.maximum(rows, counts)
    return rows
