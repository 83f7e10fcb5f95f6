"""The source, opened by a process of its own while this one imports its libraries.

    begin ──────► main, in a process of its own
      │                                │
    transformers, Beam,            datasets; data files become Arrow files
    kernels, the tokenizer             │
      ▼                                ▼
    awaited ◄──── a Source or the error, and what was logged, through a pipe

Both take seconds and most of them hold the interpreter, so that threads would gain little. Whatever goes wrong with the
process itself costs only the time: then the source is opened here. It ends when its launcher does, however that ends:
it holds the other end of the pipe that it reads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pipelines.prepare import imports
from pipelines.prepare.config import SourceConfig
from tfrecord_io.errors import PrepError

if TYPE_CHECKING:  # what it needs would keep the process from being started at once
    from pipelines.prepare.opened import Source

__all__ = ["awaited", "begin", "main"]

# Of about 200 MB each, to prepare files; what reads and writes disks gains little from more.
_MOST_PROCESSES = 16

# With our own search path: by itself Python would look in the current folder first, and find a datasets.py there.
_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from pipelines.prepare import early_source; early_source.main()"

_log = logging.getLogger(__name__)


class _Begun(NamedTuple):
    config: SourceConfig
    process: subprocess.Popen[bytes]


_begun: list[_Begun] = []


def begin(config: SourceConfig) -> None:
    """Opens a source in a process of its own, unless `datasets` is here already: then it is quicker here."""
    if "datasets" in sys.modules:
        return
    with contextlib.suppress(OSError):  # no process to be had
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(logging.getLogger().getEffectiveLevel()), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        _begun.append(_Begun(config, process))
        assert process.stdin is not None
        pickle.dump(config, process.stdin)
        process.stdin.flush()


def awaited(config: SourceConfig) -> Source:
    """The source that was begun to be opened, or else one that is opened here and now.

    Raises: as `loading.open_source`.
    """
    answer = None
    while _begun:
        begun = _begun.pop()
        if begun.config == config:
            answer = _received(begun.process)
        else:
            _end(begun.process)
    if answer is None:
        return _opened(config)
    result, logged = pickle.loads(answer)
    for record in logged:
        if (logger := logging.getLogger(record.name)).isEnabledFor(record.levelno):
            logger.handle(record)
    if isinstance(result, PrepError):
        raise result
    opened: Source = result
    return opened


def _opened(config: SourceConfig, *, processes: int = 1) -> Source:
    with imports.one_at_a_time:
        from pipelines.prepare.loading import open_source  # with `datasets`, which takes most of a second

    return open_source(config, processes=processes)


def _received(process: subprocess.Popen[bytes]) -> bytes | None:
    """None if the process ended without an answer."""
    assert process.stdout is not None
    try:
        answer = process.stdout.read()
        process.wait()
    finally:
        _end(process)
    if process.returncode == 0:
        return answer
    _log.info("the process that was to open the source ended with status %d; it is opened here", process.returncode)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()
    process.wait()


def main() -> None:
    """Reads a config, opens its source, writes the answer."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the launcher says what was interrupted
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    # A fork that outlives this process must not keep the launcher waiting for more.
    os.register_at_fork(after_in_child=answers.close)
    config = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    with _logged(level=int(sys.argv[1])) as logged:
        try:
            result: object = _opened(config, processes=min(len(os.sched_getaffinity(0)), _MOST_PROCESSES))
        except PrepError as error:
            result = error
        except Exception:  # the launcher, which then opens the source itself, says what is wrong with it
            os._exit(1)
    with answers:
        pickle.dump((result, logged), answers)
    # Nothing is left to do, and the libraries take their time to end.
    os._exit(0)


def _end_with_launcher() -> None:
    # Not through `sys.stdin`: whoever reads from it holds its lock, which a fork would wait for to close it.
    while os.read(0, 1):
        pass
    os._exit(1)


@contextlib.contextmanager
def _logged(*, level: int) -> Iterator[list[logging.LogRecord]]:
    """Keeps what is logged, in a form that can be pickled."""
    kept: list[logging.LogRecord] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            record.msg, record.args = record.getMessage(), None
            record.exc_info = record.exc_text = record.stack_info = None
            kept.append(record)

    root, keeper = logging.getLogger(), Keeper()
    root.addHandler(keeper)
    root.setLevel(level)
    try:
        yield kept
    finally:
        root.removeHandler(keeper)
