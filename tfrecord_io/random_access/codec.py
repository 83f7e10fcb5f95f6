"""What takes rows out of groups of frames: compiled loops where Numba is installed, else NumPy alone."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.random_access import plain
from tfrecord_io.random_access.groups import Groups
from tfrecord_io.random_access.storage import ReadSpans
from tfrecord_io.schema import Schema

__all__ = ["Engine", "RowReader", "load"]

Engine = Literal["auto", "numba", "numpy"]


class RowReader(Protocol):
    """What `plain.RowReader` and `compiled.RowReader` have in common."""

    @property
    def read_spans(self) -> ReadSpans | None:
        """A compiled loop that reads spans of local files."""
        ...

    def read(self, groups: Groups, *, check: bool) -> tuple[int, dict[str, np.ndarray]]: ...


def load(engine: Engine, schema: Schema) -> RowReader:
    """What reads rows of this schema. Raises: ReaderError if Numba is asked for, and not there."""
    if engine == "numpy":
        return plain.RowReader(schema)
    try:
        from tfrecord_io.random_access import compiled
    except ImportError as error:
        if engine == "auto":
            return plain.RowReader(schema)
        raise ReaderError(
            f"engine is 'numba', but it cannot be imported ({error})", remedy="pip install numba, or give engine='auto'"
        ) from error
    return compiled.RowReader(schema)
