"""The process that a launcher or a stem starts to run tasks: its side of the pipe (see `here`).

It takes tasks, and sends an answer for each: (result, error, traceback); counts meanwhile, from a thread.
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
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from pipelines.prepare.process.progress import Counts, Progress
from pipelines.prepare.process.threads import POLL_SECONDS

# How long a child that is kept waits for another task.
IDLE_SECONDS = 20.0

Answer = tuple[Any, Exception | None, str]


def begin(most_memory: int) -> None:
    """Prepare a child. More than `most_memory` bytes give a MemoryError."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, see `tokenize.chat.renderer`
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the launcher ends this
    gc.set_threshold(2_000_000, 50, 100)  # as in the command's own process: a tokenizer takes 2.0 s of CPU, not 2.3
    # Locks of a child that `spawn` started are named, and reported as leaked if it is killed; those of `fork` are not.
    multiprocessing.set_start_method("fork", force=True)
    if sys.platform == "linux":  # elsewhere the limit does not count what is mapped
        resource.setrlimit(resource.RLIMIT_DATA, (most_memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def serve(pipe: Connection, most_memory: int) -> None:
    """Run tasks in a spawned child until the pipe is closed or it has rested for long."""
    begin(most_memory)
    work = Work(pipe)
    function: Callable[[Any, Progress], Any] = max
    idle: float | None = None
    while pipe.poll(idle):
        try:
            message = pipe.recv()
        except EOFError:
            break
        idle = IDLE_SECONDS if message is None else None
        if message is None:
            continue
        pickled, task = message
        with work.answering():
            function = pickle.loads(pickled) if pickled else function
            work.result = function(task, work.progress)
    leave(0)


def serve_forked(pipe: Connection, others: Sequence[Connection], function: Callable[[Any, Progress], Any]) -> None:
    """Run tasks in a forked child until the pipe is closed."""
    for each in others:  # or their children would not see that the stem has closed them
        each.close()
    work = Work(pipe)
    with contextlib.suppress(EOFError):
        while True:
            task = pipe.recv()
            with work.answering():
                work.result = function(task, work.progress)
    leave(0)


class Work:
    """A child's side of its pipe: sends the answers, and from a thread the counts meanwhile."""

    result: Any

    def __init__(self, pipe: Connection) -> None:
        self.progress, self._pipe, self._sending = Progress(), pipe, threading.Lock()
        threading.Thread(target=_report, args=(pipe, self.progress, self._sending), daemon=True).start()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Send `result`, or the error that ends the context."""
        self.result = None
        try:
            yield
            answer: Answer = (self.result, None, "")
        except Exception as error:
            answer = (None, picklable(error), traceback.format_exc())
        with contextlib.suppress(BrokenPipeError), self._sending:
            self._pipe.send((self.progress.drain(), answer))
        self.result = None


def leave(status: int) -> NoReturn:
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os._exit(status)  # an orderly exit with so many libraries takes 0.1 s, and is waited for


def _report(pipe: Connection, progress: Progress, sending: threading.Lock) -> None:
    """Send counts to the launcher while it lives, and exit when it ends."""
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    while not connection.wait([launcher.sentinel], timeout=POLL_SECONDS):
        with contextlib.suppress(OSError), sending:
            if (counts := progress.drain()) != Counts():
                pipe.send((counts, None))
    os._exit(1)


def picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
