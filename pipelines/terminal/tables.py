"""Print tables and lines with text from data literally: `[/INST]` is not markup, and `:heart:` is not an emoji."""

import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from pipelines.terminal.console import is_quiet
from tfrecord_io.shown import visible

_FILE_COLUMNS = 120
_TABLE_COLUMNS, _NAME_COLUMNS = 80, 20


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)  # for plain strings


def console(file: TextIO | None = None, *, always: bool = False) -> Console:
    """Return a console that writes to `file`, by default stderr. With --quiet it prints nothing, unless `always`."""
    file = file or sys.stderr
    width, quiet = None if file.isatty() else _FILE_COLUMNS, is_quiet() and not always
    return _Console(file=file, width=width, highlight=False, markup=False, emoji=False, quiet=quiet)


def table(*names: str, rows: Iterable[Iterable[str]], numbers: int = 0, **options: Any) -> Constrain:
    """Return a table that is at most 80 characters wide. The last `numbers` columns are aligned to the right.

    If the numbers need more room, rows become columns.
    """
    lines = [names, *map(tuple, rows)]
    widths = [max(map(cell_len, column)) + 2 for column in zip(*lines, strict=True)]
    if numbers == len(names) - 1 and sum(widths[1:]) + min(widths[0], _NAME_COLUMNS) > _TABLE_COLUMNS:
        lines, numbers = list(zip(*lines, strict=True)), len(lines) - 1
    rendered = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, title_justify="left", **options
    )
    for at, name in enumerate(lines[0]):
        number = at >= len(lines[0]) - numbers
        rendered.add_column(name, overflow="fold", justify="right" if number else "left", no_wrap=number)
    for row in lines[1:]:
        rendered.add_row(*row)
    return Constrain(rendered, _TABLE_COLUMNS)
