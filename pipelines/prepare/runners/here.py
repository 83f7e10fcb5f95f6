"""The default runner: worker processes of this machine, with results in the order of completion.

    launcher ──── function, task ────► child: function(task, progress) ──► result, or an exception
             ◄─── counts, meanwhile ──
             ◄─── its result ─────────

    launcher ──── function, tasks ───► stem ──── number ────► child, child, ...     several children, on Linux
             ◄─── counts, results ────      ◄─── as above ───

A child is started by `spawn`, and shares nothing but a pipe with its launcher. Several for one call are forked from a
stem, a spawned child that imports and opens once what all of them need: 16 children with Arrow and Numba took 0.8 s of
CPU, the last of them answering after 2.4 s, where 16 spawned ones took 10 s and 23 s. The stem runs no thread of
Python's; those of OpenBLAS and jemalloc stop around a fork. All end with the launcher, however that ends. If a child
dies, by a crash or because the system is out of memory, the error names its task and how it died. On Linux each child
has a memory limit of its own, so that it cannot take the memory of the others and of the launcher.
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
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from pipelines.prepare.process.cores import cores, memory_bytes
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.threads import POLL_SECONDS, in_background, wait_for
from pipelines.prepare.runners import child_process
from pipelines.prepare.runners.runner import Work

Task = TypeVar("Task")
Result = TypeVar("Result")

_END_SECONDS = 5.0
# Elsewhere system libraries may run threads that a fork leaves in the middle of something.
_FORKS = sys.platform == "linux"
# A child may use half of the machine's memory, and at least this much: Arrow and its threads reserve some themselves.
_LEAST_MEMORY = 4 << 30
# Signals that end a process from outside, whatever its task.
_FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

# With less to read or to write, starting children takes longer than they save: 2 s of CPU each with a tokenizer, in
# which a core makes shards of 120 MB of text.
_SMALL_BYTES = 400_000_000
# On two cores (byte-level BPE, concat) 1 GB of text took 12.2 s in one process with a thread for each core and 13.2 s
# in two, 4 GB 38.8 and 32.8 s.
_THREADED_BYTES = 750_000_000
# Memory of a child with a tokenizer before its first shard; a shard takes three times its own bytes in addition.
_CHILD_BYTES = 350_000_000
_SHARE_OF_MEMORY = 0.8

_log = logging.getLogger(__name__)
_idle: list[_Child] = []
_stems: set[_Child] = set()
_starting = threading.Lock()


class Here:
    """Runner of tasks in processes of this machine. Implements `Runner`."""

    is_here = True

    def check(self, root: str) -> None:
        """There is nothing to check."""

    def run(self, work: Work, progress: Progress) -> None:
        """Run all tasks, and finish. Raises: as `run`."""
        run(work.function, work.tasks, processes=work.processes, progress=progress)
        if work.finish is not None:
            work.finish()


class WorkerDiedError(Exception):
    """Death of a child process while it worked on `task`; `how` describes it."""

    def __init__(self, task: Any, exit_code: int) -> None:
        self.task, self.exit_code, self.how = task, exit_code, _describe(exit_code)
        super().__init__(f"a worker process {self.how}")

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerDiedError, (self.task, self.exit_code)

    @property
    def is_killed(self) -> bool:
        """Return whether SIGKILL ended the child, as the system does if its memory is exhausted."""
        return self.exit_code == -signal.SIGKILL


def run(
    function: Callable[[Task, Progress], Result],
    tasks: Sequence[Task],
    *,
    processes: int,
    progress: Progress | None = None,
) -> list[Result]:
    """Call a picklable function for each task in child processes; return the results in the order of the tasks.

    With 0 `processes`, and in a daemon of `multiprocessing`, which may have no children, tasks run in order in this
    process. After an error no task begins, and the error is raised when the running tasks are done. A child that a
    signal ended from outside is replaced, once for each task. One child alone waits for the next call afterwards, since
    starting it takes 0.8 s of CPU. If the function has a `prepare`, a stem calls it before it forks.

    Raises: what the function raises; WorkerDiedError, whose task is the first if the stem died.
    """
    progress = progress or Progress()
    if not processes or multiprocessing.current_process().daemon:
        return [function(task, progress) for task in tasks]
    pickled = pickle.dumps(function)
    if processes == 1 or not _FORKS:
        return _deal(tasks, pickled, lambda: _take_idle() or _Child(), processes=processes, progress=progress)
    end_idle()  # a child that has read the source holds 100 MB or more
    whole = (tasks, processes)
    try:
        results: list[Result]
        (results,) = _deal([whole], pickled, lambda: _Child(target=_serve_stem), processes=1, progress=progress)
        return results
    except WorkerDiedError as died:
        if died.task is whole:
            raise WorkerDiedError(tasks[0], died.exit_code) from None
        raise


def _deal(
    tasks: Sequence[Any],
    pickled: bytes | None,
    start: Callable[[], _Child],
    *,
    processes: int,
    progress: Progress,
    tick: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Deal tasks out to children; return the results. `pickled` function: none for forked children, which have it.

    `tick` is called several times a second. Raises: as `run`.
    """
    results: dict[int, Any] = {}
    waiting = list(reversed(range(len(tasks))))
    restarted: set[int] = set()
    busy: dict[Any, tuple[_Child, int]] = {}
    free: list[_Child] = []
    failed: Exception | None = None
    try:
        while busy or (waiting and failed is None):
            if failed is None:
                # All are started before one is fed: a full pipe would wait for the imports of one child after another.
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
                    if -died.exit_code in _FROM_OUTSIDE and number not in restarted:
                        restarted.add(number)
                        waiting.append(number)
                    else:
                        failed = failed or died
                else:
                    free.append(child)
                    results[number], error, where = answer
                    if error is not None:
                        error.__cause__ = RuntimeError(f"in a worker process:\n{where}")
                        failed = failed or error
                del busy[pipe]
            tick()
        if failed is not None:
            raise failed
    finally:
        _dismiss([child for child, _ in busy.values()], free)
    return [results[number] for number in range(len(tasks))]


