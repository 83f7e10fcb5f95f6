"""Importing TensorFlow without the notes that it prints, not all of which can be turned off by a setting:

    WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
    I0000 00:00:1795341063.773306   29615 port.cc:153] oneDNN custom operations are on. …
    E0000 00:00:1795341078.929193   29615 cuda_platform.cc:52] failed call to cuInit: …

Its C++ code writes them directly to file descriptor 2. After the import, TF_CPP_MIN_LOG_LEVEL decides what is printed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import glob
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

__all__ = ["load"]

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def load(*, verbose: bool = False) -> None:
    """Import TensorFlow, and let it look for GPUs.

    Its notes are shown only if the import fails or it cannot use a GPU of this machine; with `verbose`, or if
    TF_CPP_MIN_LOG_LEVEL asks for notes, they are shown at once.

    Raises: ImportError.
    """
    asked_for = verbose or os.environ.setdefault(_LOG_LEVEL, "2") in ("0", "1")
    if asked_for or "tensorflow" in sys.modules or sys.stderr is None:
        importlib.import_module("tensorflow")
        return
    with _held_back() as notes:
        try:
            tensorflow = importlib.import_module("tensorflow")
            gpus = tensorflow.config.list_physical_devices("GPU")  # loads their libraries, which print notes too
        except Exception:
            notes.show()
            raise
        if _has_gpu() and not gpus:
            notes.show()


class _Notes:
    """Notes held back in a file, and the stream to show them on."""

    def __init__(self, *, file: IO[bytes], terminal: IO[bytes]) -> None:
        self._file = file
        self._terminal = terminal

    def show(self) -> None:
        sys.stderr.flush()
        self._file.seek(0)
        shutil.copyfileobj(self._file, self._terminal)


@contextlib.contextmanager
def _held_back() -> Iterator[_Notes]:
    """Redirect file descriptor 2 of the process to a temporary file."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file, open(os.dup(2), "wb", buffering=0) as terminal:
        os.dup2(file.fileno(), 2)
        # If the import kills the process (a processor without AVX), the file is lost: show at least the traceback.
        watched = not faulthandler.is_enabled()
        if watched:
            faulthandler.enable(terminal)
        try:
            yield _Notes(file=file, terminal=terminal)
        finally:
            if watched:
                faulthandler.disable()
            sys.stderr.flush()
            os.dup2(terminal.fileno(), 2)


def _has_gpu() -> bool:
    """Whether there is an NVIDIA GPU that is not hidden from this process."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    return bool(glob.glob("/dev/nvidia[0-9]*")) and not hidden
