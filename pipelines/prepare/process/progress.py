"""Progress counters of a build, and notes to print once, such as a job's address.

Counts from workers on other machines are lost, unless their service reports them (see `runners.dataflow`).
"""

import contextlib
import operator
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Counts(NamedTuple):
    rows: int = 0
    tokens: int = 0
    num_bytes: int = 0
    shards: int = 0


class Progress:
    """Counters and notes of one build; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()
        self._notes: list[str] = []

    def add(self, **counts: int) -> None:
        """Add to the counters; keyword arguments are fields of `Counts`."""
        with self._lock:
            self._counts = Counts(*map(operator.add, self._counts, Counts(**counts)))

    def read(self) -> Counts:
        with self._lock:
            return self._counts

    def drain(self) -> Counts:
        """Return the counters, and reset them to 0."""
        with self._lock:
            counts, self._counts = self._counts, Counts()
            return counts

    def post_note(self, note: str) -> None:
        with self._lock:
            self._notes.append(note)

    def drain_notes(self) -> list[str]:
        with self._lock:
            notes, self._notes = self._notes, []
            return notes


# Called with a name of the activity, its total of rows, and the counters; the context is open while tasks run.
Watch = Callable[[str, int, Progress], contextlib.AbstractContextManager[None]]


def unwatched(doing: str, num_rows: int, progress: Progress) -> contextlib.AbstractContextManager[None]:
    """Return a context that shows no progress. Implements `Watch`."""
    return contextlib.nullcontext()


@contextlib.contextmanager
def polled(call: Callable[[], None], *, seconds: float) -> Iterator[None]:
    """During the context, call a function every `seconds` in a thread, and once more at the end."""
    done = threading.Event()

    def poll() -> None:
        while not done.wait(seconds):
            call()

    thread = threading.Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        call()
