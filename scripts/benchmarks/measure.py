"""Run a command in a separate process, and measure its time, CPU time and memory, including its children.

Memory has two figures. `tree_bytes` is the largest sum of proportional set sizes over all processes of the command's
session, sampled ten times a second from /proc: the memory that the machine needs, with shared pages counted once.
`process_bytes` is the kernel's high-water mark of the largest process, which doesn't depend on sampling.

`cpu_seconds` covers the command and every descendant that was waited for.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = (sys.executable, "-m", "prep_tfrecords")
_SAMPLE_SECONDS = 0.1
_TAIL_LINES = 30


class CommandFailedError(Exception):
    """A measured command failed; the message holds the end of its stderr."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Finished command: wall-clock and CPU seconds, peak memory, and output."""

    seconds: float
    cpu_seconds: float
    tree_bytes: int
    process_bytes: int
    stdout: str

    @property
    def result(self) -> dict[str, Any]:
        """JSON object on the last line of stdout."""
        return dict(json.loads(self.stdout.strip().splitlines()[-1]))


def run(command: Sequence[str], *, env: Mapping[str, str] | None = None, cores: int = 0) -> Run:
    """Run the command in the repository's root, on the first `cores` cores, or on all of them.

    Raises: CommandFailedError if its exit status is not 0.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        started = time.perf_counter()
        process = subprocess.Popen(
            [*(["taskset", "--cpu-list", f"0-{cores - 1}"] if cores else []), *command],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=REPOSITORY,
            env={**_environment(), "PYTHONPATH": str(REPOSITORY), **(env or {})},
            start_new_session=True,
        )
        with _sampled(process.pid) as peak, _ended_with_us(process.pid):
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise CommandFailedError(_failure(command, process.returncode, _text(stderr)))
        process_bytes = usage.ru_maxrss * 1024
        tree_bytes = max(peak[0], process_bytes)
        return Run(
            seconds=seconds,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            tree_bytes=tree_bytes,
            process_bytes=process_bytes,
            stdout=_text(stdout),
        )


def _environment() -> dict[str, str]:
    """Return our environment, except that modules are compiled once, like an installed package's."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@contextlib.contextmanager
def fresh_caches(workdir: pathlib.Path) -> Iterator[dict[str, str]]:
    """Yield environment variables for one run with empty caches, and delete the caches afterwards.

    datasets keys its cache by fingerprint: with a shared cache, the second run of a script would load the first result.
    """
    folder = pathlib.Path(tempfile.mkdtemp(prefix="caches-", dir=workdir))
    (folder / "tmp").mkdir()
    try:
        yield {
            "HF_HOME": str(folder / "hf"),
            "HF_DATASETS_CACHE": str(folder / "hf" / "datasets"),
            "HF_MODULES_CACHE": str(folder / "hf" / "modules"),
            "TMPDIR": str(folder / "tmp"),
            "HF_HUB_OFFLINE": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def warm_pages(folder: pathlib.Path) -> None:
    """Read every file once, so that the first contender doesn't pay for the disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(1 << 24):
                    pass


@contextlib.contextmanager
def _sampled(session: int) -> Iterator[list[int]]:
    """Yield a list of one number: the largest sum of proportional set sizes of the session's processes."""
    peak, done = [0], threading.Event()

    def sample() -> None:
        while not done.wait(_SAMPLE_SECONDS):
            peak[0] = max(peak[0], _session_bytes(session))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def _ended_with_us(session: int) -> Iterator[None]:
    """End the command's processes if we are interrupted: Ctrl-C doesn't reach another session."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session, signal.SIGTERM)
        raise


def _session_bytes(session: int) -> int:
    total = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = pathlib.Path(entry.path, "stat").read_text()
        except OSError:  # it ended meanwhile
            continue
        # proc(5): pid (name) state ppid pgrp session ...; the name may hold spaces.
        if int(stat.rpartition(")")[2].split()[3]) == session:
            with contextlib.suppress(OSError):
                shares = pathlib.Path(entry.path, "smaps_rollup").read_text().partition("\nPss:")[2].split()
                total += int(shares[0]) * 1024 if shares else 0
    return total


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))


def _failure(command: Sequence[str], status: int, stderr: str) -> str:
    tail = "\n".join(stderr.strip().splitlines()[-_TAIL_LINES:])
    return f"exit status {status} of: {' '.join(command)}\n{tail}"
