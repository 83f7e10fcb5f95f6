"""Complete the error of rejected rows with facts that only the launcher knows.

Workers know a row only by its number in the split, and errors cross Beam as text. So the launcher replaces, for
example, `train[6]` in an error with "row 7 of reviews.jsonl".
"""

import contextlib
import os
import re
from collections.abc import Iterator

import numpy as np

from pipelines.prepare.launch.open_job import OpenJob
from tfrecord_io.errors import RowsRejectedError
from tfrecord_io.shown import without_access

_NULL_WORDS = (
    "pandas reads empty cells and words such as NA, None and null as null; to keep such words as text, add "
    "--source-option keep_default_na=false"
)


@contextlib.contextmanager
def by_file(opened: OpenJob) -> Iterator[None]:
    """Raise the context's RowsRejectedError again, with rows named by file and, for CSV, a remedy for null words."""
    try:
        yield
    except RowsRejectedError as error:
        splits = "|".join(map(re.escape, sorted(opened.job.splits, key=len, reverse=True)))
        cause = re.sub(
            rf"(?<![\w.-])({splits})\[(\d+)\]", lambda match: _row_of_file(opened, match[1], int(match[2])), error.cause
        )
        remedy = error.remedy
        if opened.identity["kind"] in ("csv", "tsv") and " is null" in cause:
            remedy += f"; {_NULL_WORDS}"
        raise RowsRejectedError(cause, remedy=remedy) from error


def _row_of_file(opened: OpenJob, split_name: str, row: int) -> str:
    split = opened.job.splits[split_name]
    files, rows = opened.request.source.listing.splits.get(split.source_split, ()), split.groups.source_rows
    if opened.identity["kind"] == "object" or len(files) != len(rows):
        return f"{split_name}[{row}]"
    ends = np.cumsum(rows)
    index = int(np.searchsorted(ends, row, "right"))
    paths = [without_access(file.path) for file in files]
    names = list(map(os.path.basename, paths))
    name = names[index] if names.count(names[index]) == 1 else paths[index]
    return f"row {row - int(ends[index] - rows[index]) + 1:,} of {name}"
