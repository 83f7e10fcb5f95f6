"""Large libraries are imported by one thread at a time: `with imports.one_at_a_time: import …`.

Two threads that import libraries which import parts of each other would each wait for the other's lock. Python resolves
that by giving one of them a module of which only a half is there (`module 'requests' has no attribute 'exceptions'`).
Importing holds the interpreter anyway, so that nothing is lost by waiting.
"""

from __future__ import annotations

import threading

__all__ = ["one_at_a_time"]

one_at_a_time = threading.RLock()
