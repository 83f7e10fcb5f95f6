"""Format the benchmark's results: medians and Markdown tables."""

import statistics
from collections.abc import Iterable, Sequence


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """Return the median, with minimum and maximum if there are several values: '12.1 (11.8 to 13.0)'."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(median(values))} ({number(min(values))} to {number(max(values))})"


def number(value: float) -> str:
    """Format a number with three significant digits and thousands separators; counts stay exact."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns, readable as plain text."""
    cells = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