def _dismiss(busy: Sequence[_Child], free: Sequence[_Child]) -> None:
    """End all children but free ones that can take other tasks, which rest until the next call."""
    kept = [child for child in free if child.is_reusable]
    for child in kept:
        child.rest()
    _idle.extend(kept)
    ended = [*busy, *(child for child in free if not child.is_reusable)]
    for child in ended:
        child.stop()  # all of them first, so that they end side by side
    for child in ended:
        child.end()


def number(
    tasks: int,
    *,
    task_bytes: int,
    wanted: int | None,
    default: int | None = None,
    most: int | None = None,
    threaded: bool = False,
) -> int:
    """Return the number of child processes for tasks of `task_bytes` each; 0 if this process should do them itself.

    `wanted` is the user's number; without it, `default` or the number of cores, as far as the memory allows. More than
    `most` would not be faster. No child is started that would not save time: 4 tasks take as long in 2 children as
    in 3. `threaded`: this process would use all cores, too.
    """
    asked = min(tasks, wanted or default or cores())
    if asked <= 1 or tasks * task_bytes < (_THREADED_BYTES if threaded else _SMALL_BYTES):
        return 0
    limits = [] if most is None else [(most, f"there are no more cores: {most}")]
    if wanted is None:
        room = max(1, int(_SHARE_OF_MEMORY * memory_bytes() / (_CHILD_BYTES + 3 * task_bytes)))
        fit = f"no more fit into {100 * _SHARE_OF_MEMORY:.0f} % of {memory_bytes() / 1e9:.1f} GB of memory"
        limits.append((room, f"{fit}; --workers N sets another number"))
    children, why = min([(asked, ""), *limits], key=lambda limit: limit[0])
    if why:
        _log.warning("%d instead of %d workers: %s", children, asked, why)
    rounds = math.ceil(tasks / children)
    children = math.ceil(tasks / rounds)
    return children if children > 1 else 0


