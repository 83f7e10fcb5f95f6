"""Functions for the reviews: `prep-tfrecords build examples/reviews --map examples.functions.clean:without_breaks ...`

A map takes some rows as a `pyarrow.Table` and returns a table with as many; a filter returns one bool for each of them.
The result for a row may depend on that row alone, since rows come in batches of any size. Arrow's own functions
(`pyarrow.compute`) work on whole columns, and let other threads run meanwhile.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

LEAST_WORDS = 5


def without_breaks(rows: pa.Table) -> pa.Table:
    """Puts a space where a text has an HTML line break, and one space wherever it has several."""
    text = pc.replace_substring_regex(rows["text"], r"(?i)<br\s*/?>", " ")
    text = pc.utf8_trim_whitespace(pc.replace_substring_regex(text, r"\s+", " "))
    return rows.set_column(rows.column_names.index("text"), "text", text)


def has_enough_words(rows: pa.Table) -> pa.ChunkedArray:
    """Leaves out reviews of less than five words."""
    spaces = pc.count_substring(pc.utf8_trim_whitespace(rows["text"]), " ")
    return pc.greater_equal(spaces, LEAST_WORDS - 1)
