"""Records out of groups of frames, by the compiled loops of the codec. `plain` does the same without Numba."""

from __future__ import annotations

import numpy as np

from tfrecord_io import _frame_kernels, examples
from tfrecord_io._kernels import frozen
from tfrecord_io.examples import Payloads
from tfrecord_io.random_access.groups import Groups
from tfrecord_io.schema import Schema

__all__ = ["decode", "find"]


def find(groups: Groups, *, check: bool) -> tuple[int, np.ndarray, np.ndarray]:
    """Where each wanted record's data begin, and their sizes: int64 [N] twice, up to the first that is damaged.

    Returns: how many are sound, begins, sizes.
    """
    begins_N, sizes_N = np.empty((2, len(groups)), np.int64)
    data = frozen(groups.data)
    sound = _frame_kernels.find_frames(data, groups.starts_N, groups.stops_N, groups.skips_N, check, begins_N, sizes_N)
    return sound, begins_N, sizes_N


def decode(
    data: np.ndarray, begins_N: np.ndarray, sizes_N: np.ndarray, schema: Schema, *, place: str, first_record: int = 0
) -> dict[str, np.ndarray]:
    """The Examples at these places of `data`: see `examples.decode`."""
    offsets = np.zeros(len(sizes_N) + 1, np.int64)
    np.cumsum(sizes_N, out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    _frame_kernels.gather(frozen(data), begins_N, offsets, out)
    return examples.decode(Payloads(out, offsets), schema, place=place, first_record=first_record)
