"""Collect what selected threads print to stderr, while all others go on printing."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["held_back"]

_lock = threading.Lock()


class _Stderr:
    """Replacement of sys.stderr that collects what the selected threads print."""

    def __init__(self, is_held: Callable[[threading.Thread], bool]) -> None:
        self.said = io.StringIO()
        self.is_held: Callable[[threading.Thread], bool] | None = is_held
        self.below = sys.stderr

    def __getattr__(self, name: str) -> Any:
        is_held = self.is_held
        return getattr(self.said if is_held and is_held(threading.current_thread()) else self.below, name)


@contextlib.contextmanager
def held_back(is_held: Callable[[threading.Thread], bool]) -> Iterator[io.StringIO]:
    """Take what threads print for which `is_held`. Several jobs of a process may do so at a time."""
    with _lock:
        sys.stderr = mine = _Stderr(is_held)
    try:
        yield mine.said
    finally:
        mine.is_held = None  # whoever took it for stderr keeps it
        with _lock:
            while isinstance(sys.stderr, _Stderr) and sys.stderr.is_held is None:
                sys.stderr = sys.stderr.below
