"""How many cores this process may use."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cores"]

# Linux: the cgroup (version 2) of this process, and where quotas of cgroups stand.
_OWN = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def cores() -> int:
    """Return how many cores this process may use: its affinity and its cgroups' quotas count, where there are any."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min([len(affinity(0)) if affinity else os.cpu_count() or 1, *_quotas()])


def _quotas() -> Iterator[int]:
    """Yield the cores that the cgroup of this process, and each around it, allows; a part of a core counts as one."""
    with contextlib.suppress(OSError):
        for line in _OWN.read_text().splitlines():
            if line.startswith("0::/") and ".." not in line:
                own = _CGROUPS / line.removeprefix("0::/")
                for folder in own, *own.parents[: len(own.parents) - len(_CGROUPS.parents)]:
                    yield from _quota(folder)


def _quota(folder: Path) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):  # no such file; "max" is no limit
        quota, period = map(int, (folder / "cpu.max").read_text().split())
        yield max(1, math.ceil(quota / period))