def call(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a module-level function in a child process, which stays for the next call.

    Raises: what the function raises; WorkerDiedError, whose task is the last argument.
    """
    *first, last = arguments
    (result,) = run(functools.partial(_apply, function, first), [last], processes=1)
    return result


def _apply(function: Callable[..., Result], first: Sequence[Any], last: Any, _: Progress) -> Result:
    return function(*first, last)


def end_idle() -> None:
    """End the idle children of this process, and wait until they have ended."""
    while _idle:
        if (child := _idle.pop()).owner == os.getpid():
            child.end()


@atexit.register
def _end_all() -> None:
    for stem in [each for each in _stems if each.owner == os.getpid()]:
        stem.end()
    end_idle()


def _take_idle() -> _Child | None:
    while _idle:
        if (child := _idle.pop()).owner != os.getpid():
            continue
        if child.is_awake():  # a child that is about to end after a long idle time does not answer
            return child
        child.end()
    return None


class _Child:
    """Child process with its present task."""

    task: Any
    _function: bytes | None = None

    def __init__(
        self,
        *,
        target: Callable[..., None] | None = None,
        function: Callable[[Any, Progress], Any] | None = None,
    ) -> None:
        """Start a process by `spawn`, a stem by its `target`, or with the `function` of its tasks one by `fork`."""
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
        """Send the child a task, with the pickled function unless it had the same one for its last task."""
        self.task = task
        with contextlib.suppress(OSError):  # `receive` says how it died
            self.pipe.send((None if function is self._function else function, task))
        self._function = function

    def receive(self, progress: Progress) -> child_process.Answer | None:
        """Add received counts to `progress`; return the task's answer, None before its end. Raises: WorkerDiedError."""
        try:
            counts, answer = self.pipe.recv()
        except (EOFError, OSError):  # OSError: it ended while it sent more than the pipe holds
            self.process.join()
            raise WorkerDiedError(self.task, self.process.exitcode or 0) from None
        progress.add(**counts._asdict())
        received: child_process.Answer | None = answer
        return received

    def rest(self) -> None:
        """Let the process end by itself if no task comes for some time."""
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
        """Make the process end. A stem kills its children first."""
        self.pipe.close()
        if not self.is_stem:
            self.process.kill()

    def end(self) -> None:
        """Let the process end, and kill it if it does not within `_END_SECONDS`."""
        _stems.discard(self)
        self.pipe.close()
        self.process.join(_END_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve_stem(pipe: Connection, most_memory: int) -> None:
    """Run the tasks of one message in children that this process forks; no thread of Python's runs in it."""
    child_process.begin(most_memory)
    channel = child_process.Channel(pipe)
    launcher = multiprocessing.parent_process()
    assert launcher is not None

    def tick() -> None:
        channel.report()
        if connection.wait([launcher.sentinel, pipe], timeout=0):  # the launcher says nothing more
            sys.exit()

    try:
        pickled, (tasks, processes) = pipe.recv()
        with channel.answering():
            function = pickle.loads(pickled)
            if (prepare := getattr(function, "prepare", None)) is not None:
                prepare()
            gc.freeze()  # no collection then touches, and so copies, what the children share
            channel.result = _deal(
                tasks,
                None,
                lambda: _Child(function=function),
                processes=processes,
                progress=channel.progress,
                tick=tick,
            )
    finally:
        child_process.leave(0)


def _spawn(process: multiprocessing.process.BaseProcess) -> None:
    """Start a spawned process: wholly, even if an interrupt comes meanwhile, after which it would print a traceback."""

    def start() -> None:
        # The child inherits this, and ignores the signal before it has imported anything.
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
    """Hide the main module, which `spawn` would run again: a script may lack the `__name__` guard against that."""
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
        if -exit_code in _FROM_OUTSIDE:
            return f"was ended twice from outside ({name})"
        return f"was killed, perhaps for its memory ({name})" if name == "SIGKILL" else f"crashed ({name})"
    return f"was ended by signal {-exit_code}"
