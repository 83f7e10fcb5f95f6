"""Remedies that several errors share."""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Sequence

__all__ = ["suggestion", "to_utf8"]


def suggestion(name: str, known: Sequence[str]) -> str:
    """`did you mean 'text'? ` where one of the known names is like this one, else nothing."""
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    return f"did you mean {lower[near[0]]!r}? " if near else ""


def to_utf8(content: bytes) -> str:
    """How to convert a file that holds `content`: a byte order mark says that it is UTF-16."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "convert it to UTF-8: `iconv -f utf-16 -t utf-8 OLD > NEW`"
    return (
        "convert it to UTF-8: if it is Latin-1, as much of the older data is, by `iconv -f latin1 -t utf-8 OLD > NEW`"
    )
