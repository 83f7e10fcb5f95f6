"""Worker processes: tasks for one function, each in a child of its own interpreter (`spawn`), results as they come.

    launcher ──── context, once ────► child: function(context, task) ──► result, or an exception
             ──── a task ────►
             ◄─── its result ────

A child shares nothing but a pipe with its launcher, and ends with it, however that ends. If a child dies, by a crash or
because the system is out of memory, the error says which task it had, and how it died. On Linux a child has a limit of
memory of its own, so that the others, and the launcher, keep theirs.
"""

from __future__ import annotations

import atexit
import contextlib
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
from typing import Any, TypeVar

__all__ = ["WorkerDiedError", "call", "run"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Context = TypeVar("Context")

_END_SECONDS = 5.0
# How long a child waits for another `call`.
_IDLE_SECONDS = 20.0

# A child has half of the machine's memory, and at least this much: Arrow and its threads reserve some by themselves.
_LEAST_MEMORY = 4 << 30

_idle: list[_Child] = []


class WorkerDiedError(Exception):
    """A child process died while it worked on `task`, the last argument of a `call`; `how` says of what."""

    def __init__(self, task: Any, exit_code: int) -> None:
        self.task, self.how = task, _describe(exit_code)
        super().__init__(f"a worker process {self.how}")


def run(
    function: Callable[[Context, Task], Result], tasks: Sequence[Task], *, context: Context, processes: int
) -> Iterator[tuple[Task, Result]]:
    """Call a module's function for each task in child processes; yield (task, result) in the order of their ends.

    Whatever ends the iteration ends the children.

    Raises: what the function raises; WorkerDiedError.
    """
    waiting = list(reversed(tasks))
    start = pickle.dumps((function, context, None, _memory()))
    children: dict[Connection, _Child] = {}
    try:
        for _ in range(min(processes, len(waiting))):
            child = _Child(start)
            children[child.pipe] = child
            child.give(waiting.pop())
        while children:
            for pipe in connection.wait(list(children)):
                child = children[pipe]  # type: ignore[index]
                yield child.task, child.result()
                if waiting:
                    child.give(waiting.pop())
                else:
                    child.end()
                    del children[child.pipe]
    finally:
        for child in children.values():
            child.process.terminate()
        for child in children.values():
            child.end()


def call(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a module's function in a child process, which stays for the next call: starting takes 0.8 s of CPU.

    A daemon of `multiprocessing`, which may have no children, calls it itself.

    Raises: what the function raises; WorkerDiedError.
    """
    if multiprocessing.current_process().daemon:
        return function(*arguments)
    child = _take_idle() or _Child(pickle.dumps((_apply, None, _IDLE_SECONDS, _memory())))
    try:
        child.give((function, arguments))
        answer = child.answer()
    except BaseException as error:
        child.process.kill()
        child.end()
        if isinstance(error, WorkerDiedError):
            error.task = arguments[-1]
        raise
    _idle.append(child)
    return _result(answer)


def _memory() -> int:
    """Return how many bytes a child may allocate; with more, it gets a MemoryError."""
    return max(_LEAST_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


@atexit.register
def _end_idle() -> None:
    for child in (each for each in _idle if each.owner == os.getpid()):
        child.end()


def _take_idle() -> _Child | None:
    while _idle:
        child = _idle.pop()
        # A child that is about to end, for it was idle for long, does not answer.
        if child.owner == os.getpid():
            if child.is_awake():
                return child
            child.end()
    return None


def _apply(_: None, task: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    function, arguments = task
    return function(*arguments)


class _Child:
    """A child process, and the task that it has."""

    task: Any

    def __init__(self, start: bytes) -> None:
        self.owner = os.getpid()
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _without_main():
            self.process.start()
        theirs.close()
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send_bytes(start)

    def give(self, task: Any) -> None:
        self.task = task
        with contextlib.suppress(BrokenPipeError):  # `result` says how it died
            self.pipe.send(task)

    def result(self) -> Any:
        """Receive the result of the task. Raises: what the function raised; WorkerDiedError."""
        return _result(self.answer())

    def answer(self) -> tuple[Any, Exception | None, str]:
        """Receive the result of the task, or its error and traceback. Raises: WorkerDiedError."""
        try:
            answer: tuple[Any, Exception | None, str] = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            raise WorkerDiedError(self.task, self.process.exitcode or 0) from None
        return answer

    def is_awake(self) -> bool:
        """Whether the process answers an empty task."""
        self.give((bool, ()))
        try:
            self.answer()
        except WorkerDiedError:
            return False
        return True

    def end(self) -> None:
        """Let the process end, and see that it does."""
        self.pipe.close()
        self.process.join(_END_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _result(answer: tuple[Any, Exception | None, str]) -> Any:
    result, error, where = answer
    if error is not None:
        raise error from RuntimeError(f"in a worker process:\n{where}")
    return result


def _serve(pipe: Connection) -> None:
    """Work in a child: receive the function and its context, then tasks until the launcher closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the launcher ends this
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    # Locks of a child that `spawn` started are named, and reported as leaked if it is killed; those of `fork` are not.
    multiprocessing.set_start_method("fork", force=True)
    function, context, idle_seconds, memory = pickle.loads(pipe.recv_bytes())
    if sys.platform == "linux":  # elsewhere the limit does not count what is mapped
        resource.setrlimit(resource.RLIMIT_DATA, (memory, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    while pipe.poll(idle_seconds):
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            answer: tuple[Any, Exception | None, str] = (function(context, task), None, "")
        except Exception as error:
            answer = (None, _picklable(error), traceback.format_exc())
        with contextlib.suppress(BrokenPipeError):
            pipe.send(answer)


def _end_with_launcher() -> None:
    launcher = multiprocessing.parent_process()
    if launcher is not None:
        launcher.join()
        os._exit(1)


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module, which `spawn` would run again: a script may lack the guard against that."""
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
        return f"was killed, perhaps for its memory ({name})" if name == "SIGKILL" else f"crashed ({name})"
    return f"was ended by signal {-exit_code}"
