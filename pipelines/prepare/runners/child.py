"""The launcher's side of a child process; `child_process` is the other side."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pipelines.prepare.process.cores import memory_bytes
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.threads import in_background, wait_for
from pipelines.prepare.runners import child_process

# Signals that end a process from outside, whatever its task.
FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

_END_SECONDS = 5.0
# Least memory limit of a child, otherwise half of the machine's.
_LEAST_MEMORY = 4 << 30

_stems: set[Child] = set()
_starting = threading.Lock()


class WorkerDiedError(Exception):
    """Death of a child process at work on `task`."""

    def __init__(self, task: Any, exit_code: int) -> None:
        self.task, self.exit_code, self.how = task, exit_code, _describe(exit_code)
        super().__init__(f"a worker process {self.how}")

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerDiedError, (self.task, self.exit_code)

    @property
    def is_killed(self) -> bool:
        """Return whether SIGKILL ended the child, as when memory is exhausted."""
        return self.exit_code == -signal.SIGKILL


class Child:
    """Child process with its current task."""

    task: Any
    _function: bytes | None = None

    def __init__(
        self,
        *,
        target: Callable[..., None] | None = None,
        function: Callable[[Any, Progress], Any] | None = None,
    ) -> None:
        """Start a stem with `target`, a fork with `function`, or a reusable child."""
        self.owner, self.is_stem = os.getpid(), target is not None
        self.is_reusable = target is None and function is None
        if function is not None:
            forking = multiprocessing.get_context("fork")
            self.pipe, theirs = forking.Pipe()
            self.process: multiprocessing.process.BaseProcess = forking.Process(
                target=child_process.serve, args=(theirs, None, function), daemon=True
            )
            self.process.start()
        else:
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            most_memory = max(_LEAST_MEMORY, memory_bytes() // 2)
            # Daemons may have no children.
            self.process = context.Process(
                target=target or child_process.serve, args=(theirs, most_memory), daemon=target is None
            )
            _spawn(self.process)
        theirs.close()
        if self.is_stem:
            _stems.add(self)

    def give(self, function: bytes | None, task: Any) -> None:
        """Send the child a task; send the pickled function only if it changes."""
        self.task = task
        with contextlib.suppress(OSError):  # `receive` reports the death
            self.pipe.send((None if function is self._function else function, task))
        self._function = function

    def receive(self, progress: Progress) -> child_process.Answer | None:
        """Add counts to `progress`; return the task's answer, if complete. Raises: WorkerDiedError."""
        try:
            counts, answer = self.pipe.recv()
        except (EOFError, OSError):  # OSError: it died while it sent
            self.process.join()
            raise WorkerDiedError(self.task, self.process.exitcode or 0) from None
        progress.add(**counts._asdict())
        received: child_process.Answer | None = answer
        return received

    def rest(self) -> None:
        """Let the process end when it is idle for some time."""
        with contextlib.suppress(OSError):
            self.pipe.send(None)

    def is_awake(self) -> bool:
        """Return whether the process answers an empty task."""
        self.give(pickle.dumps(max), None)
        try:
            self.receive(Progress())
        except WorkerDiedError:
            return False
        return True

    def stop(self) -> None:
        """End the process. A stem kills its children first."""
        self.pipe.close()
        if not self.is_stem:
            self.process.kill()

    def end(self) -> None:
        """Let the process end; kill it after `_END_SECONDS`."""
        _stems.discard(self)
        self.pipe.close()
        self.process.join(_END_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def end_stems() -> None:
    """End the stems that this process has started."""
    for stem in [each for each in _stems if each.owner == os.getpid()]:
        stem.end()


def _spawn(process: multiprocessing.process.BaseProcess) -> None:
    """Start a process completely even during an interrupt."""

    def start() -> None:
        # Inherited: the child ignores the signal while it imports.
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
    """Hide the main module: `spawn` would run it again."""
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
            return f"was ended twice from outside ({name})"
        return f"was killed, possibly for its memory ({name})" if name == "SIGKILL" else f"crashed ({name})"
    return f"was ended by signal {-exit_code}"
