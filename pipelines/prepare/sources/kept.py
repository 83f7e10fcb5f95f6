"""What is read once of a file and used often, such as its footer, kept for as long as there is room."""

from __future__ import annotations

import collections
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from pipelines.prepare.sources.access import Located

__all__ = ["Kept"]

Value = TypeVar("Value")

_Key = tuple[str, int, str, int | None]


class Kept(Generic[Value]):
    """The values used last, in as many bytes, by what their file is known by. All threads of a process share them, and
    wait for the one that reads.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._num_bytes = 0
        self._sizes: collections.OrderedDict[_Key, int] = collections.OrderedDict()
        self._values: dict[_Key, concurrent.futures.Future[Value]] = {}

    def get(self, file: Located, read: Callable[[], tuple[Value, int]]) -> Value:
        """The file's value; if it is not kept, the one that `read` gives with its bytes. Raises: whatever it raises."""
        key = (file.path, file.size, file.version, file.stamp)
        with self._lock:
            coming = self._values.get(key)
            if coming is None:
                reading = self._values[key] = concurrent.futures.Future()
            elif key in self._sizes:
                self._sizes.move_to_end(key)
        if coming is not None:
            return coming.result()
        try:
            value, num_bytes = read()
        except BaseException as error:
            with self._lock:
                del self._values[key]
            reading.set_exception(error)
            raise
        reading.set_result(value)
        self._keep(key, num_bytes)
        return value

    def _keep(self, key: _Key, num_bytes: int) -> None:
        with self._lock:
            self._sizes[key] = num_bytes
            self._num_bytes += num_bytes
            while self._num_bytes > self._most_bytes and len(self._sizes) > 1:
                oldest, freed = self._sizes.popitem(last=False)
                self._num_bytes -= freed
                del self._values[oldest]
