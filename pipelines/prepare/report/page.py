"""Elements of the report and their HTML.

Jinja2 escapes every text, control characters become visible, and a content security policy forbids scripts, requests,
and all styles except the page's own.
"""

import base64
import dataclasses
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

import tfrecord_io
from tfrecord_io.shown import visible

_FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table. Its last `numbers` columns are aligned to the right. `bars`: one number per row, drawn as a bar."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int = 0
    bars: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Part of a section, about one split; without a title, about all splits."""

    title: str = ""
    texts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page. `name`: the anchor for links. `says`: the introduction."""

    name: str
    title: str
    groups: tuple[Group, ...]
    says: str = ""


def render(*, title: str, says: str, sections: Sequence[Section]) -> bytes:
    """Return a page as HTML in UTF-8. `says`: its introduction. All warnings come first."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
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
    )
    return text.encode("utf-8", "replace")


def _unbroken_options(text: str) -> Markup:
    # `re.sub` would escape parts of a Markup again.
    escaped = str(escape(visible(text, lines=True)))
    return Markup(re.sub(r"--[a-z][a-z-]*[a-z]", r'<span class="option">\g<0></span>', escaped))
