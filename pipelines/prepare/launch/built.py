"""Result of a build, and its HTML table for notebooks. This module has no large imports."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tfrecord_io.shown import html_table

if TYPE_CHECKING:
    from tfrecord_io.manifest import Manifest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """Result of `build`: the dataset in the folder `root`, how many shards this run made or kept, and its duration."""

    root: str
    manifest: Manifest = dataclasses.field(repr=False)
    shards_made: int
    shards_kept: int
    seconds: float

    def _repr_html_(self) -> str:
        return splits_table(self.manifest)


def splits_table(manifest: Manifest) -> str:
    """Return an HTML table with the counts of rows, examples, tokens and shards of each split."""
    head = ("split", "rows", "filtered", "rejected", "examples", "tokens", "shards", "bytes")
    rows = []
    for name, split in manifest.splits.items():
        ledger = split.ledger
        read = (ledger.rows_of_split, sum(ledger.filtered_of_split.values()), ledger.rows_rejected)
        rows.append((name, *read, split.num_examples, split.num_tokens, len(split.shards), split.num_bytes))
    return html_table(head, rows)
