"""One job at a time in a folder: held while its process lives, whatever ends it, and gone without a trace."""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipelines.prepare.storage.local_storage import locked
from tests import building
from tests.support import limits
from tfrecord_io.errors import OutputError

HOLDER = """
import sys
from pipelines.prepare.storage.local_storage import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(root: object) -> None:
    with locked(str(root)):
        pass


def holder(root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(root)]
    process = subprocess.Popen(
        command, env=building.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    hold(tmp_path / "new" / "out")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_folder_that_a_killed_job_left_empty_goes_too(tmp_path: Path) -> None:
    (tmp_path / "out" / ".prep").mkdir(parents=True)
    hold(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_second_holder_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    with (
        locked(str(tmp_path)),
        pytest.raises(OutputError, match=rf"another job is running in this folder \(process {os.getpid()} on "),
    ):
        hold(tmp_path)
    hold(tmp_path)


@pytest.mark.slow
def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        with pytest.raises(OutputError, match=f"process {process.pid} on "):
            hold(tmp_path)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=limits.ANSWER)
    hold(tmp_path)


@pytest.mark.slow
def test_never_two_at_once_however_many_try(tmp_path: Path) -> None:
    """Deleting the lock file on release must not admit two holders, one with the old file and one with a new one."""
    inside, most, entered = 0, 0, 0
    count = threading.Lock()

    def work() -> None:
        nonlocal inside, most, entered
        for _ in range(100):
            with contextlib.suppress(OutputError), locked(str(tmp_path / "out")):
                with count:
                    inside, entered = inside + 1, entered + 1
                    most = max(most, inside)
                with count:
                    inside -= 1

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work) for _ in range(4)]:
            done.result()
    assert most == 1
    assert entered > 10


def test_a_file_system_without_locks_is_used_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    hold(tmp_path)
    assert "has no locks" in caplog.text


def test_where_nothing_can_be_written_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="Not a directory"):
        hold(tmp_path / "file" / "out")


def test_other_file_systems_have_no_lock() -> None:
    with locked("memory://bucket/out"):
        hold("memory://bucket/out")
