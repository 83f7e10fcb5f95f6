"""Storage of which one operation fails, or all from one on, with the error of a broken disk or a lost connection (EIO).

    failing:///path      an object store on top of a local folder: an object is there when its upload is complete
    local folders        fsync and rename, the two steps at which a local write becomes safe and visible

Every operation is counted and written down, so that a run in which none fails tells how many there are and which.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import io
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

__all__ = ["PROTOCOL", "Faults", "break_local", "break_store"]

PROTOCOL = "failing"
_FAILED = "failed: "


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults:
    """Which operation fails, counted from 1 (0: none), and whether all after it do too. `log` gets a line for each."""

    log: str
    fail_at: int = 0
    lasting: bool = False

    def logged(self) -> tuple[int, str]:
        """The number of operations in the run, and the first that failed, if any did."""
        lines = Path(self.log).read_text(encoding="utf-8").splitlines()
        return len(lines), next((line for line in lines if line.startswith(_FAILED)), "none failed")


class _Counter:
    """Counts operations, of all threads together."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._count = 0
        self._lock = threading.Lock()

    def operation(self, name: str, path: str) -> None:
        """Raises: OSError if it is this operation's turn to fail."""
        with self._lock:
            self._count += 1
            faults = self._faults
            failed = self._count == faults.fail_at or (faults.lasting and 0 < faults.fail_at < self._count)
            with open(faults.log, "a", encoding="utf-8") as log:
                log.write(f"{_FAILED if failed else ''}{name} {path}\n")
        if failed:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)


_counter = _Counter(Faults(log=os.devnull))


def break_store(faults: Faults) -> None:
    """Makes `failing://` known to this process."""
    global _counter
    _counter = _Counter(faults)
    fsspec.register_implementation(PROTOCOL, FailingStore, clobber=True)


def break_local(faults: Faults, folder: str) -> None:
    """Lets fsync and rename fail in this process, for files below `folder`."""
    counter = _Counter(faults)

    def counted(name: str, function: Callable[..., Any], path_of: Callable[..., str]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(first: Any, *rest: Any, **options: Any) -> Any:
            if (path := path_of(first)).startswith(folder):
                counter.operation(name, path)
            return function(first, *rest, **options)

        return call

    os.fsync = counted("fsync", os.fsync, lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))
    os.replace = counted("rename", os.replace, os.fspath)


class FailingStore(AbstractFileSystem):
    """The operations that a store has, each of which can fail before it does anything."""

    protocol = PROTOCOL
    cachable = False
    root_marker = "/"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + str(path).removeprefix(f"{PROTOCOL}://").strip("/")

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        inner = self._strip_protocol(path)
        _counter.operation("list", inner)
        if os.path.isfile(inner):
            return [_entry(inner) if detail else inner]
        paths = [os.path.join(inner, name) for name in sorted(os.listdir(inner))]
        return [_entry(each) for each in paths] if detail else paths

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        inner = self._strip_protocol(path)
        _counter.operation("info", inner)
        return _entry(inner)

    def exists(self, path: str, **kwargs: Any) -> bool:
        # As the stores of fsspec do it; its own default takes every error for "no".
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        inner = self._strip_protocol(path)
        _counter.operation("get", inner)
        return Path(inner).read_bytes()[start:end]

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        inner = self._strip_protocol(path)
        _counter.operation("delete", inner)
        if os.path.isdir(inner):
            shutil.rmtree(inner)
        else:
            os.unlink(inner)

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        inner = self._strip_protocol(path)
        _counter.operation(f"open {mode}", inner)
        return _Download(Path(inner)) if mode == "rb" else _Upload(Path(inner))


class _Download(io.BytesIO):
    def __init__(self, path: Path) -> None:
        super().__init__(path.read_bytes())
        self._path = path

    def read(self, size: int | None = -1, /) -> bytes:
        _counter.operation("read", str(self._path))
        return super().read(size)


class _Upload:
    """Nothing is visible until `close` has succeeded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = bytearray()

    def write(self, chunk: Any) -> int:
        _counter.operation("write", str(self._path))
        self._content += chunk
        return len(chunk)

    def close(self) -> None:
        _counter.operation("commit", str(self._path))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(self._content)

    def discard(self) -> None:
        self._content.clear()


def _entry(path: str) -> dict[str, Any]:
    if os.path.isdir(path):
        return {"name": path, "size": 0, "type": "directory"}
    return {"name": path, "size": os.path.getsize(path), "type": "file"}
