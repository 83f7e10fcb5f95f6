"""What the command lines of several scripts have in common."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Iterable

__all__ = ["add_only", "add_output", "positive"]


def positive(text: str) -> int:
    """For argparse: a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}, expected at least 1")
    return number


def add_only(parser: argparse.ArgumentParser, sections: Iterable[str]) -> None:
    """--only, which sections to run."""
    names = list(sections)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))


def add_output(parser: argparse.ArgumentParser) -> None:
    """--workdir and --json, where things go."""
    parser.add_argument("--workdir", type=pathlib.Path, metavar="DIR", help="kept afterwards; default: a temporary one")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout, the table on stderr")
