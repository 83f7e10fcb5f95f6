"""Cores and memory that this process may use."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

# On Linux, the file that names this process's cgroup (version 2), and the folder of all limits.
_OWN = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def cores() -> int:
    """Return the number of cores that this process may use, by CPU affinity and cgroup quotas."""
    affinity = getattr(os, "sched_getaffinity", None)
    quotas = (max(1, math.ceil(quota / period)) for quota, period in _limits("cpu.max"))
    return min([len(affinity(0)) if affinity else os.cpu_count() or 1, *quotas])


def memory_bytes() -> int:
    """Return the bytes of memory that this process may use: the machine's, or a lower cgroup limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for (limit,) in _limits("memory.max"))])


def _limits(file: str) -> Iterator[list[int]]:
    with contextlib.suppress(OSError):
        for line in _OWN.read_text().splitlines():
            if line.startswith("0::/") and ".." not in line:
                # Limits of a parent apply to its children.
                own = _CGROUPS / line.removeprefix("0::/")
                for folder in own, *own.parents[: len(own.parents) - len(_CGROUPS.parents)]:
                    with contextlib.suppress(OSError, ValueError):  # no such file; "max" means no limit
                        yield [int(word) for word in (folder / file).read_text().split()]
