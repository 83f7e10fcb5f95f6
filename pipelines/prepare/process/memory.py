"""Control how much freed memory the allocators keep."""

import contextlib
import ctypes

import pyarrow as pa

from pipelines.prepare.process.cores import cores

_M_ARENA_MAX = -8  # of mallopt(3), see malloc.h


def keep_less() -> None:
    """Make allocators keep less freed memory, in processes that only run a build."""
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own allocator would keep about 20 MB
    # One malloc arena per core, instead of eight, saves 75 MB on two cores.
    with contextlib.suppress(OSError, AttributeError, TypeError):  # only glibc has M_ARENA_MAX
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, cores())


def release_freed() -> None:
    """Return freed memory to the operating system."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
