"""Elements of the page and their HTML, one file that loads nothing, runs nothing, and shows text from data as text.

Every text is escaped by Jinja2, control characters and characters that turn the direction of text are spelt out, and a
content security policy forbids scripts, requests, and all styles but the one in the page.
"""

import base64
import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

import tfrecord_io
from tfrecord_io.shown import visible

_FOLDER = Path(__file__).parent
# Pixels: the drawing, room above the highest bar for the names of marks, and below the axis for its numbers.
_HEIGHT, _TOP, _BOTTOM = 180, 34, 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table; its last `numbers` columns are right-aligned. `folded`: shown only when the reader opens it."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int = 0
    folded: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """Bar chart, with a sentence that sums it up and a table of its values. The template draws it as SVG.

    Positions are shares of the width: `edges` [N + 1] of the bars, `ticks` with texts below the axis, `marks` of
    vertical lines with their names. Bars become percentages of the width and pixels of height, so that a chart fills
    a phone or a desktop while its text keeps its size. A plotting library would take 35 MB, and 23 kB of a page for
    each chart.
    """

    title: str
    says: str
    heights: tuple[float, ...]
    edges: tuple[float, ...]
    values: Table
    ticks: tuple[tuple[float, str], ...] = ()
    marks: tuple[tuple[float, str], ...] = ()
    highest: str = ""

    @property
    def bars(self) -> Iterator[tuple[float, float, float, float]]:
        """Left edge and width in per cent, top and height in pixels, of every bar that is not empty."""
        most = max(self.heights)
        for (start, stop), value in zip(itertools.pairwise(self.edges), self.heights, strict=True):
            if value > 0:
                height = max(value / most * (_HEIGHT - _TOP - _BOTTOM), 1.0)
                gap = min(15 * (stop - start), 0.3)
                yield 100 * start + gap / 2, 100 * (stop - start) - gap, _HEIGHT - _BOTTOM - height, height

    @property
    def top(self) -> float:
        """The middle of the highest bar, as a share of the width."""
        at = self.heights.index(max(self.heights))
        return (self.edges[at] + self.edges[at + 1]) / 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Part of a section, about one split or about all of them (no title)."""

    title: str = ""
    texts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page. `name`: its anchor for links."""

    name: str
    title: str
    groups: tuple[Group, ...]
    says: str = ""


def render(*, title: str, says: str, sections: Sequence[Section]) -> bytes:
    """Render a page as HTML in UTF-8. The template repeats all warnings at its top."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        # Control characters are spelt out, except for line ends.
        finalize=lambda text: visible(text, lines=True) if type(text) is str else text,
    )
    environment.filters["options"] = _unbroken_options
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    style = re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", style, flags=re.S)).strip()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    text = environment.get_template("page.html.j2").render(
        title=title,
        says=says,
        sections=sections,
        style=Markup(style),
        style_hash=f"sha256-{digest}",
        version=tfrecord_io.__version__,
        height=_HEIGHT,
        axis=_HEIGHT - _BOTTOM,
        top=_TOP,
    )
    return text.encode("utf-8", "replace")


def _unbroken_options(text: str) -> Markup:
    """Return the text as HTML in which no option such as `--max-length` is broken at a hyphen."""
    escaped = str(escape(visible(text, lines=True)))  # `re.sub` joins pieces of Markup by escaping them once more
    return Markup(re.sub(r"--[a-z][a-z-]*[a-z]", r'<span class="option">\g<0></span>', escaped))
