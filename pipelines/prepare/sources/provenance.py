"""Which data file a row of a split comes from, and which row it is there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipelines.prepare.sources.groups import Groups
from tfrecord_io.errors import SourceError

__all__ = ["locate"]


def locate(groups: Groups, parts: Mapping[int, tuple[str, int]], row: int) -> tuple[str, int]:
    """The path of the data file that holds row `row` of a split, and the row's number there, from 0.

    `parts` gives, by index into `groups.files`, the data file that an ingested file was made of, and the number there
    of its first row. A file that is not in it is a data file itself.

    Raises: SourceError if the split has no such row.
    """
    if not 0 <= row < groups.total_rows:
        raise SourceError(
            f"row {row} is asked for, but the split has {groups.total_rows}",
            remedy="the source has changed; build the dataset anew",
        )
    group = int(np.searchsorted(groups.ends, row, "right"))
    file = int(groups.file[group])
    # The groups of a file follow one another.
    first = int(np.searchsorted(groups.file[: group + 1], file, "left"))
    path, before = parts.get(file, (groups.files[file].path, 0))
    return path, before + row - int(groups.ends[first] - groups.num_rows[first])
