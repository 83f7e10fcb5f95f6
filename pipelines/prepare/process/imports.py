"""Imports of large libraries: one thread at a time, and pandas only where it is used.

`with imports.one_at_a_time: import …`: two threads that import libraries with parts in common can each wait for the
other's import lock. Python resolves that deadlock by handing one thread a half-initialized module (`module 'requests'
has no attribute 'exceptions'`). Taking turns costs nothing, since an import holds the interpreter anyway.
"""

from __future__ import annotations

import sys
import threading

import pyarrow as pa

__all__ = ["keep_pandas_out", "one_at_a_time"]

one_at_a_time = threading.RLock()


class _NoPandas:
    """Finder that finds no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def keep_pandas_out() -> None:
    """Let pyarrow look for pandas in vain. It looks when it first makes arrays, and imports it: 0.15 s of CPU, 35 MB.

    Others can import pandas afterwards, but pyarrow then reads its objects as plain sequences.
    """
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
        pa.array(pa.array([0]).to_numpy())
    finally:
        sys.meta_path.remove(_NoPandas)
