"""A stopwatch for the stages of a task."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["Stopwatch"]

Item = TypeVar("Item")


class Stopwatch:
    """Seconds spent in each stage of a task, in the order in which the stages first began.

    Threads may share a stopwatch; their seconds are added up.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside the context to stage `name`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            passed = time.perf_counter() - began
            with self._lock:
                self.seconds[name] = self.seconds.get(name, 0.0) + passed

    def waiting(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """Yield `items`, adding the time spent waiting for each to stage `name`."""
        iterator = iter(items)
        while True:
            with self.stage(name):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item
