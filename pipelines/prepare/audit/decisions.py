"""What was decided about a row before the plan: that it is a duplicate, and of which row, or contaminated."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from pipelines.prepare.dataset.job import decided_path
from pipelines.prepare.sources.rows import decided_rows
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Manifest

__all__ = ["decision_on"]


def decision_on(root: str, manifest: Manifest, *, split: str, row: int) -> dict[str, Any]:
    """Return the row, the `reason`, and the row that stays instead: `of_split` and `of_row`, None if contaminated.

    Raises: ConfigError if the row was not left out; FormatError if what was decided is gone.
    """
    if split not in manifest.splits or not {"dedup", "decontaminate"} & manifest.options.keys():
        raise ConfigError(
            f"{root}: nothing was compared in a split {split!r}", remedy="build with --dedup or --decontaminate"
        )
    table = decided_rows.decode(decided_path(root, manifest.fingerprint, split))
    found: list[dict[str, Any]] = table.filter(pc.field("row") == row).to_pylist()
    if not found:
        raise ConfigError(
            f"{root}: row {row} of {split} was not left out as a duplicate or as contaminated",
            remedy="name another row by its number in the source's split, from 0",
        )
    return found[0]
