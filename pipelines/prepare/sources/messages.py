"""What is wrong with a file, as its readers say it and as we do."""

from __future__ import annotations

from collections.abc import Sequence

from tfrecord_io.shown import visible_line

__all__ = ["MisfitError", "first_line", "unknown_column"]


class MisfitError(Exception):
    """A row that does not have the types of the source: how many rows and bytes come before it, and what it has."""

    def __init__(self, what: str, *, rows: int, num_bytes: int = 0) -> None:
        super().__init__(what)
        self.what = what
        self.rows = rows
        self.num_bytes = num_bytes


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind if it has none."""
    lines = str(error).strip().splitlines()
    return visible_line(lines[0]) if lines else type(error).__name__


def unknown_column(found: Sequence[str], expected: Sequence[str]) -> str | None:
    """What to say of the first column that is not expected, if there is one."""
    unknown = next((name for name in found if name not in expected), None)
    return None if unknown is None else f"column {unknown!r}, expected only {', '.join(map(repr, expected))}"
