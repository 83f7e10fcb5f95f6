"""Which functions take records apart: those with Numba where it is installed, else those with NumPy alone."""

from __future__ import annotations

import functools
from typing import Literal, Protocol, cast

import numpy as np

from tfrecord_io.random_access.groups import Groups
from tfrecord_io.schema import Schema

__all__ = ["Codec", "Engine", "load"]

Engine = Literal["auto", "numba", "numpy"]


class Codec(Protocol):
    """See `plain`."""

    def find(self, groups: Groups, *, check: bool) -> tuple[int, np.ndarray, np.ndarray]: ...

    def decode(
        self,
        data: np.ndarray,
        begins_N: np.ndarray,
        sizes_N: np.ndarray,
        schema: Schema,
        *,
        place: str,
        first_record: int = 0,
    ) -> dict[str, np.ndarray]: ...


@functools.cache
def load(engine: Engine) -> Codec:
    """The functions. Raises: ImportError if Numba is asked for, and not there."""
    if engine != "numpy":
        try:
            from tfrecord_io.random_access import compiled
        except ImportError:
            if engine == "numba":
                raise
        else:
            return cast(Codec, compiled)
    from tfrecord_io.random_access import plain

    return cast(Codec, plain)
