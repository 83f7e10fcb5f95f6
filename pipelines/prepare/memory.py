"""Memory that was freed goes back to the system. Allocators keep it for later, each thread its own: after a shard has
been gathered by several threads, that is more than the shard's tokens weigh.
"""

from __future__ import annotations

import contextlib
import ctypes

import pyarrow as pa

__all__ = ["give_back"]


def give_back() -> None:
    """Takes some milliseconds, and nothing away that is in use."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
