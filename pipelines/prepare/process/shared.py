"""Objects that all threads of a process share, even if each gets its own by pickling, as Beam's workers do."""

from __future__ import annotations

import threading
import uuid
import weakref
from typing import Any

_lock = threading.Lock()
# By id. An object goes with the last one that holds it.
_known: weakref.WeakValueDictionary[str, Shared] = weakref.WeakValueDictionary()


class Shared:
    """An object that pickling leaves as it is within a process; elsewhere one is made of the same arguments, once."""

    def __init__(self, *arguments: Any) -> None:
        self._key, self._arguments = uuid.uuid4().hex, arguments
        _known[self._key] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _found, (self._key, type(self), self._arguments)


def _found(key: str, kind: type[Shared], arguments: tuple[Any, ...]) -> Shared:
    with _lock:
        if (found := _known.get(key)) is None:
            found = _known[key] = kind(*arguments)
            found._key = key
        return found
