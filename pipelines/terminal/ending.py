"""End a program cleanly: handle signals reliably, and remove the temporary folder."""

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_AGAIN_SECONDS = 0.05


class TerminatedError(KeyboardInterrupt):
    """Raised on SIGTERM, which schedulers send to stop a job."""

    signal_number = signal.SIGTERM


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C. Where Python would discard the exception, send the signal again a moment later."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with contextlib.ExitStack() as restored:
        for number, error in ((signal.SIGTERM, TerminatedError), (signal.SIGINT, KeyboardInterrupt)):
            if number == signal.SIGINT and signal.getsignal(number) is not signal.default_int_handler:
                continue  # ignored by the parent process, or handled by the caller
            restored.callback(signal.signal, number, signal.signal(number, _raising(error)))
        yield


def _raising(error: type[KeyboardInterrupt]) -> Callable[[int, FrameType | None], None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        if _is_discarded(frame):
            again = threading.Timer(_AGAIN_SECONDS, os.kill, [os.getpid(), number])
            again.daemon = True
            again.start()
        else:
            raise error

    return interrupt


def _is_discarded(frame: FrameType | None) -> bool:
    # Python may discard an exception in finalizers and in callbacks from LLVM (ctypes).
    while frame is not None:
        if frame.f_code.co_name == "__del__" or str(frame.f_globals.get("__name__")).startswith("llvmlite."):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def own_temporary_folder() -> Iterator[None]:
    """Keep temporary files of this process and its children in one folder, and remove the folder at the end.

    For users without a home folder, HOME is also set to this folder.
    """
    before = os.environ.get("TMPDIR", "")
    with contextlib.ExitStack() as removed:
        with contextlib.suppress(OSError):  # the first use of a temporary file will report the error
            folder = tempfile.TemporaryDirectory(prefix="prep-tfrecords-", ignore_cleanup_errors=True)
            os.environ["TMPDIR"] = tempfile.tempdir = removed.enter_context(folder)
            if os.path.expanduser("~") == "~":  # as with a container's --user; kagglehub needs a home
                os.environ["HOME"] = folder.name
                removed.callback(os.environ.pop, "HOME", None)
        try:
            yield
        finally:
            os.environ["TMPDIR"], tempfile.tempdir = before, None
