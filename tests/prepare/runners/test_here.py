"""Worker processes: results in order, unchanged errors, and reported deaths."""

import contextlib
import functools
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines.prepare.process.progress import Progress
from pipelines.prepare.runners import child, here
from tests import building
from tests.support import limits, seams
from tfrecord_io.errors import PrepError, SourceError


def multiplied(factor: int, task: int, progress: Progress) -> tuple[int, int]:
    progress.add(rows=task)
    return factor * task, os.getpid()


def refused(task: str, _: object = None) -> None:
    raise SourceError(f"{task}: no good", remedy="leave it out")


def dying(way: str, task: int, progress: Progress | None = None) -> int:
    if progress is not None:
        progress.add(rows=task if task != 3 else 0)
    if task == 3:
        if way == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        os._exit(7)
    return task


def stopped(folder: str, task: int, _: Progress) -> int:
    """Ends its process as from outside, twice with the task 2 and once with others."""
    marks = Path(folder, str(task))
    if len(tries := marks.read_text() if marks.exists() else "") < (2 if task == 2 else 1):
        marks.write_text(f"{tries}x")
        os.kill(os.getpid(), signal.SIGTERM)
    return task


def ending_its_parent(number: signal.Signals, task: str, _: Progress) -> None:
    os.kill(os.getppid(), number)
    time.sleep(limits.TEST)


def sleeping(folder: str, task: int, _: Progress) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(limits.TEST)


@pytest.mark.parametrize("processes", [0, 2])
def test_each_task_is_done_once_by_processes_of_their_own(processes: int) -> None:
    progress = Progress()
    done = here.run(functools.partial(multiplied, 3), range(20), processes=processes, progress=progress)
    assert [product for product, _ in done] == [3 * task for task in range(20)]
    assert progress.read().rows == sum(range(20))
    pids = {pid for _, pid in done}
    here.end_idle()
    assert len(pids) <= max(1, processes)
    assert (os.getpid() in pids) == (processes == 0)
    assert not any(psutil.pid_exists(pid) for pid in pids - {os.getpid()})


@pytest.mark.parametrize("processes", [0, 2])
def test_an_error_is_that_of_the_function(processes: int) -> None:
    with pytest.raises(SourceError) as caught:
        here.run(refused, ["a.jsonl"], processes=processes)
    assert (caught.value.cause, caught.value.remedy) == ("a.jsonl: no good", "leave it out")


@pytest.mark.slow
@pytest.mark.parametrize(("way", "how"), [("crash", "crashed (SIGSEGV)"), ("exit", "ended with status 7")])
def test_a_process_that_dies_is_told_with_its_task_when_the_others_have_finished_theirs(way: str, how: str) -> None:
    progress = Progress()
    with pytest.raises(child.WorkerDiedError) as caught:
        here.run(functools.partial(dying, way), [3, 4], processes=2, progress=progress)
    assert (caught.value.task, caught.value.how) == (3, how)
    assert progress.read().rows == 4


@pytest.mark.slow
def test_the_death_of_a_process_is_an_error_with_a_remedy() -> None:
    fewer = "a worker process ended with status 7; give fewer --workers"
    with pytest.raises(PrepError, match=fewer), here.deaths_reported():
        here.run(functools.partial(dying, "exit"), [3, 4], processes=2)


