"""Waiting for the end of a Beam job, and holding back what Beam prints to stderr meanwhile.

what ends                            who notices
the job                              Beam
the launcher, by an interrupt        the main thread, which only waits; Beam runs on another thread
the job service                      Beam: the connection breaks
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pipelines.prepare.beam.failures import AGAIN
from pipelines.prepare.process.threads import in_background, wait_for
from tfrecord_io.errors import PrepError
from tfrecord_io.shown import visible, without_secrets

__all__ = ["collected", "held_back", "until_done"]

_LAST_MESSAGES_SECONDS = 2.0

_log = logging.getLogger(__name__)
_lock = threading.Lock()


def until_done(start: Callable[[], Any]) -> None:
    """Start a Beam job (`start` returns Beam's result) and wait for its end.

    Raises: whatever the job raises; PrepError if it ends in another state than DONE.
    """
    # On a daemon thread: on the main thread, Beam would turn an interrupt into an error of the current step, or go on
    # until every thread has made all of its shards.
    wait_for(in_background(lambda: _check_state(start())))


def _check_state(result: Any) -> None:
    """Wait for the end. Raises: PrepError unless the runner reports success."""
    state = result.wait_until_finish() or result.state
    if state != "DONE":
        raise PrepError(f"the job ended in the state {state}, expected DONE", remedy=AGAIN)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold back what threads that start meanwhile print to stderr. After an error it is logged, as information.

    Beam prints the traceback of a failed worker to stderr whatever its log level is, and its threads print one when
    their connection breaks; a PrepError says the same in two lines.
    """
    before = {*threading.enumerate()}

    def is_new(thread: threading.Thread) -> bool:
        return thread not in before and thread.name != in_background.__name__

    try:
        with collected(is_new) as said:
            try:
                yield
            except Exception:
                # A thread that reads the job's messages ends with a traceback after a broken connection.
                _join([*filter(is_new, threading.enumerate())], seconds=_LAST_MESSAGES_SECONDS)
                raise
    except Exception:
        _log.info("printed while the job ran:\n%s", without_secrets(said.getvalue()))
        raise
    sys.stderr.write(visible(without_secrets(said.getvalue()), lines=True))


def _join(threads: Sequence[threading.Thread], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(timeout=max(0.0, deadline - time.monotonic()))


class _Stderr:
    """Replacement of sys.stderr that collects what the selected threads print."""

    def __init__(self, is_held: Callable[[threading.Thread], bool]) -> None:
        self.said = io.StringIO()
        self.is_held: Callable[[threading.Thread], bool] | None = is_held
        self.below = sys.stderr

    def __getattr__(self, name: str) -> Any:
        is_held = self.is_held
        return getattr(self.said if is_held and is_held(threading.current_thread()) else self.below, name)


@contextlib.contextmanager
def collected(is_held: Callable[[threading.Thread], bool]) -> Iterator[io.StringIO]:
    """Collect what the threads for which `is_held` print to stderr. Several jobs of a process may do so at a time."""
    with _lock:
        sys.stderr = mine = _Stderr(is_held)
    try:
        yield mine.said
    finally:
        mine.is_held = None  # whoever took it for stderr keeps it
        with _lock:
            while isinstance(sys.stderr, _Stderr) and sys.stderr.is_held is None:
                sys.stderr = sys.stderr.below
