"""A lock for importing large libraries: `with imports.one_at_a_time: import …`.

Two threads that import libraries with parts in common can each wait for the other's import lock. Python resolves that
deadlock by handing one thread a half-initialized module (`module 'requests' has no attribute 'exceptions'`). Taking
turns costs nothing, since an import holds the interpreter anyway.
"""

from __future__ import annotations

import threading

__all__ = ["one_at_a_time"]

one_at_a_time = threading.RLock()
