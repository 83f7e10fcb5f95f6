"""From a page's elements to HTML: one file that loads nothing, runs nothing, and shows text from data as text.

Every text is escaped by Jinja2, control characters and characters that turn the direction of text are spelt out, and a
content security policy forbids scripts, requests, and all styles but the one in the page.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import tfrecord_io
from pipelines.prepare.report.elements import Page
from tfrecord_io.shown import visible

__all__ = ["render"]

_FOLDER = Path(__file__).parent


def render(page: Page) -> bytes:
    """Return the HTML of a page, UTF-8."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    style = _compact((_FOLDER / "page.css").read_text(encoding="utf-8"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    text = environment.get_template("page.html.j2").render(
        page=page, style=Markup(style), style_hash=f"sha256-{digest}", version=tfrecord_io.__version__
    )
    return text.encode("utf-8", "replace")


def _finalize(value: Any) -> Any:
    """Spell out control characters of texts, in lines that may be several."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(value, lines=True)


def _compact(style: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", style, flags=re.S)).strip()
