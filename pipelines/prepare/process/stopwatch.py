"""How long the stages of a task take, for whoever looks for the slow one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["Stopwatch"]

Item = TypeVar("Item")


class Stopwatch:
    """Seconds in each stage of one task, in the order in which they were first begun. Those of several threads add
    up.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time inside for a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            passed = time.perf_counter() - began
            with self._lock:
                self.seconds[name] = self.seconds.get(name, 0.0) + passed

    def waiting(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """`items`, with the time that each takes to come counted for a stage."""
        iterator = iter(items)
        while True:
            with self.stage(name):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item
