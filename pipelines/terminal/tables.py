"""Print tables and lines with names and texts from data, literally: `[/INST]` is not markup, `:heart:` no emoji."""

import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from pipelines.terminal.console import is_quiet
from tfrecord_io.shown import visible

_FILE_COLUMNS = 120
_TABLE_COLUMNS = 80


class _Console(Console):
    """Console that escapes markup in plain strings, which Rich passes to `render_str`."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def console(file: TextIO | None = None, *, always: bool = False) -> Console:
    """Return a console on `file`, by default stderr. With --quiet it prints nothing, unless `always`."""
    file = file or sys.stderr
    width, quiet = None if file.isatty() else _FILE_COLUMNS, is_quiet() and not always
    return _Console(file=file, width=width, highlight=False, markup=False, emoji=False, quiet=quiet)


def table(*names: str, rows: Iterable[Iterable[str]], numbers: int = 0, **options: Any) -> Constrain:
    """Return a table at most 80 characters wide. The last `numbers` columns are right-aligned."""
    rendered = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title_justify="left", **options)
    for at, name in enumerate(names):
        number = at >= len(names) - numbers
        rendered.add_column(name, overflow="fold", justify="right" if number else "left", no_wrap=number)
    for row in rows:
        rendered.add_row(*row)
    return Constrain(rendered, _TABLE_COLUMNS)


def duration(seconds: float) -> str:
    """Format a duration: 3.2 s, 12 min, 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60:,} h {minutes % 60} min"
