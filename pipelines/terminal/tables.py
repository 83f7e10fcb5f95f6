"""The console that tables and lines for people go to, with names and texts in them that are somebody else's.

A text stays what it is: `[/INST]` is no markup, `:heart:` no emoji, and an escape sequence is spelt out. That is done
here, at the one place that every text passes on its way to the terminal.
"""

from __future__ import annotations

import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfrecord_io.shown import visible

__all__ = ["console", "table"]

_FILE_COLUMNS = 120


class _Console(Console):
    """rich turns every plain text into its own by `render_str`: lines, cells, headers and titles."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def console() -> Console:
    """Where people look: stderr, as wide as a terminal, or 120 columns in a file."""
    width = None if sys.stderr.isatty() else _FILE_COLUMNS
    return _Console(file=sys.stderr, width=width, highlight=False, markup=False, emoji=False)


def table(*names: str, numbers: int = 0, **options: Any) -> Table:
    """A table with these columns, whose cells show all of a long word. The last `numbers` columns hold numbers: at the
    right, and never broken.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title_justify="left", **options)
    for at, name in enumerate(names):
        number = at >= len(names) - numbers
        made.add_column(name, overflow="fold", justify="right" if number else "left", no_wrap=number)
    return made
