"""What readers say of a file, in one line."""

from __future__ import annotations

from tfrecord_io.shown import visible_line

__all__ = ["first_line"]


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind if it has none."""
    lines = str(error).strip().splitlines()
    return visible_line(lines[0]) if lines else type(error).__name__
