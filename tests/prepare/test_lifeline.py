"""A process that follows a lifeline ends with the block, or the process, that holds it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.prepare import lifeline
from tests import building

FOLLOWER = """
import sys, time
from pipelines.prepare import lifeline
lifeline.follow(sys.argv[1])
print("at work", flush=True)
time.sleep(300)
"""
LAUNCHER = """
import time
from pipelines.prepare import lifeline
with lifeline.held() as path:
    print(path, flush=True)
    time.sleep(300)
"""
# From the end of a launcher to the end of those that follow it, on a busy machine.
SOON = 20


@contextlib.contextmanager
def running(program: str, *arguments: object, home: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block. `home` gets its temporary files, where it cannot remove them."""
    words = [sys.executable, "-c", program, *map(str, arguments)]
    environment = building.environment() | ({"TMPDIR": str(home)} if home else {})
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said_by(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def test_everyone_who_follows_is_gone_when_the_block_ends() -> None:
    with contextlib.ExitStack() as stack:
        with lifeline.held() as path:
            followers = [stack.enter_context(running(FOLLOWER, path)) for _ in range(3)]
            assert [said_by(follower) for follower in followers] == ["at work"] * 3
            assert [follower.poll() for follower in followers] == [None] * 3
        assert [follower.wait(timeout=SOON) for follower in followers] == [0] * 3


def test_the_block_ends_by_an_error_too() -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(KeyboardInterrupt), lifeline.held() as path:
            follower = stack.enter_context(running(FOLLOWER, path))
            assert said_by(follower) == "at work"
            raise KeyboardInterrupt
        assert follower.wait(timeout=SOON) == 0


def test_who_follows_ends_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with running(LAUNCHER, home=tmp_path) as launcher, running(FOLLOWER, said_by(launcher)) as follower:
        assert said_by(follower) == "at work"
        launcher.kill()
        assert follower.wait(timeout=SOON) == 0


def test_who_begins_after_a_launcher_was_killed_ends_at_once(tmp_path: Path) -> None:
    with running(LAUNCHER, home=tmp_path) as launcher:
        path = said_by(launcher)
    assert Path(path).is_fifo(), "a launcher that is killed cannot remove it"
    with running(FOLLOWER, path) as follower:
        assert follower.wait(timeout=SOON) == 0


def test_who_begins_after_the_block_ends_at_once() -> None:
    with lifeline.held() as path:
        pass
    assert not Path(path).parent.exists()
    with running(FOLLOWER, path) as follower:
        assert follower.wait(timeout=SOON) == 0


def test_other_processes_of_the_launcher_do_not_keep_the_lifeline() -> None:
    """A process that the launcher starts has none of its ends, or it would hold up everybody else's."""
    with lifeline.held() as path, running("import os\nprint(*os.listdir('/proc/self/fd'))") as other:
        assert {int(number) for number in said_by(other).split()} <= {0, 1, 2, 3}, path


def test_a_command_is_safe_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "a folder; with $words" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$$" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with subprocess.Popen(lifeline.command("/tmp/a pipe"), shell=True, stdout=subprocess.PIPE, text=True) as shell:
        said = shell.communicate()[0].splitlines()
    assert said == [str(shell.pid), "-m", "pipelines.prepare.lifeline", "/tmp/a pipe"]


def test_nobody_else_may_open_the_pipe() -> None:
    with lifeline.held() as path:
        assert os.stat(path).st_mode & 0o777 == 0o600
