"""What the page is made of: sections with groups of charts, tables and rows of tokens. `page` turns them into HTML.

Everything here is plain text, which the page escapes, but `Chart.svg`, which is markup made by `charts`.
"""

from __future__ import annotations

import dataclasses

from markupsafe import Markup

__all__ = ["Chart", "Group", "Page", "Section", "ShownRow", "ShownToken", "Table"]


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
    """A drawing with its title, what it says in a sentence, and its values as a table."""

    title: str
    says: str
    svg: Markup
    values: Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShownToken:
    """One token, or a run of padding. `kinds` are its CSS classes; `note` is shown beside it, such as its tag."""

    text: str
    kinds: tuple[str, ...] = ()
    note: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShownRow:
    """A sample row: its place, the tokens of each of its parts by name, and its other features as text."""

    place: str
    parts: tuple[tuple[str, tuple[ShownToken, ...]], ...]
    features: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Part of a section, about one split or about all of them (no title)."""

    title: str = ""
    texts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    rows: tuple[ShownRow, ...] = ()
    command: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page, with the name that links lead to. `legend`: kinds of tokens and what they mean."""

    name: str
    title: str
    says: str
    groups: tuple[Group, ...]
    legend: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """The whole report. `warnings` are repeated at its top."""

    title: str
    says: str
    sections: tuple[Section, ...]

    @property
    def warnings(self) -> tuple[tuple[str, str, str], ...]:
        """Every warning of the page: the section's name, the group's title, and the text."""
        return tuple(
            (section.name, group.title, text)
            for section in self.sections
            for group in section.groups
            for text in group.warnings
        )
