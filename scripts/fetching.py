"""What the scripts that fetch a program for the tests have in common: its path on stdout, or why it is not there."""

import pathlib
import sys
from collections.abc import Callable


class NotFetchedError(Exception):
    """There is no such program, and the reason why."""


def print_path(fetch: Callable[[], pathlib.Path], *, program: str, remedy: str) -> int:
    """Print what `fetch` returns, or why it raises NotFetchedError and what to do. Returns: the exit status."""
    try:
        print(fetch())
    except NotFetchedError as error:
        print(f"error: no {program}: {error}", file=sys.stderr)
        print(f"remedy: {remedy}", file=sys.stderr)
        return 1
    return 0
