"""Digest of the content of a small folder, such as a tokenizer's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

__all__ = ["bytes_digest"]


def bytes_digest(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over names and contents, sorted by name, as hex digits."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{len(files[name])}\0".encode())
        total.update(files[name])
    return total.hexdigest()
