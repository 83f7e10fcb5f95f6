"""White space as Python's `str.strip` has it, in UTF-8: kernels that step over it."""

from __future__ import annotations

import numpy as np

from tfrecord_io._kernels import jit

__all__ = ["SPACES", "after_spaces", "before_spaces"]

# Whether each character up to the last white space of Unicode is one.
SPACES = np.array([chr(point).isspace() for point in range(0x3001)])


@jit
def after_spaces(data, at, end, spaces):  # type: ignore[no-untyped-def]
    """The place of the first character of data[at:end] that is no white space, or `end`. `spaces` is `SPACES`."""
    while at < end:
        size = _size(data[at])
        if not _is_space(data, at, size, spaces):
            return at
        at += size
    return at


@jit
def before_spaces(data, at, end, spaces):  # type: ignore[no-untyped-def]
    """The place behind the last character of data[at:end] that is no white space, or `at`."""
    while end > at:
        begin = end - 1
        while data[begin] & 0xC0 == 0x80:
            begin -= 1
        if not _is_space(data, begin, end - begin, spaces):
            return end
        end = begin
    return end


@jit
def _size(lead):  # type: ignore[no-untyped-def]
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


@jit
def _is_space(data, at, size, spaces):  # type: ignore[no-untyped-def]
    if size == 1:
        return spaces[data[at]]
    if size == 2:
        return spaces[np.int64(data[at] & 31) << 6 | np.int64(data[at + 1] & 63)]
    if size == 4:
        return False
    point = np.int64(data[at] & 15) << 12 | np.int64(data[at + 1] & 63) << 6 | np.int64(data[at + 2] & 63)
    return point < len(spaces) and spaces[point]
