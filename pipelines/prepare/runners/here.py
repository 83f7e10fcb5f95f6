"""The default runner: local worker processes, with results in the order of the tasks.

A single child is spawned. On Linux, several are forked from a fork server: a spawned child that gets all tasks and
imports once, so 16 children start ten times as fast. Forking is safe: the server runs no Python thread, and OpenBLAS
and jemalloc stop theirs around a fork.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import logging
import math
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from pipelines.prepare.process.cores import cores, memory_bytes
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.threads import POLL_SECONDS
from pipelines.prepare.runners import child_process, failures
from pipelines.prepare.runners.child import FROM_OUTSIDE, Child, WorkerDiedError
from pipelines.prepare.runners.runner import Work
from tfrecord_io.errors import PrepError
from tfrecord_io.shown import some

Task = TypeVar("Task")
Result = TypeVar("Result")

# Elsewhere, system libraries may run threads, which do not survive a fork.
_FORKS = sys.platform == "linux"

# With less data, children are not worth starting, which takes 2 s of CPU time with a tokenizer.
_SMALL_BYTES = 400_000_000
# On two cores, two threads were faster for 1 GB of text, two processes for 4 GB.
_THREADED_BYTES = 750_000_000
# Memory of a child with a tokenizer. In addition, making a shard takes three times the shard's bytes.
_CHILD_BYTES = 350_000_000
_SHARE_OF_MEMORY = 0.8

_log = logging.getLogger(__name__)
_idle: list[Child] = []


@contextlib.contextmanager
def deaths_reported() -> Iterator[None]:
    """Within the context, turn the death of a worker process into a PrepError."""
    try:
        yield
    except WorkerDiedError as died:
        remedy = f"give fewer --workers if memory ran out, and {failures.AGAIN}"
        raise PrepError(f"a worker process {died.how}", remedy=remedy) from died


class Here:
    """Runner of tasks in local processes. Implements `Runner`."""

    is_here = True

    def check(self, root: str) -> None:
        """Do nothing: local processes need no check."""

    def run(self, work: Work, progress: Progress) -> None:
        run(work.function, work.tasks, processes=work.processes, progress=progress)
        if work.finish is not None:
            work.finish()


def run(
    function: Callable[[Task, Progress], Result],
    tasks: Sequence[Task],
    *,
    processes: int,
    progress: Progress | None = None,
) -> list[Result]:
    """Call a picklable function for each task in child processes; return the results in the order of the tasks.

    If `processes` is 0, or this process is a daemon of `multiprocessing`, tasks run in this process. After an error, no
    further task begins, and the error is raised when the running tasks have ended. If an outside signal ends a child,
    its task runs once more. With one process, the child is kept for the next call. The fork server first calls the
    function's method `prepare`, if any.

    Raises: errors of the function; WorkerDiedError with the task of the child that died, or the first task if the fork
        server died.
    """
    progress = progress or Progress()
    if not processes or multiprocessing.current_process().daemon:
        return [function(task, progress) for task in tasks]
    pickled = pickle.dumps(function)
    if processes == 1 or not _FORKS:
        return _deal(tasks, pickled, lambda: _take_idle() or Child(), processes=processes, progress=progress)
    end_idle()  # an idle child may hold 100 MB
    all_tasks = (tasks, processes)
    try:
        results: list[Result]
        (results,) = _deal([all_tasks], pickled, lambda: Child(target=_serve_forks), processes=1, progress=progress)
        return results
    except WorkerDiedError as died:
        if died.task is all_tasks:
            raise WorkerDiedError(tasks[0], died.exit_code) from None
        raise


def _deal(
    tasks: Sequence[Any],
    pickled: bytes | None,
    start: Callable[[], Child],
    *,
    processes: int,
    progress: Progress,
    tick: Callable[[], None] = lambda: None,
) -> list[Any]:
    # `pickled` is None for forked children, which already have the function.
    results: dict[int, Any] = {}
    waiting = list(reversed(range(len(tasks))))
    restarted: set[int] = set()
    busy: dict[Any, tuple[Child, int]] = {}
    free: list[Child] = []
    failed: Exception | None = None
    try:
        while busy or (waiting and failed is None):
            if failed is None:
                # Start all children first: sending to a full pipe waits for the child's imports.
                free += [start() for _ in range(min(len(waiting), processes - len(busy)) - len(free))]
                while waiting and free:
                    child, number = free.pop(), waiting.pop()
                    busy[child.pipe] = child, number
                    child.give(pickled, tasks[number])
            for pipe in connection.wait([*busy], timeout=POLL_SECONDS):
                child, number = busy[pipe]
                try:
                    if (answer := child.receive(progress)) is None:
                        continue
                except WorkerDiedError as died:
                    child.end()
                    if -died.exit_code in FROM_OUTSIDE and number not in restarted:
                        restarted.add(number)
                        waiting.append(number)
                    else:
                        failed = failed or died
                else:
                    free.append(child)
                    results[number], error, stack = answer
                    if error is not None:
                        error.__cause__ = RuntimeError(f"in a worker process:\n{stack}")
                        failed = failed or error
                del busy[pipe]
            tick()
        if failed is not None:
            raise failed
    finally:
        _dismiss([child for child, _ in busy.values()], free)
    return [results[number] for number in range(len(tasks))]


def _dismiss(busy: Sequence[Child], free: Sequence[Child]) -> None:
    _idle.extend(child for child in free if child.is_reusable)
    ended = [*busy, *(child for child in free if not child.is_reusable)]
    for child in ended:
        child.stop()  # stop all children before the first `end`, so that they end in parallel
    for child in ended:
        child.end()


def num_processes(
    num_tasks: int, *, task_bytes: int, wanted: int | None, default: int | None = None, threaded: bool = False
) -> int:
    """Return the number of child processes for tasks of `task_bytes` each; 0 to run them in this process.

    `wanted`: the user's number. Without it, `default` or the number of cores, limited by memory. Children that save no
    time are left out: for 4 tasks, 3 take as long as 2. `threaded`: this process can use all cores.
    """
    children = min(num_tasks, wanted or default or cores())
    if children <= 1 or num_tasks * task_bytes < (_THREADED_BYTES if threaded else _SMALL_BYTES):
        return 0
    room = max(1, int(_SHARE_OF_MEMORY * memory_bytes() / (_CHILD_BYTES + 3 * task_bytes)))
    if wanted is None and room < children:
        _log.warning(
            "%s instead of %d, since no more fit into %.0f %% of the machine's %.1f GB of memory; give --workers N for "
            "another number",
            *(some(room, "worker"), children, 100 * _SHARE_OF_MEMORY, memory_bytes() / 1e9),
        )
        children = room
    rounds = math.ceil(num_tasks / children)
    children = math.ceil(num_tasks / rounds)
    return children if children > 1 else 0


def call(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a module-level function in a child process, which stays for the next call.

    Raises: errors of the function; WorkerDiedError, with the last argument as `task`, if the child died.
    """
    *first, last = arguments
    (result,) = run(functools.partial(_apply, function, first), [last], processes=1)
    return result


