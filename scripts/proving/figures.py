"""What a section found: a claim, how often it was tried, how often it did not hold, and where."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from scripts.benchmarks.figures import table

__all__ = ["Figure", "failures_text", "figures_table"]

_SHOWN = 5


@dataclasses.dataclass(kw_only=True)
class Figure:
    """One claim. `failures` says of each time that it did not hold what was done and what was seen; `note` is for
    people, and says what could not be tried.
    """

    section: str
    claim: str
    tried: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)
    note: str = ""

    def check(self, problem: str) -> None:
        """Counts one attempt; `problem` is empty if the claim held."""
        self.tried += 1
        if problem:
            self.failures.append(problem)

    def to_json(self) -> dict[str, Any]:
        """The figure as a JSON object."""
        return {**dataclasses.asdict(self), "failed": len(self.failures)}


def figures_table(figures: Iterable[Figure]) -> str:
    """The table of all sections. Nothing tried is nothing shown: it says so instead of 0 failures."""
    rows = [
        [
            figure.section,
            figure.claim,
            f"{figure.tried:,}",
            f"{len(figure.failures):,}" if figure.tried else "not tried",
            figure.note,
        ]
        for figure in figures
    ]
    return table(["section", "claim", "tried", "failed", "note"], rows)


def failures_text(figures: Iterable[Figure]) -> str:
    """The first failures of each claim, for people."""
    lines = []
    for figure in figures:
        if figure.failures:
            lines.append(f"{figure.section}: {figure.claim}")
            lines += [f"    {failure}" for failure in figure.failures[:_SHOWN]]
            if len(figure.failures) > _SHOWN:
                lines.append(f"    and {len(figure.failures) - _SHOWN} more")
    return "\n".join(lines)
