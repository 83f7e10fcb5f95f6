"""Code of a child process, which gets tasks from a pipe and sends results to `child` in the launcher.

A thread sends counts of finished work while a task runs.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from pipelines.prepare.process.progress import Counts, Progress
from pipelines.prepare.process.threads import POLL_SECONDS

Answer = tuple[Any, Exception | None, str]  # result, error, traceback


def begin(most_memory: int) -> None:
    """Set up this child process: signals, garbage collection, and a limit of `most_memory` bytes (MemoryError)."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # this signal ends the process, see `tokenize.chat.renderer`
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after an interrupt, the launcher ends this process
    gc.set_threshold(2_000_000, 50, 100)  # as in the command's process
    # After a kill, Python would report a spawned child's named locks as leaked; forked children have none.
    multiprocessing.set_start_method("fork", force=True)
    if sys.platform == "linux":  # on other systems the limit does not include mapped memory
        resource.setrlimit(resource.RLIMIT_DATA, (most_memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def serve(pipe: Connection, most_memory: int | None, function: Callable[[Any, Progress], Any] = max) -> None:
    """Run tasks from a pipe until the launcher closes it. Forked processes have a `function`, but no `most_memory`."""
    if most_memory is not None:
        begin(most_memory)
    channel = Channel(pipe)
    threading.Thread(target=_report, args=(channel,), daemon=True).start()
    with contextlib.suppress(EOFError):
        while True:
            pickled, task = pipe.recv()
            with channel.answering():
                function = pickle.loads(pickled) if pickled else function
                channel.result = function(task, channel.progress)
    leave(0)


class Channel:
    """The child's end of the pipe, with the counts and result to send."""

    result: Any

    def __init__(self, pipe: Connection) -> None:
        self.progress, self._pipe, self._sending = Progress(), pipe, threading.Lock()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """At the end of the context, send `result`, or the error that was raised."""
        self.result = None
        try:
            yield
            answer: Answer = (self.result, None, "")
        except Exception as error:
            answer = (None, _picklable(error), traceback.format_exc())
        with contextlib.suppress(BrokenPipeError), self._sending:
            self._pipe.send((self.progress.drain(), answer))
        self.result = None

    def report(self) -> None:
        """Send the counts since the last report."""
        with contextlib.suppress(OSError), self._sending:
            if (counts := self.progress.drain()) != Counts():
                self._pipe.send((counts, None))


def leave(status: int) -> NoReturn:
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os._exit(status)  # an orderly exit takes 0.1 s


def _report(channel: Channel) -> None:
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    while not connection.wait([launcher.sentinel], timeout=POLL_SECONDS):
        channel.report()
    os._exit(1)


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
