"""The subject of a report, from which its sections are made: a finished dataset and samples of its records."""

from __future__ import annotations

import dataclasses
from typing import Any

from pipelines.prepare.dataset.rejected_rows import RejectedContent
from pipelines.prepare.report.records import SampledRecords
from tfrecord_io.manifest import Manifest, Split

__all__ = ["SplitSubject", "Subject", "count", "share", "size", "some"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSubject:
    """One split: its sampled records, one part for each row length, its entry in the manifest, and examples of rejected
    rows.
    """

    name: str
    parts: tuple[SampledRecords, ...]
    finished: Split
    rejected: tuple[RejectedContent, ...] = ()

    @property
    def num_sampled(self) -> int:
        """Sampled records."""
        return sum(len(part.places) for part in self.parts)

    @property
    def source_of_figures(self) -> str:
        """Return where figures from records come from, to be shown beside them."""
        if self.num_sampled == self.finished.num_examples:
            return f"from all {self.num_sampled:,} records"
        return f"from a sample of {self.num_sampled:,} of {self.finished.num_examples:,} records"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """All that the sections need.

    `tokenizer` turns ids into text. `place` is where the source was, empty if that is not known. `more_splits` are not
    shown in detail.
    """

    manifest: Manifest
    tokenizer: Any
    splits: tuple[SplitSubject, ...]
    place: str = ""
    more_splits: tuple[str, ...] = ()

    def token(self, token_id: int) -> str:
        """Return a token as the vocabulary writes it."""
        text = self.tokenizer.convert_ids_to_tokens(int(token_id))
        return str(token_id) if text is None else str(text)


def count(number: float) -> str:
    """Format a whole number: 1,234."""
    return f"{round(number):,}"


def share(part: float, whole: float = 1.0) -> str:
    """Format a share in per cent, with more digits for small ones, so that only nothing is 0 %."""
    percent = 100 * part / whole if whole else 0.0
    if percent in (0.0, 100.0):
        return f"{percent:.0f} %"
    if percent < 0.01:
        return "< 0.01 %"
    if percent < 1 or 99 < percent < 100:
        return f"{min(percent, 99.99):.2f} %"
    return f"{percent:.1f} %"


def some(number: int, noun: str) -> str:
    """Format a count of things: 1 shard, 3 shards."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(num_bytes: float) -> str:
    """Format bytes: 1.2 kB, 98.6 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
