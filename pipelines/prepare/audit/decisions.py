"""Decisions about rows made before the plan: duplicate, and of which row; or contaminated."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from pipelines.prepare.dataset.job import decided_path
from pipelines.prepare.sources.rows import unused_rows
from tfrecord_io.errors import ConfigError, FormatError
from tfrecord_io.manifest import Manifest

__all__ = ["decision_on", "most_copied"]

_MOST_SHOWN = 10


def decision_on(root: str, manifest: Manifest, *, split: str, row: int) -> dict[str, Any]:
    """Return the row, the `reason`, and the row that stays instead: `of_split` and `of_row`, None if contaminated.

    Raises: ConfigError if the row was not left out; FormatError if what was decided is gone.
    """
    if split not in manifest.splits or not {"dedup", "decontaminate"} & manifest.options.keys():
        raise ConfigError(
            f"{root}: nothing was compared in a split {split!r}", remedy="build with --dedup or --decontaminate"
        )
    table = unused_rows.decode(decided_path(root, manifest.fingerprint, split))
    found: list[dict[str, Any]] = table.filter(pc.field("row") == row).to_pylist()
    if not found:
        raise ConfigError(
            f"{root}: row {row} of {split} was not left out as a duplicate or as contaminated",
            remedy="name another row by its number in the source's split, from 0",
        )
    return found[0]


def most_copied(root: str, manifest: Manifest, *, split: str) -> tuple[tuple[str, int, int], ...]:
    """Return the rows with the most duplicates in a split: split and row of the one that stays, and their number.

    Empty if nothing was compared, or what was decided is gone.
    """
    if "dedup" not in manifest.options:
        return ()
    try:
        table = unused_rows.decode(decided_path(root, manifest.fingerprint, split))
    except FormatError:
        return ()
    copies = (
        table.filter(pc.field("reason") == "duplicate").group_by(["of_split", "of_row"]).aggregate([("row", "count")])
    )
    order = [("row_count", "descending"), ("of_split", "ascending"), ("of_row", "ascending")]
    found = copies.sort_by(order).slice(0, _MOST_SHOWN).to_pylist()
    return tuple((each["of_split"], each["of_row"], each["row_count"]) for each in found)
