"""Waiting for the end of a Beam job, including ends that Beam does not notice.

what ends                            who notices
the job                              Beam
the launcher, by an interrupt        the main thread, which only waits; Beam runs on another thread
a worker that never starts           a time limit: Beam's job service would wait forever
the job service                      Beam: the connection breaks
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

from pipelines.prepare.beam.failures import AGAIN
from pipelines.prepare.process import stderr
from pipelines.prepare.process.threads import POLL_SECONDS, in_background
from tfrecord_io.errors import PrepError
from tfrecord_io.shown import visible, without_secrets

__all__ = ["held_back", "until_done"]

_LAST_MESSAGES_SECONDS = 2.0
_START_SECONDS = 600.0

_log = logging.getLogger(__name__)


def until_done(start: Callable[[], Any], *, has_started: Callable[[], bool] | None = None) -> None:
    """Start a Beam job (`start` returns Beam's result) and wait for its end.

    `has_started` says whether a worker has started.

    Raises: whatever the job raises; PrepError if it ends in another state than DONE, or no worker ever starts.
    """
    # On a daemon thread: on the main thread, Beam would turn an interrupt into an error of the current step, or go on
    # until every thread has made all of its shards.
    job = in_background(lambda: _check_state(start()))
    started = time.monotonic()
    # The system may deliver a signal to another thread, which does not wake this one, so it polls.
    while not job.done():
        futures.wait([job], timeout=POLL_SECONDS)
        if has_started and time.monotonic() - started > _START_SECONDS:
            _check_started(has_started)
            has_started = None
    job.result()


def _check_state(result: Any) -> None:
    """Wait for the end. Raises: PrepError unless the runner reports success."""
    state = result.wait_until_finish() or result.state
    if state != "DONE":
        raise PrepError(f"the job ended in the state {state}, expected DONE", remedy=AGAIN)


def _check_started(has_started: Callable[[], bool]) -> None:
    if not has_started():
        raise PrepError(
            f"no worker has started {_START_SECONDS:.0f} seconds after the job was submitted",
            remedy=f"look into the logs of the job service and its workers; when that is fixed, {AGAIN}",
        )


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
        with stderr.held_back(is_new) as said:
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
