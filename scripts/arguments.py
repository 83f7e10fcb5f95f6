"""What the command lines of several scripts have in common."""

import argparse
from collections.abc import Iterable


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
