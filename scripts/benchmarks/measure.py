"""Run a command in a separate process, and measure its time, CPU time and memory, including its children.

Memory has two figures. `tree_bytes` is the largest sum of proportional set sizes over the command's processes, sampled
ten times a second: the memory that the machine needs, with shared pages counted once. `process_bytes` is the kernel's
high-water mark of the largest process, which doesn't depend on sampling.

`cpu_seconds` covers the command and every descendant that was waited for.
"""

import contextlib
import dataclasses
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

import psutil

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = (sys.executable, "-m", "prep_tfrecords")
_SAMPLE_SECONDS = 0.1
_TAIL_LINES = 30


class CommandFailedError(Exception):
    """A measured command failed; the message contains the end of its stderr."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Result of a command: wall-clock and CPU seconds, peak memory of all processes and of the largest, and output."""

    seconds: float
    cpu_seconds: float
    tree_bytes: int
    process_bytes: int
    stdout: str


def run(command: Sequence[str], *, env: Mapping[str, str] | None = None, cores: int = 0) -> Run:
    """Run a command in the repository's root and measure it. `env`: more variables; `cores`: maximum, or 0 for all.

    Raises: CommandFailedError if its exit status is not 0.
    """
    # Modules are compiled once, like an installed package's.
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    pinned = ["taskset", "--cpu-list", f"0-{cores - 1}"] if cores else []
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        started = time.perf_counter()
        process = subprocess.Popen(
            [*pinned, *command],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=REPOSITORY,
            env={**ours, "PYTHONPATH": str(REPOSITORY), **(env or {})},
        )
        ended, peak = os.pidfd_open(process.pid), 0
        while not select.select([ended], [], [], _SAMPLE_SECONDS)[0]:
            peak = max(peak, _tree_bytes(process.pid))
        seconds = time.perf_counter() - started
        os.close(ended)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        stdout.seek(0)
        stderr.seek(0)
        if process.returncode != 0:
            tail = "\n".join(stderr.read().strip().splitlines()[-_TAIL_LINES:])
            raise CommandFailedError(f"exit status {process.returncode} of: {' '.join(command)}\n{tail}")
        process_bytes = usage.ru_maxrss * 1024
        return Run(
            seconds=seconds,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            tree_bytes=max(peak, process_bytes),
            process_bytes=process_bytes,
            stdout=stdout.read(),
        )


def _tree_bytes(pid: int) -> int:
    total = 0
    with contextlib.suppress(psutil.Error):  # it ended meanwhile
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total


@contextlib.contextmanager
def fresh_caches(workdir: pathlib.Path) -> Iterator[dict[str, str]]:
    """Yield environment variables for a run with empty caches, and delete the caches afterwards.

    With a shared cache, `datasets` would load the first run's result in the second.
    """
    with tempfile.TemporaryDirectory(prefix="caches-", dir=workdir) as folder:
        caches = {"HF_HOME": folder, "HF_DATASETS_CACHE": f"{folder}/datasets", "TMPDIR": folder}
        yield {**caches, "HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def warm_pages(folder: pathlib.Path) -> None:
    """Read every file below `folder`, so that its content is in the page cache of Linux."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.read_bytes()
