"""Local path that a name stands for, by its form alone: the file may be missing."""

from __future__ import annotations

import os
import pathlib

__all__ = ["local_path"]

_SCHEMES = ("file://", "local://")


def local_path(name: str) -> str | None:
    """Return the absolute path for the operating system, or None for an address such as gs://bucket/out.

    `~`, empty parts and `.` are resolved; `..` stays, since it may follow a link.
    """
    for scheme in _SCHEMES:
        name = name.removeprefix(scheme)
    return None if "://" in name else str(pathlib.Path(os.getcwd(), os.path.expanduser(name)))