def _apply(function: Callable[..., Result], first: Sequence[Any], last: Any, _: Progress) -> Result:
    return function(*first, last)


def end_idle() -> None:
    """End this process's idle children, and wait for them."""
    while _idle:
        _idle.pop().end()


atexit.register(end_idle)
os.register_at_fork(after_in_child=_idle.clear)


def _take_idle() -> Child | None:
    while _idle:
        if (child := _idle.pop()).process.is_alive():
            return child
        child.end()
    return None


def _serve_forks(pipe: Connection, most_memory: int) -> None:
    child_process.begin(most_memory)
    channel = child_process.Channel(pipe)
    launcher = multiprocessing.parent_process()
    assert launcher is not None

    def tick() -> None:
        channel.report()
        if connection.wait([launcher.sentinel, pipe], timeout=0):  # the launcher has ended or closed the pipe
            sys.exit()

    try:
        pickled, (tasks, processes) = pipe.recv()
        with channel.answering():
            function = pickle.loads(pickled)
            if (prepare := getattr(function, "prepare", None)) is not None:
                prepare()
            gc.freeze()  # otherwise garbage collections would copy memory that children share
            channel.result = _deal(
                tasks, None, lambda: Child(function=function), processes=processes, progress=channel.progress, tick=tick
            )
    finally:
        child_process.leave(0)
