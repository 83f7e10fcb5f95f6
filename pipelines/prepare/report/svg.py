"""Charts as inline SVG: bars, and a curve.

Written here rather than by a plotting library. For one bar chart of 60 bars matplotlib (35 MB installed, and 45 MB of
fonts and Pillow beside it) writes 23 kB of paths with fixed colours and no text for screen readers; pygal writes 32 kB,
has the date in it, and loads a script from a web server unless told otherwise; plotly.js (3 to 4 MB) and Bokeh (1 MB)
put a program into the page, which would be most of the page and all of its risk. These charts take 4 kB, follow the
page's light and dark colours, and are the same bytes for the same figures.

Horizontal positions are percentages of the drawing, vertical ones pixels, so that a chart fills a phone or a desktop
while its text keeps its size:

    |      __      :            y from 0 (top) to HEIGHT
    |  __ |  | __  :            bars
    |_|__||__||__|_:___         : a mark with its name, such as the cut
    0            L
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup
from markupsafe import escape as escape_markup

from tfrecord_io.shown import visible

__all__ = ["HEIGHT", "Mark", "bar_edges", "bars", "curve", "ticks_of"]

HEIGHT = 180
# Above the highest bar, for the names of marks; below the axis, for its numbers.
_TOP, _BOTTOM = 34, 24
# In per cent of the width: most names of marks fit between a mark and the edge from here on.
_TURN = 62.0
# Share of the width that a bar has at most.
_WIDEST = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line at `at`, a share of the width, with its name."""

    at: float
    name: str


def bars(
    heights: Sequence[float],
    *,
    title: str,
    says: str,
    ticks: Iterable[tuple[float, str]],
    marks: Iterable[Mark] = (),
    highest: str = "",
    edges: Sequence[float] | None = None,
) -> Markup:
    """Draw bars side by side. `edges`: where they begin and end as shares of the width; default: all equally wide.

    ticks: positions (shares of the width) and texts below the axis. highest: the text of the highest bar's value.
    """
    edges = edges or bar_edges(len(heights))
    most = max([*heights, 1e-12])
    room = HEIGHT - _TOP - _BOTTOM
    drawn = []
    for (start, stop), value in zip(itertools.pairwise(edges), heights, strict=True):
        if value > 0:
            height = max(value / most * room, 1.0)
            left, width = 100 * start, 100 * (stop - start)
            gap = min(0.15 * width, 0.3)
            drawn.append(
                f'<rect x="{left + gap / 2:.2f}%" y="{HEIGHT - _BOTTOM - height:.1f}" width="{width - gap:.2f}%" '
                f'height="{height:.1f}"/>'
            )
    if highest:
        at = heights.index(max(heights)) if heights else 0
        drawn.append(_text(100 * (edges[at] + edges[at + 1]) / 2, _TOP - 5, highest, kind="value"))
    return _drawing([*drawn, _axis(), *_ticks(ticks), *_marks(marks)], title=title, says=says)


def bar_edges(count: int) -> list[float]:
    """Return where `count` bars of one width begin and end, as shares of the drawing's width; few stay slim."""
    width = min(1 / max(count, 1), _WIDEST)
    return [index * width for index in range(count + 1)]


def curve(
    points: Sequence[tuple[float, float]],
    *,
    title: str,
    says: str,
    ticks: Iterable[tuple[float, str]],
    levels: Iterable[tuple[float, str]],
) -> Markup:
    """Draw a line through points, both coordinates as shares of the drawing; `levels` are numbers beside the y axis."""
    room = HEIGHT - _TOP - _BOTTOM

    def y(share: float) -> float:
        return HEIGHT - _BOTTOM - share * room

    drawn = [
        f'<line class="grid" x1="0" x2="100%" y1="{y(at):.1f}" y2="{y(at):.1f}"/>' + _text(0, y(at) - 3, name, "level")
        for at, name in levels
    ]
    drawn += [
        f'<line class="curve" x1="{100 * a:.2f}%" y1="{y(b):.1f}" x2="{100 * c:.2f}%" y2="{y(d):.1f}"/>'
        for (a, b), (c, d) in itertools.pairwise(points)
    ]
    return _drawing([*drawn, _axis(), *_ticks(ticks)], title=title, says=says)


def _drawing(parts: Iterable[str], *, title: str, says: str) -> Markup:
    inner = "".join(parts)
    # Titles and descriptions are read out; ids would have to be distinct over the page.
    return Markup(
        f'<svg role="img" aria-label="{_escape(title)}: {_escape(says)}" height="{HEIGHT}" width="100%" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{_escape(title)}</title><desc>{_escape(says)}</desc>{inner}</svg>'
    )


def _escape(text: str) -> Markup:
    """Escape a text, with control characters spelt out."""
    return escape_markup(visible(text))


def _axis() -> str:
    return f'<line class="axis" x1="0" x2="100%" y1="{HEIGHT - _BOTTOM}" y2="{HEIGHT - _BOTTOM}"/>'


def _ticks(ticks: Iterable[tuple[float, str]]) -> list[str]:
    return [_text(100 * at, HEIGHT - 7, name, kind="tick") for at, name in ticks]


def _marks(marks: Iterable[Mark]) -> list[str]:
    drawn = []
    for row, mark in enumerate(sorted(marks, key=lambda each: each.at)):
        x, y = 100 * min(max(mark.at, 0.0), 1.0), 12 + 13 * (row % 2)
        drawn.append(f'<line class="mark" x1="{x:.2f}%" x2="{x:.2f}%" y1="{y - 9}" y2="{HEIGHT - _BOTTOM}"/>')
        anchor = "end" if x > _TURN else "start"
        dx = -4 if x > _TURN else 4
        drawn.append(
            f'<text class="mark" x="{x:.2f}%" y="{y}" dx="{dx}" text-anchor="{anchor}">{_escape(mark.name)}</text>'
        )
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
