"""Counters of a build's progress, and notes for whoever watches it.

Workers that are threads of the launcher add to the counters of its process, which the launcher reads. Workers on other
machines count in processes of their own; if a service reports their progress, the launcher adds it (see `dataflow`).
Notes are lines to print once, such as the page on which a service shows the job.
"""

from __future__ import annotations

import dataclasses
import threading

__all__ = ["Counts", "add", "drain_notes", "post_note", "read", "reset"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """Rows and tokens processed so far, bytes written, shards finished."""

    rows: int = 0
    tokens: int = 0
    num_bytes: int = 0
    shards: int = 0


_lock = threading.Lock()
_counts = Counts()
_notes: list[str] = []


def add(*, rows: int = 0, tokens: int = 0, num_bytes: int = 0, shards: int = 0) -> None:
    """Add to the process's counters."""
    global _counts
    with _lock:
        _counts = Counts(
            rows=_counts.rows + rows,
            tokens=_counts.tokens + tokens,
            num_bytes=_counts.num_bytes + num_bytes,
            shards=_counts.shards + shards,
        )


def read() -> Counts:
    """Return the process's counters."""
    with _lock:
        return _counts


def reset() -> None:
    """Set the counters to zero and drop all notes, before a job begins."""
    global _counts
    with _lock:
        _counts = Counts()
        _notes.clear()


def post_note(note: str) -> None:
    """Add a line for whoever watches the build."""
    with _lock:
        _notes.append(note)


def drain_notes() -> list[str]:
    """Return the notes posted since the last call."""
    with _lock:
        notes = list(_notes)
        _notes.clear()
        return notes
