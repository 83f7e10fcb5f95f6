"""What ties worker processes on this machine to the launcher that started them: they end when it does.

    launcher ──── holds a named pipe open for writing, and never writes
                       │
    workers  ──── wait for its end, each in a thread of its own

However the launcher ends, the system closes its end of the pipe, and every worker reads the end of the file at once.
That needs no polling, no process numbers that may meanwhile be another's, and nothing from a launcher that is killed.
A worker that begins only then finds no pipe, or one that nobody holds, and ends before it has imported anything.

Run as a program, this module is a Beam worker on a lifeline: `python -m pipelines.prepare.lifeline PIPE`, with Beam's
addresses in the environment. Importing it costs nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

__all__ = ["command", "follow", "held"]

# A worker's threads let go of the interpreter often enough; the system takes its time for the memory of a large one.
_GONE_SECONDS = 5.0
_POLL_SECONDS = 0.02


@contextlib.contextmanager
def held() -> Iterator[str]:
    """The launcher's side: gives the pipe's path, and ends every process that follows it on the way out."""
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
        path = os.path.join(folder, "lifeline")
        os.mkfifo(path, 0o600)
        # Nobody can open a pipe for writing that nobody reads. No process that this one starts inherits either end.
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(path, os.O_WRONLY)
        os.close(reader)
        try:
            yield path
        finally:
            os.close(writer)
            _wait_until_gone(path)


def _wait_until_gone(path: str) -> None:
    """So that whoever takes the folder's lock next has it alone."""
    give_up = time.monotonic() + _GONE_SECONDS
    while time.monotonic() < give_up and _has_followers(path):
        time.sleep(_POLL_SECONDS)


def _has_followers(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return False
    return True


def command(path: str) -> str:
    """The shell's words for a worker that follows `path`. The shell becomes the worker: what ends one ends both."""
    return f"exec {shlex.quote(sys.executable)} -m pipelines.prepare.lifeline {shlex.quote(path)}"


def follow(path: str) -> None:
    """A worker's side: from now on, this process ends when the launcher does. Ends it at once if that is gone.

    The exit status is 0: Beam's thread in a launcher that outlives its job has nothing to report.
    """
    try:
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        os._exit(0)
    os.set_blocking(reader, True)

    def wait() -> None:
        while os.read(reader, 1):
            pass
        os._exit(0)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def _main() -> None:
    follow(sys.argv[1])
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


if __name__ == "__main__":
    _main()
