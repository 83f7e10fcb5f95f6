"""Waiting for a Beam job, and noticing the ends that Beam waits beyond.

what ends                            who notices
the job                              Beam
the launcher, by an interrupt        the main thread, which only waits; Beam has a thread of its own
a worker that never begins           a time limit: Beam's job service waits forever for it
the job service                      Beam: the connection breaks
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

from pipelines.prepare.beam.failures import AGAIN
from pipelines.prepare.process import stderr
from pipelines.prepare.process.threads import POLL_SECONDS, in_background
from tfrecord_io.errors import PrepError
from tfrecord_io.shown import visible, without_secrets

__all__ = ["held_back", "until_done"]

_LAST_MESSAGES_SECONDS = 2.0
# Beam's name for the thread that reads a job's messages.
_MESSAGES_THREAD = "wait_until_finish_read"
# Beam's names for plain threads that read messages, or serve a worker in this process (environment type LOOPBACK).
_BEAMS_THREADS = (_MESSAGES_THREAD, "run_worker_", "read_grpc_", "forward_grpc_", "read_state", "read_log_")
_FIRST_SIGN_SECONDS = 600.0

_log = logging.getLogger(__name__)


def until_done(start: Callable[[], Any], *, has_begun: Callable[[], bool] | None = None) -> None:
    """Starts a job (`start` gives Beam's result) and waits for its end. `has_begun` tells whether a worker has given
    its first sign.

    Raises: whatever the job raises; PrepError if it ends otherwise than done, or no worker ever begins.
    """
    # A thread that nobody has to wait for: Beam would turn an interrupt into an error of the step where it struck, or
    # go on until every thread has made all of its shards.
    job = in_background(lambda: _check_state(start()))
    started = time.monotonic()
    # The system may hand a signal to another thread, which wakes nobody: this one has to look for itself.
    while not job.done():
        futures.wait([job], timeout=POLL_SECONDS)
        if has_begun and time.monotonic() - started > _FIRST_SIGN_SECONDS:
            _check_begun(has_begun)
            has_begun = None
    if job.exception() is not None:
        _let_messages_end()
    job.result()


def _let_messages_end() -> None:
    """Where a connection broke, the thread that reads the job's messages ends with a traceback: while it is still held
    back.
    """
    for thread in threading.enumerate():
        if thread.name == _MESSAGES_THREAD:
            thread.join(timeout=_LAST_MESSAGES_SECONDS)


def _check_state(result: Any) -> None:
    """Waits, and does not take a runner's silence for success."""
    state = result.wait_until_finish() or result.state
    if state != "DONE":
        raise PrepError(f"the job ended in the state {state}, expected DONE", remedy=AGAIN)


def _check_begun(has_begun: Callable[[], bool]) -> None:
    if not has_begun():
        raise PrepError(
            f"no worker has begun {_FIRST_SIGN_SECONDS:.0f} seconds after the job was started",
            remedy=f"look into the logs of the job service and its workers; when that is mended, {AGAIN}",
        )


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold back what Beam's threads print to stderr. It is dropped if a PrepError comes, which says it all in two
    lines; after another error it goes to the log.

    Beam prints the traceback of a failed worker there, whatever the level of its logger, and its threads print one
    when their connection breaks.
    """
    try:
        with stderr.held_back(_is_beams) as said:
            yield
    except PrepError:
        raise
    except Exception:
        _log.info("printed while the job ran:\n%s", said.getvalue())
        raise
    sys.stderr.write(visible(without_secrets(said.getvalue()), lines=True))


def _is_beams(thread: threading.Thread) -> bool:
    return type(thread).__module__.startswith("apache_beam.") or thread.name.startswith(_BEAMS_THREADS)
