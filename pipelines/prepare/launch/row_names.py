"""Name rows in errors by file and line: `train[6]` becomes "row 7 of reviews.jsonl".

Workers know a row only by its number in the split, and errors cross Beam as text, so the launcher does this.
"""

import contextlib
import os
import re
from collections.abc import Iterator

import numpy as np

from pipelines.prepare.launch.open_job import OpenJob
from tfrecord_io.errors import RowsRejectedError
from tfrecord_io.shown import without_access


@contextlib.contextmanager
def by_file(opened: OpenJob) -> Iterator[None]:
    """If the context raises a RowsRejectedError, name its rows by file."""
    try:
        yield
    except RowsRejectedError as error:
        splits = "|".join(map(re.escape, sorted(opened.job.splits, key=len, reverse=True)))
        cause = re.sub(rf"(?<![\w.-])({splits})\[(\d+)\]", lambda found: _name(opened, found), error.cause)
        raise RowsRejectedError(cause, remedy=error.remedy) from error


def _name(opened: OpenJob, found: re.Match[str]) -> str:
    source = opened.source.splits[found[1]]
    files, rows = opened.request.source.listing.splits.get(source.source_split, ()), source.groups.source_rows
    if opened.source.kind == "object" or len(files) != len(rows):
        return found[0]
    ends = np.cumsum(rows)
    index = int(np.searchsorted(ends, int(found[2]), "right"))
    names = [os.path.basename(without_access(file.path)) for file in files]
    name = names[index] if names.count(names[index]) == 1 else without_access(files[index].path)
    return f"row {int(found[2]) - int(ends[index] - rows[index]) + 1:,} of {name}"
