"""What is done so far, counted where the work is done, for whoever wants to watch.

Workers that are threads of the launcher add to the process's own counters, which the launcher reads. Workers
elsewhere count into their process, where nobody looks; where a service tells of them, the launcher adds what it hears
(see `dataflow`). What is to be said by the way, such as where the service shows the job, is left here too.
"""

from __future__ import annotations

import dataclasses
import threading

__all__ = ["Counts", "add", "read", "reset", "tell", "told"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """Rows and tokens made so far, bytes written, shards finished."""

    rows: int = 0
    tokens: int = 0
    num_bytes: int = 0
    shards: int = 0


_lock = threading.Lock()
_counts = Counts()
_notes: list[str] = []


def add(*, rows: int = 0, tokens: int = 0, num_bytes: int = 0, shards: int = 0) -> None:
    """Adds to the process's counters."""
    global _counts
    with _lock:
        _counts = Counts(
            rows=_counts.rows + rows,
            tokens=_counts.tokens + tokens,
            num_bytes=_counts.num_bytes + num_bytes,
            shards=_counts.shards + shards,
        )


def read() -> Counts:
    """The process's counters."""
    with _lock:
        return _counts


def reset() -> None:
    """Back to zero, before a job begins."""
    global _counts
    with _lock:
        _counts = Counts()
        _notes.clear()


def tell(note: str) -> None:
    """Leaves a line for whoever watches."""
    with _lock:
        _notes.append(note)


def told() -> list[str]:
    """The lines that were left since the last call."""
    with _lock:
        notes = list(_notes)
        _notes.clear()
        return notes
