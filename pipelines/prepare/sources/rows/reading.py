"""Read the rows of a split for a job, and apply user functions and hold-outs to them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.sources.parquet import row_groups, stored_columns
from pipelines.prepare.sources.parquet.groups import Groups, Pieces
from pipelines.prepare.sources.resolve.features import Columns
from pipelines.prepare.sources.rows import user_functions
from pipelines.prepare.sources.rows.hash_filter import HashFilter
from pipelines.prepare.sources.rows.unused_rows import DecidedRows, with_reasons
from pipelines.prepare.sources.rows.user_functions import UserFunction
from tfrecord_io.errors import SourceError


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowFunctions:
    """User functions, their output schema, and the approximate fraction of rows that they keep."""

    functions: tuple[UserFunction, ...]
    schema: pa.Schema
    share: float

    def apply(self, batch: pa.RecordBatch, columns: Sequence[str], *, where: str) -> tuple[pa.RecordBatch, np.ndarray]:
        """Apply the functions to n rows; return a batch of `columns`, and the reasons why rows are left out.

        The batch has n rows; filtered rows are null. Reasons and `where`: as in `applied`. Raises: SourceError.
        """
        table, reasons = applied(self.functions, pa.Table.from_batches([batch]), where=where)
        wanted = stored_columns.schema_of(self.schema, columns)
        kept = reasons == ""
        output = _conform(table, wanted, where=where) if kept.any() else pa.RecordBatch.from_pylist([], schema=wanted)
        if not kept.all():
            # The indices of kept rows in `output`. Other rows become null.
            output = output.take(pa.array(np.cumsum(kept) - 1, mask=~kept))
        return output, reasons


def applied(functions: Sequence[UserFunction], table: pa.Table, *, where: str) -> tuple[pa.Table, np.ndarray]:
    """Apply user functions to n rows; return the kept rows, and why each row is left out, str objects [n], '' if kept.

    `where`: description of the rows, for messages. Raises: SourceError.
    """
    reasons, numbers = np.full(table.num_rows, "", object), np.arange(table.num_rows)
    for function in functions:
        if not len(numbers):
            break
        result = user_functions.call(function, table, where=where)
        if isinstance(result, pa.Table):
            table = result
        elif not result.all():
            reasons[numbers[~result]] = function.reason
            table, numbers = table.filter(pa.array(result)), numbers[result]
    return table, reasons


def _conform(table: pa.Table, schema: pa.Schema, *, where: str) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        column = stored_columns.column_of(table, field.name)
        kind = column.type if column is not None else None
        if column is not None and kind != field.type and ("null" in str(kind) or pa.types.is_dictionary(kind)):
            with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
                column = column.cast(field.type)
        if column is None or column.type != field.type:
            raise SourceError(
                f"the user's functions return {'no' if column is None else kind} column {field.name!r} for {where}, "
                f"and {field.type} for other rows",
                remedy="return the same columns for all rows, with types as in pyarrow.array(values, pyarrow.string())",
            )
        arrays.append(column)
    return pa.table(arrays, schema=schema).combine_chunks().to_batches()[0]


def describe_rows(first: int, count: int, *, split: str) -> str:
    """Return a phrase such as "rows 3 to 7 of split 'train'"."""
    return f"rows {first} to {first + count - 1} of split {split!r}" if count > 1 else f"row {first} of split {split!r}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowReader:
    """Reader of the rows of one split. `split`: its name in messages. `types`: schema of the stored columns.

    Rows are marked as filtered by `functions`, if `hold_out` gives them to other splits, and if `decided` lists them as
    duplicates or contaminated. `addresses`: see `access.opened`; only on the launcher.
    """

    split: str
    types: pa.Schema
    functions: RowFunctions | None = None
    hold_out: HashFilter | None = None
    decided: DecidedRows | None = None
    addresses: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """Schema of all columns that `read` can return."""
        return self.types if self.functions is None else self.functions.schema

    @property
    def is_plain(self) -> bool:
        """Return whether all rows are read unchanged, and none is marked."""
        return self.functions is None and self.hold_out is None and self.decided is None

    @property
    def share(self) -> float:
        """Approximate fraction of rows that are not filtered, above 0 and at most 1."""
        return math.prod(part.share for part in (self.functions, self.hold_out, self.decided) if part is not None)

    def read(self, pieces: Pieces, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """For each piece, yield the number of its first row and a record batch with `columns`.

        The batch also has filtered rows, marked by `with_reasons`. Raises: like `read_rows` and `RowFunctions.apply`.
        """
        hashed = self.hold_out.columns if self.hold_out else ()
        wanted = list(dict.fromkeys([*columns, *hashed]))
        stored = wanted if self.functions is None else self.types.names
        for first, batch in row_groups.read_rows(pieces, stored, types=self.types, addresses=self.addresses):
            yield first, self._marked(first, batch, columns, wanted)

    def _marked(self, row: int, batch: pa.RecordBatch, columns: Sequence[str], wanted: Sequence[str]) -> pa.RecordBatch:
        if self.is_plain:
            return batch
        reasons = np.full(batch.num_rows, "", object)
        if self.functions is not None:
            where = describe_rows(row, batch.num_rows, split=self.split)
            batch, reasons = self.functions.apply(batch, wanted, where=where)
        if self.hold_out is not None:
            # Filtered rows, now null, count as filtered only in the original split.
            reasons = np.where((reasons == "") | self.hold_out.held_out, self.hold_out.reasons(batch), reasons)
        if self.decided is not None:
            reasons = np.where(reasons == "", self.decided.reasons(row, batch.num_rows), reasons)
        return with_reasons(batch.select(list(columns)), reasons)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSource:
    """One split of the output: [start, stop) `ranges` of row numbers in `source_split`, in the requested order.

    `groups`: locations of the rows; empty on workers. With --append, `ranges` has only the new rows, `ranges_before`
    all others, and `tasks_before` is the number of earlier tasks.
    """

    name: str
    source_split: str
    ranges: tuple[tuple[int, int], ...]
    reader: RowReader
    groups: Groups = dataclasses.field(default_factory=lambda: Groups.joined([]), compare=False, repr=False)
    tasks_before: int = 0
    ranges_before: tuple[tuple[int, int], ...] = ()

    @property
    def num_rows(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "groups": Groups.joined([])}  # a worker's plan file has the locations

    def read(self, ranges: Sequence[tuple[int, int]], columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read the rows in `ranges` like `RowReader.read`."""
        return self.reader.read(self.groups.pieces(ranges), columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Dataset with located rows. `splits`: splits of the output. `all_splits`, `columns`: of the source's splits."""

    splits: Mapping[str, SplitSource]
    all_splits: Mapping[str, SplitSource]
    columns: Mapping[str, Columns]
    identity: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """Kind of the source: `save_to_disk`, `object`, `hub`, or the reader of its files, such as `csv`."""
        return str(self.identity["kind"])

    def columns_of(self, split: SplitSource) -> Columns:
        """Return the columns of an output split, including the fields of structs."""
        return self.columns[split.source_split].with_fields()
