"""The launcher's side of child processes; `child_process` runs in them."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pipelines.prepare.process.cores import memory_bytes
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.threads import in_background, wait_for
from pipelines.prepare.runners import child_process

# Signals from users or other programs, not caused by the task.
FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

_END_SECONDS = 5.0
# A child's memory limit is half of the machine's, but not less than this.
_LEAST_MEMORY = 4 << 30

_starting = threading.Lock()


class WorkerDiedError(Exception):
    """A child process died during `task`. `how`: the cause, such as "ended with status 1"."""

    def __init__(self, task: Any, exit_code: int) -> None:
        self.task, self.exit_code, self.how = task, exit_code, _describe(exit_code)
        super().__init__(f"a worker process {self.how}")

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerDiedError, (self.task, self.exit_code)


class Child:
    """A child process and its current task."""

    task: Any
    process: multiprocessing.process.BaseProcess
    _function: bytes | None = None

    def __init__(
        self, *, target: Callable[..., None] | None = None, function: Callable[[Any, Progress], Any] | None = None
    ) -> None:
        """Start a fork server with `target`, a forked child with `function`, or else a reusable child (see `here`)."""
        self.is_fork_server = target is not None
        self.is_reusable = target is None and function is None
        context: Any = multiprocessing.get_context("spawn" if function is None else "fork")
        self.pipe, theirs = context.Pipe()
        serve = target or child_process.serve
        # A fork server must not be a daemon: daemons cannot have children.
        new_process = functools.partial(context.Process, target=serve, daemon=target is None)
        if function is not None:
            self.process = new_process(args=(theirs, None, function))
            self.process.start()
        else:
            self.process = new_process(args=(theirs, max(_LEAST_MEMORY, memory_bytes() // 2)))
            _spawn(self.process)
        theirs.close()

    def give(self, function: bytes | None, task: Any) -> None:
        """Send the child a task, and the pickled function unless the child has it already."""
        self.task = task
        with contextlib.suppress(OSError):  # `receive` reports that the process has died
            self.pipe.send((None if function is self._function else function, task))
        self._function = function

    def receive(self, progress: Progress) -> child_process.Answer | None:
        """Receive a message; return its answer, None while the task runs. Add its counts. Raises: WorkerDiedError."""
        try:
            counts, answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            raise WorkerDiedError(self.task, self.process.exitcode or 0) from None
        progress.add(**counts._asdict())
        received: child_process.Answer | None = answer
        return received

    def stop(self) -> None:
        """Make the process end, without waiting. A fork server first kills its children."""
        self.pipe.close()
        if not self.is_fork_server:
            self.process.kill()

    def end(self) -> None:
        """Close the pipe, and wait until the process ends; kill it after five seconds."""
        self.pipe.close()
        self.process.join(_END_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _spawn(process: multiprocessing.process.BaseProcess) -> None:

    def start() -> None:
        # The child inherits the blocked signal, so that an interrupt does not end its imports.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with _starting, _without_main():
            process.start()

    starting = in_background(start)
    try:
        wait_for(starting)
    finally:
        starting.result()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    # `spawn` would run the main module again in the child.
    main = sys.modules["__main__"]
    sys.modules["__main__"] = type(main)("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _describe(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with status {exit_code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-exit_code).name
        if -exit_code in FROM_OUTSIDE:
            return f"was ended twice by another program or a user ({name})"
        return f"was killed, possibly because memory ran out ({name})" if name == "SIGKILL" else f"crashed ({name})"
    return f"was ended by signal {-exit_code}"
