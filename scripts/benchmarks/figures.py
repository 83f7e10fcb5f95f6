"""What the benchmark says in the end: medians and tables in Markdown."""

import statistics
from collections.abc import Iterable, Sequence


def median(values: Iterable[float]) -> float:
    """The middle one of the measured values."""
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """Median, and the smallest and largest where there is more than one: '12.1 (11.8 to 13.0)'."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(median(values))} ({number(min(values))} to {number(max(values))})"


def number(value: float) -> str:
    """Three significant digits, thousands with a comma; a count as it is."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, its columns aligned so that it reads as plain text too."""
    cells = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
