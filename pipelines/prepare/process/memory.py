"""Release of memory that allocators keep after it is freed."""

import contextlib
import ctypes

import pyarrow as pa


def release_freed() -> None:
    """Return freed memory to the system; takes a few milliseconds."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
