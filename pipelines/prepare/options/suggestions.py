"""Remedies shared by several error messages."""

import codecs
import difflib
from collections.abc import Sequence


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return `did you mean 'text'? ` with the most similar known name, or an empty string if none is similar."""
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    return f"did you mean {lower[near[0]]!r}? " if near else ""


def to_utf8(content: bytes) -> str:
    """Return the remedy to convert a file to UTF-8, from UTF-16 if its `content` begins with that byte order mark."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "convert it to UTF-8: `iconv -f utf-16 -t utf-8 OLD > NEW`"
    return "convert it to UTF-8: if it is Latin-1, as older data often is, by `iconv -f latin1 -t utf-8 OLD > NEW`"
