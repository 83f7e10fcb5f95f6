"""Charts as inline SVG: bars, and a curve.

Written here rather than by a plotting library: matplotlib (35 MB installed, 45 MB of fonts and Pillow beside it) writes
23 kB of paths with fixed colours and no text for screen readers for one chart of 60 bars, and plotly.js and Bokeh put a
program of megabytes into the page. These charts take 4 kB, follow the page's light and dark colours, and are the same
bytes for the same figures.

Horizontal positions are percentages of the drawing, vertical ones pixels, so that a chart fills a phone or a desktop
while its text keeps its size:

    |      __      :            y from 0 (top) to _HEIGHT
    |  __ |  | __  :            bars
    |_|__||__||__|_:___         : a mark with its name, such as the cut
    0            L
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup
from markupsafe import escape as escape_markup

from pipelines.prepare.report.elements import Chart, Table
from tfrecord_io.shown import visible

__all__ = ["bar_edges", "bars", "curve", "ticks_of"]

_HEIGHT = 180
# Above the highest bar, for the names of marks; below the axis, for its numbers.
_TOP, _BOTTOM = 34, 24
# In per cent of the width: most names of marks fit between a mark and the edge from here on.
_TURN = 62.0
# Share of the width that a bar has at most.
_WIDEST = 0.2


def bars(
    heights: Sequence[float],
    *,
    title: str,
    says: str,
    values: Table,
    ticks: Iterable[tuple[float, str]],
    marks: Iterable[tuple[float, str]] = (),
    highest: str = "",
    edges: Sequence[float] | None = None,
) -> Chart:
    """Draw bars side by side. `edges`: where they begin and end as shares of the width; default: all equally wide.

    ticks: positions (shares of the width) and texts below the axis. marks: the same of vertical lines. highest: the
    text of the highest bar's value.
    """
    edges = edges or bar_edges(len(heights))
    most = max([*heights, 1e-12])
    room = _HEIGHT - _TOP - _BOTTOM
    drawn = []
    for (start, stop), value in zip(itertools.pairwise(edges), heights, strict=True):
        if value > 0:
            height = max(value / most * room, 1.0)
            left, width = 100 * start, 100 * (stop - start)
            gap = min(0.15 * width, 0.3)
            drawn.append(
                f'<rect x="{left + gap / 2:.2f}%" y="{_HEIGHT - _BOTTOM - height:.1f}" width="{width - gap:.2f}%" '
                f'height="{height:.1f}"/>'
            )
    if highest:
        at = heights.index(max(heights)) if heights else 0
        drawn.append(_text(100 * (edges[at] + edges[at + 1]) / 2, _TOP - 5, highest, kind="value"))
    return _chart([*drawn, _axis(), *_ticks(ticks), *_marks(marks)], title=title, says=says, values=values)


def bar_edges(count: int) -> list[float]:
    """Return where `count` bars of one width begin and end, as shares of the drawing's width; few stay slim."""
    width = min(1 / max(count, 1), _WIDEST)
    return [index * width for index in range(count + 1)]


def curve(
    points: Sequence[tuple[float, float]],
    *,
    title: str,
    says: str,
    values: Table,
    ticks: Iterable[tuple[float, str]],
    levels: Iterable[tuple[float, str]],
) -> Chart:
    """Draw a line through points, both coordinates as shares of the drawing; `levels` are numbers beside the y axis."""
    room = _HEIGHT - _TOP - _BOTTOM

    def y(share: float) -> float:
        return _HEIGHT - _BOTTOM - share * room

    drawn = [
        f'<line class="grid" x1="0" x2="100%" y1="{y(at):.1f}" y2="{y(at):.1f}"/>' + _text(0, y(at) - 3, name, "level")
        for at, name in levels
    ]
    drawn += [
        f'<line class="curve" x1="{100 * a:.2f}%" y1="{y(b):.1f}" x2="{100 * c:.2f}%" y2="{y(d):.1f}"/>'
        for (a, b), (c, d) in itertools.pairwise(points)
    ]
    return _chart([*drawn, _axis(), *_ticks(ticks)], title=title, says=says, values=values)


def _chart(parts: Iterable[str], *, title: str, says: str, values: Table) -> Chart:
    # Titles and descriptions are read out; ids would have to be distinct over the page.
    drawing = Markup(
        f'<svg role="img" aria-label="{_escape(title)}: {_escape(says)}" height="{_HEIGHT}" width="100%" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{_escape(title)}</title><desc>{_escape(says)}</desc>'
        f"{''.join(parts)}</svg>"
    )
    return Chart(title=title, says=says, svg=drawing, values=values)


def _escape(text: str) -> Markup:
    """Escape a text, with control characters spelt out."""
    return escape_markup(visible(text))


def _axis() -> str:
    return f'<line class="axis" x1="0" x2="100%" y1="{_HEIGHT - _BOTTOM}" y2="{_HEIGHT - _BOTTOM}"/>'


def _ticks(ticks: Iterable[tuple[float, str]]) -> list[str]:
    return [_text(100 * at, _HEIGHT - 7, name, kind="tick") for at, name in ticks]


def _marks(marks: Iterable[tuple[float, str]]) -> list[str]:
    drawn = []
    for row, (at, name) in enumerate(sorted(marks, key=lambda mark: mark[0])):
        x, y = 100 * min(max(at, 0.0), 1.0), 12 + 13 * (row % 2)
        drawn.append(f'<line class="mark" x1="{x:.2f}%" x2="{x:.2f}%" y1="{y - 9}" y2="{_HEIGHT - _BOTTOM}"/>')
        anchor = "end" if x > _TURN else "start"
        dx = -4 if x > _TURN else 4
        drawn.append(f'<text class="mark" x="{x:.2f}%" y="{y}" dx="{dx}" text-anchor="{anchor}">{_escape(name)}</text>')
    return drawn


def _text(x: float, y: float, text: str, kind: str) -> str:
    # At the edges a text in the middle of its place would be cut off.
    anchor = "start" if x < 4 else "end" if x > 96 else "middle"
    return f'<text class="{kind}" x="{x:.2f}%" y="{y:.1f}" text-anchor="{anchor}">{_escape(text)}</text>'


def ticks_of(most: float, *, count: int = 4) -> list[float]:
    """Return about `count` round numbers from 0 up to `most`."""
    if most <= 0:
        return [0.0]
    step = 10.0 ** math.floor(math.log10(most / count))
    step *= min((factor for factor in (1, 2, 5, 10) if most / (step * factor) <= count), default=10)
    return [index * step for index in range(int(most / step) + 1)]
