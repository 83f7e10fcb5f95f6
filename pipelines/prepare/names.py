"""What somebody may have meant by a name that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

__all__ = ["suggestion"]


def suggestion(name: str, known: Sequence[str]) -> str:
    """`did you mean 'text'? ` where one of the known names is like this one, else nothing."""
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    return f"did you mean {lower[near[0]]!r}? " if near else ""
