"""Worker processes: results as they come, errors as they were, and deaths that are told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipelines.prepare.process import workers
from tests import building
from tfrecord_io.errors import SourceError


def multiplied(factor: int, task: int) -> tuple[int, int]:
    return factor * task, os.getpid()


def refused(_: None, task: str) -> None:
    raise SourceError(f"{task}: no good", remedy="leave it out")


def dying(way: str, task: int) -> int:
    if task == 3:
        if way == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        os._exit(7)
    return task


def sleeping(folder: str, task: int) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(100)


def test_each_task_is_done_once_by_processes_of_their_own() -> None:
    done = dict(workers.run(multiplied, range(20), context=3, processes=2))
    assert {task: product for task, (product, _) in done.items()} == {task: 3 * task for task in range(20)}
    pids = {pid for _, pid in done.values()}
    assert os.getpid() not in pids
    assert len(pids) <= 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_an_error_is_that_of_the_function() -> None:
    with pytest.raises(SourceError) as caught:
        list(workers.run(refused, ["a.jsonl"], context=None, processes=2))
    assert (caught.value.cause, caught.value.remedy) == ("a.jsonl: no good", "leave it out")


@pytest.mark.parametrize(("way", "how"), [("crash", "crashed (SIGSEGV)"), ("exit", "ended with status 7")])
def test_a_process_that_dies_is_told_with_its_task(way: str, how: str) -> None:
    with pytest.raises(workers.WorkerDiedError) as caught:
        list(workers.run(dying, range(5), context=way, processes=2))
    assert (caught.value.task, caught.value.how) == (3, how)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_their_launcher(number: signal.Signals, tmp_path: Path) -> None:
    """The launcher is a script without a guard for its main module."""
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "from pipelines.prepare.process import workers\n"
        "from tests.prepare.process.test_workers import sleeping\n"
        "list(workers.run(sleeping, [1, 2], context=sys.argv[1], processes=2))\n"
    )
    (tmp_path / "pids").mkdir()
    launcher = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "pids")], env=building.environment(), stderr=subprocess.DEVNULL
    )
    while len(pids := [int(each.name) for each in (tmp_path / "pids").iterdir()]) < 2:
        assert launcher.poll() is None
        time.sleep(0.05)
    launcher.send_signal(number)
    launcher.wait(60)
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(60)


def process_id(*_: object) -> int:
    return os.getpid()


def allocated(_: None, num_bytes: int) -> int:
    return len(bytearray(num_bytes))


def test_calls_share_a_process_of_their_own() -> None:
    first, second = workers.call(process_id), workers.call(process_id, 1)
    assert first == second != os.getpid()


def test_a_call_that_kills_its_process_is_told_and_the_next_one_has_another() -> None:
    first = workers.call(process_id)
    with pytest.raises(workers.WorkerDiedError) as caught:
        workers.call(dying, "crash", 3)
    assert (caught.value.task, caught.value.how) == (3, "crashed (SIGSEGV)")
    assert workers.call(process_id) != first


def test_an_error_of_a_call_is_that_of_the_function_and_spares_the_process() -> None:
    first = workers.call(process_id)
    with pytest.raises(SourceError, match="leave it out"):
        workers.call(refused, None, "a.jsonl")
    assert workers.call(process_id) == first


def test_an_idle_process_that_is_gone_is_replaced() -> None:
    psutil.Process(workers.call(process_id)).kill()
    assert workers.call(process_id) != os.getpid()


@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts mapped memory on Linux only")
def test_a_process_has_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_memory", lambda: 1 << 30)
    with pytest.raises(MemoryError):
        list(workers.run(allocated, [2 << 30], context=None, processes=1))
