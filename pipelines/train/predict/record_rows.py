"""Which source row each record is, and predictions in the order of the source's rows.

row     int64  number of the row in the source's split, from 0; null where it cannot be known
window  int32  of a row that was cut into windows, which one, from 0; only for such data
shard   int32  index of the shard in the split, and
record  int64  of the record in it, as `prep-tfrecords trace` takes them

The feature `source_row` says it where rows may become several records. Where each is one, the plan beside the dataset
says it. That plan belongs to the preparing side, which alone knows how a build permutes rows: this module is the one
place of the trainer that asks it (see tests/project/test_rooms.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from pipelines.terminal.console import say
from tfrecord_io.errors import PrepError
from tfrecord_io.manifest import Manifest
from tfrecord_io.reader import Data

__all__ = ["COLUMNS", "ENDS", "places_of", "with_rows"]

COLUMNS = ("row", "window", "shard", "record")
ENDS = "last/char_end"  # no name of a feature


def places_of(features: Mapping[str, np.ndarray], manifest: Manifest) -> dict[str, pa.Array]:
    """Return what N records of windows say of their row, and where they end in it; nothing for other records."""
    row, ends = (manifest.schema.with_role(role) for role in ("source_row", "char_ends"))
    if row is None:
        return {}
    rows = features[row.name].astype(np.int64)
    return {"row": pa.array(rows), ENDS: pa.array(rows * 0 if ends is None else features[ends.name].max(axis=1))}


def with_rows(table: pa.Table, data: Data, split: str) -> pa.Table:
    """Put a table with a row for each record into source order, with the columns above before its own.

    `table`: records read length by length, with `places_of` them. Where the rows cannot be known, says so on stderr and
    keeps the order of the files.
    """
    shards = data.splits[split].shards
    counts = [shard.num_examples for shard in shards]
    lengths = np.repeat([shard.length or 0 for shard in shards], counts)
    in_files = np.argsort(np.argsort(lengths, kind="stable"))  # where each record of the files was read
    table = table.take(pa.array(in_files))
    index, record = np.repeat(np.arange(len(counts)), counts), np.concatenate([np.arange(count) for count in counts])
    located = {"shard": pa.array(index, pa.int32()), "record": pa.array(record, pa.int64())}
    own = {name: table[name] for name in table.column_names if name not in ("row", ENDS)}
    if ENDS in table.column_names:
        rows, ends = table["row"].to_numpy(), table[ENDS].to_numpy()
        order = np.lexsort((ends, rows))
        window = np.empty(len(rows), np.int64)
        window[order] = _numbers_in_runs(rows[order])
        located = {"window": pa.array(window, pa.int32()), **located}
    elif (known := _planned(data, split)) is not None:
        rows, order = known, np.argsort(known, kind="stable")
    else:
        return pa.table({"row": pa.nulls(len(record), pa.int64()), **located, **own})
    return pa.table({"row": pa.array(rows, pa.int64()), **located, **own}).take(pa.array(order))


def _planned(data: Data, split: str) -> np.ndarray | None:
    """The row of each record by the plan, int64 [N], records in the order of their shards; None if it is not known."""
    from pipelines.prepare.audit import record_rows

    try:
        return record_rows.record_rows(data.root, data.manifest, split)
    except PrepError as error:
        cause, remedy = error.cause, error.remedy
    except (KeyError, ValueError, OSError) as error:  # of a manifest that another program wrote
        cause, remedy = f"{data.root}: {error!r:.200}", "build the dataset with prep-tfrecords"
    say(f"warning: the source's rows are not known ({cause}): column row is null, rows are in file order")
    say(f"remedy: {remedy}")
    return None


def _numbers_in_runs(sorted_rows: np.ndarray) -> np.ndarray:
    """0, 1, 2 … within each run of equal numbers, int64 [N]."""
    at = np.arange(len(sorted_rows))
    begins = np.concatenate([[True], sorted_rows[1:] != sorted_rows[:-1]])
    return at - np.maximum.accumulate(np.where(begins, at, 0))
