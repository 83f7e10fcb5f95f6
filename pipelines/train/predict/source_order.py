"""Putting predictions into the order of the source's rows.

row     int64  number of the row in the source's split, from 0; null where it cannot be known
window  int32  of a row that was cut into windows, which one, from 0; only for such data
shard   int32  index of the shard in the split, and
record  int64  of the record in it, as `prep-tfrecords trace` takes them
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from pipelines.terminal.console import say
from pipelines.train.predict import record_rows
from tfrecord_io.manifest import Manifest
from tfrecord_io.reader import Data

__all__ = ["COLUMNS", "Places", "in_file_order", "in_source_order"]

COLUMNS = ("row", "window", "shard", "record")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """What records of windows say of their place: their row, and where they end in it. `row` is None for others."""

    row: str | None
    ends: str | None
    rows_found: list[np.ndarray] = dataclasses.field(default_factory=list)
    ends_found: list[np.ndarray] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, manifest: Manifest) -> Places:
        """The places of a dataset's records, none of which is known yet."""
        row, ends = (manifest.schema.with_role(role) for role in ("source_row", "char_ends"))
        return cls(row=row.name if row else None, ends=ends.name if ends else None)

    def add(self, features: Mapping[str, np.ndarray]) -> None:
        """Add those of N records."""
        if self.row is not None:
            self.rows_found.append(features[self.row].astype(np.int64))
            ends = features[self.row] * 0 if self.ends is None else features[self.ends].max(axis=1)
            self.ends_found.append(ends)


def in_file_order(manifest: Manifest, split: str) -> np.ndarray:
    """What puts records that were read length by length into the order of the split's files: int64 [N]."""
    shards = manifest.splits[split].shards
    counts = np.array([shard.num_examples for shard in shards], np.int64)
    lengths = np.repeat([shard.length or 0 for shard in shards], counts)
    read = np.argsort(lengths, kind="stable")  # the place in the files of each record that was read
    return np.argsort(read)


def in_source_order(table: pa.Table, data: Data, split: str, *, places: Places) -> pa.Table:
    """The table with the columns above before its own; it has a row for each record, in file order.

    Where the rows cannot be known, says so on stderr and keeps the order of the files.
    """
    counts = [shard.num_examples for shard in data.splits[split].shards]
    shards = np.repeat(np.arange(len(counts)), counts)
    records = np.concatenate([np.arange(count) for count in counts])
    found = np.concatenate(places.rows_found) if places.row is not None else record_rows.of_split(data, split)
    located = {"shard": pa.array(shards, pa.int32()), "record": pa.array(records, pa.int64())}
    if isinstance(found, record_rows.Unknown):
        say(f"warning: the source's rows are not known ({found.cause}): column row is null, rows are in file order")
        say(f"remedy: {found.remedy}")
        return _beside(table, {"row": pa.nulls(len(records), pa.int64()), **located})
    ends = np.concatenate(places.ends_found) if places.row is not None else records
    order = np.lexsort((ends, found))
    windows = {"window": pa.array(_numbers_in_runs(found[order]), pa.int32())} if places.row is not None else {}
    sorted_ = _beside(table, {"row": pa.array(found, pa.int64()), **located}).take(pa.array(order))
    for name, values in windows.items():
        sorted_ = sorted_.add_column(1, name, values)
    return sorted_


def _beside(table: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    for at, (name, values) in enumerate(columns.items()):
        table = table.add_column(at, name, values)
    return table


def _numbers_in_runs(sorted_rows: np.ndarray) -> np.ndarray:
    """0, 1, 2 … within each run of equal numbers, int64 [N]."""
    at = np.arange(len(sorted_rows))
    begins = np.concatenate([[True], sorted_rows[1:] != sorted_rows[:-1]])
    return at - np.maximum.accumulate(np.where(begins, at, 0))
