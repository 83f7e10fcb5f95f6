"""The command line as processes that can be killed at any moment.

    plain      python -m pipelines.cli ...      all of it, seconds of imports included
    forked     a child of multiprocessing's fork server, which has imported the libraries and nothing else

A forked child is a process of its own with its own group, and SIGKILL is the same end for it; it only begins where the
imports of a plain one are over. The server never runs anything, so that there are no threads to be lost by a fork.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Outcome", "Running", "environment", "run", "start", "words"]

REPOSITORY = Path(__file__).resolve().parents[2]
_PRELOAD = ["scripts.torturing.warm"]
_SECONDS = 120.0

_context = multiprocessing.get_context("forkserver")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a process left: its exit status (negative: the signal that ended it), and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def is_error(self) -> bool:
        """Whether it ended as errors are to end: status 1 or 2, one line of cause, one of remedy, no traceback."""
        lines = self.err.splitlines()[-2:]
        return (
            self.status in (1, 2)
            and "Traceback" not in self.err
            and [line.partition(": ")[0] for line in lines] == ["error", "remedy"]
            and all(line.partition(": ")[2].strip() for line in lines)
        )

    @property
    def summary(self) -> dict[str, Any]:
        """The JSON document on stdout."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    def __str__(self) -> str:
        return f"status {self.status}: {' / '.join(self.err.split(chr(10))[-4:]).strip(' /')[-600:]}"


class Running:
    """A process at work. Its output goes to files, so that nobody needs to read along."""

    def __init__(self, arguments: list[str], *, plain: bool, before: Callable[[], None] | None) -> None:
        # Also where it puts its temporary files, which a killed process leaves behind.
        self._folder = tempfile.TemporaryDirectory(prefix="torture-", ignore_cleanup_errors=True)
        self._out, self._err = (Path(self._folder.name, name) for name in ("out", "err"))
        self._process: Any
        if plain:
            with self._out.open("wb") as out, self._err.open("wb") as err:
                env = {**os.environ, "TMPDIR": self._folder.name}
                self._process = subprocess.Popen(
                    words(*arguments), stdout=out, stderr=err, env=env, start_new_session=True
                )
        else:
            self._process = _context.Process(target=_child, args=(arguments, self._folder.name, before))
            self._process.start()

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self._status() is not None

    def kill(self) -> None:
        """SIGKILL to its whole group."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """A signal to its whole group, if it is still there."""
        if self.ended:
            return
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:  # so young that it has no group yet, or just over
            try:
                os.kill(self._process.pid, number)
            except ProcessLookupError:
                return

    def wait(self, seconds: float = _SECONDS) -> Outcome:
        """What it left when it was over; one that goes on for longer than `seconds` is killed."""
        deadline = time.monotonic() + seconds
        while (status := self._status()) is None:
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.002)
        outcome = Outcome(
            status=status,
            out=self._out.read_text(errors="replace") if self._out.exists() else "",
            err=self._err.read_text(errors="replace") if self._err.exists() else "",
        )
        self._folder.cleanup()
        return outcome

    def _status(self) -> int | None:
        found = self._process.poll() if isinstance(self._process, subprocess.Popen) else self._process.exitcode
        return None if found is None else int(found)


def words(*arguments: object) -> list[str]:
    """The words that start `prep-tfrecords ARGUMENTS` as a plain process."""
    return [sys.executable, "-m", "pipelines.cli", *map(str, arguments)]


def start(*arguments: object, plain: bool = False, before: Callable[[], None] | None = None) -> Running:
    """Starts `prep-tfrecords ARGUMENTS`. A forked process calls `before` first, which has to be picklable."""
    return Running([str(argument) for argument in arguments], plain=plain, before=before)


def run(*arguments: object, plain: bool = False, before: Callable[[], None] | None = None) -> Outcome:
    """Runs `prep-tfrecords ARGUMENTS` to its end."""
    return start(*arguments, plain=plain, before=before).wait()


def environment(home: Path) -> None:
    """Readies this process's environment for all others: the repository's packages, caches in `home`, no network.

    Has to come before any of the libraries is imported here or a process is started.
    """
    known = os.environ.get("PYTHONPATH")
    os.environ.update(
        PYTHONPATH=os.pathsep.join([str(REPOSITORY), known] if known else [str(REPOSITORY)]),
        HF_HOME=str(home),
        HF_HUB_OFFLINE="1",
        HF_DATASETS_OFFLINE="1",
        TRANSFORMERS_VERBOSITY="error",
        # A pool of threads that would be there before the fork.
        OPENBLAS_NUM_THREADS="1",
        # A killed child leaves semaphores registered, which are cleaned up with a warning when all is over.
        PYTHONWARNINGS="ignore::UserWarning:multiprocessing.resource_tracker",
    )
    for name in ("HF_DATASETS_CACHE", "HF_HUB_CACHE", "HF_TOKEN"):
        os.environ.pop(name, None)
    _context.set_forkserver_preload(_PRELOAD)


def _child(arguments: list[str], folder: str, before: Callable[[], None] | None) -> None:
    """A forked child: what `python -m pipelines.cli` does once its imports are over."""
    os.setsid()
    os.environ["TMPDIR"], tempfile.tempdir = folder, None
    for name, number in (("out", 1), ("err", 2)):
        descriptor = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    from pipelines.cli import commands

    if before is not None:
        before()
    commands.main(args=arguments, prog_name="prep-tfrecords")