@pytest.mark.slow
def test_a_process_that_is_stopped_from_outside_is_replaced_once_for_each_task(tmp_path: Path) -> None:
    stop = functools.partial(stopped, str(tmp_path))
    assert here.run(stop, [0, 1], processes=1) == [0, 1]
    with pytest.raises(child.WorkerDiedError, match=r"was ended twice by another program or a user \(SIGTERM\)"):
        here.run(stop, [2], processes=1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process forks")
@pytest.mark.parametrize(("number", "how"), [(signal.SIGKILL, "was killed"), (signal.SIGTERM, "was ended twice")])
def test_the_death_of_the_process_that_forks_is_told_too(number: signal.Signals, how: str, tmp_path: Path) -> None:
    with pytest.raises(child.WorkerDiedError, match=how):
        here.run(functools.partial(ending_its_parent, number), ["first", "second"], processes=2)


# A shell's background jobs ignore interrupts.
SLEEPING = """
import functools, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from pipelines.prepare.runners import here
from tests.prepare.runners.test_here import sleeping
here.run(functools.partial(sleeping, sys.argv[1]), [1, 2], processes=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_their_launcher(number: signal.Signals, tmp_path: Path) -> None:
    """The launcher is a script without a guard for its main module."""
    script = tmp_path / "script.py"
    script.write_text(SLEEPING)
    (tmp_path / "pids").mkdir()
    words = [sys.executable, str(script), str(tmp_path / "pids")]
    launcher = subprocess.Popen(words, env=building.environment(), stderr=subprocess.DEVNULL)
    while len(pids := [int(path.name) for path in (tmp_path / "pids").iterdir()]) < 2:
        assert launcher.poll() is None
        time.sleep(0.05)
    launcher.send_signal(number)
    launcher.wait(limits.ANSWER)
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(limits.ANSWER)


def restarted(folder: str, task: int, progress: Progress) -> int:
    """With task 1, wait for the end of task 0, then end as from outside, once. Return the process."""
    done, ended = Path(folder, "done"), Path(folder, "ended")
    if task == 0:
        done.touch()
    elif not ended.exists():
        while not done.exists():
            time.sleep(0.01)
        ended.touch()
        os.kill(os.getpid(), signal.SIGTERM)
    return os.getpid()


@pytest.mark.slow
def test_a_process_whose_work_is_done_does_what_another_leaves(tmp_path: Path) -> None:
    assert len({*here.run(functools.partial(restarted, str(tmp_path)), [0, 1], processes=2)}) == 1


def test_a_process_that_is_killed_while_it_sends_its_result_is_told_with_its_task() -> None:
    ours, theirs = multiprocessing.Pipe()
    os.write(theirs.fileno(), struct.pack("!i", 1000) + b"the first bytes of a thousand")
    theirs.close()
    killed = object.__new__(child.Child)
    killed.pipe, killed.task = ours, 1
    killed.process = types.SimpleNamespace(join=int, exitcode=-signal.SIGKILL)  # type: ignore[assignment]
    with pytest.raises(child.WorkerDiedError, match=r"was killed, possibly because memory ran out \(SIGKILL\)"):
        killed.receive(Progress())


def process_id(_: object) -> int:
    return os.getpid()


def allocated(num_bytes: int, _: Progress) -> int:
    return len(bytearray(num_bytes))


@pytest.mark.slow
def test_calls_share_a_process_until_one_kills_it_or_it_is_gone_or_ended() -> None:
    first = here.call(process_id, 1)
    with pytest.raises(SourceError, match="leave it out"):
        here.call(refused, "a.jsonl")
    assert here.call(process_id, 2) == first != os.getpid()
    with pytest.raises(child.WorkerDiedError) as caught:
        here.call(dying, "crash", 3)
    assert (caught.value.task, caught.value.how) == (3, "crashed (SIGSEGV)")
    second = here.call(process_id, 1)
    os.kill(second, signal.SIGKILL)
    while second in {process.pid for process in multiprocessing.active_children()}:
        time.sleep(0.01)
    third = here.call(process_id, 1)
    assert len({os.getpid(), first, second, third}) == 4
    here.end_idle()
    assert not psutil.pid_exists(third)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts mapped memory on Linux only")
def test_a_process_has_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, worker_memory=1 << 30, child_memory_bytes=lambda: 1 << 30, idle_workers=[])
    with pytest.raises(MemoryError):
        here.run(allocated, [2 << 30], processes=1)


GB = 1_000_000_000


@pytest.mark.parametrize(
    ("tasks", "wanted", "memory", "expected", "note"),
    [
        (3, None, 64 * GB, 0, ""),  # small
        (40, None, 64 * GB, 8, ""),
        (6, None, 64 * GB, 6, ""),
        (10, None, 64 * GB, 5, ""),  # eight would need two rounds, too
        (40, 3, 64 * GB, 3, ""),
        (40, 1, 64 * GB, 0, ""),
        (40, None, 4 * GB, 4, "4 workers instead of 8, since no more fit into 80 % of the machine's 4.0 GB"),
        (40, 8, 4 * GB, 8, ""),
        (40, None, 1 * GB, 0, "1 worker instead of 8"),
        (40, 16, 64 * GB, 14, ""),
    ],
)
def test_there_are_as_many_processes_as_cores_tasks_and_memory_allow(
    tasks: int, wanted: int | None, memory: int, expected: int, note: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    seams.put(monkeypatch, cores_of_workers=lambda: 8, memory_of_workers=lambda: memory)
    assert here.num_processes(tasks, task_bytes=100_000_000, wanted=wanted) == expected
    assert (note in caplog.text) if note else not caplog.text


def test_one_process_with_a_thread_for_each_core_does_more_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, cores_of_workers=lambda: 2)
    for tasks, threaded, expected in [(5, False, 2), (5, True, 0), (8, True, 2)]:
        assert here.num_processes(tasks, task_bytes=100_000_000, wanted=None, threaded=threaded) == expected
