"""Try user functions on a few hundred rows of each split, to find their columns and share of kept rows.

A column keeps its class names if the functions don't change its sampled values.
"""

import dataclasses
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.resolve.features import Columns, columns_of
from pipelines.prepare.sources.rows.reading import RowFunctions, RowReader, applied, describe_rows
from pipelines.prepare.sources.rows.user_functions import UserFunction
from tfrecord_io.errors import PrepError, SourceError
from tfrecord_io.shown import some

_CLUSTERS = 16
_CLUSTER_ROWS = 32
# A sample reads this share of a split's stored bytes, or at least this many bytes.
_STORED_SHARE = 1 / 200
_STORED_BYTES = 2 << 20

_log = logging.getLogger(__name__)


def apply_functions(
    readers: Mapping[str, RowReader],
    groups: Mapping[str, Groups],
    columns: Mapping[str, Columns],
    functions: tuple[UserFunction, ...],
    *,
    requested: Collection[str],
) -> tuple[Mapping[str, RowReader], Mapping[str, Columns]]:
    """Return readers that apply the user functions, and the columns of their output, both by split of the source.

    Raises: SourceError if the functions fail on a split in `requested`; other splits are left out with a warning.
    """
    if not functions:
        return readers, columns
    changed, described = dict(readers), dict(columns)
    for name, reader in readers.items():
        rows = groups[name].total_rows
        if not rows:
            continue
        samples = _samples(reader, groups[name])
        try:
            applied, described[name] = examine_functions(functions, columns[name], samples, split=name, rows=rows)
        except PrepError as error:
            if name in requested:
                raise
            note = "the functions fail on split %r, which is not requested, so its labels are ignored: %s"
            _log.warning(note, name, error.cause)
            del changed[name], described[name]
        else:
            changed[name] = dataclasses.replace(reader, functions=applied)
    return changed, described


def examine_functions(
    functions: tuple[UserFunction, ...],
    stored: Columns,
    samples: Iterable[tuple[pa.Table, str]],
    *,
    split: str,
    rows: int,
) -> tuple[RowFunctions, Columns]:
    """Try the functions on one sample after another, until they keep at least one row.

    Return the functions with output schema and share of kept rows, and the output columns. `stored`: input columns of
    the split, which has `rows` rows. `samples`: tables, and their descriptions for messages. Raises: SourceError.
    """
    num_tried = 0
    for table, where in samples:
        num_tried += table.num_rows
        output, reasons = applied(functions, table, where=where)
        if output.num_rows:
            before = table.filter(pa.array(reasons == ""))
            names = [name for name in output.column_names if name in stored and before[name] == output[name]]
            # Metadata may describe values that a map has replaced.
            plain = pa.schema([pa.field(field.name, field.type) for field in output.schema])
            columns = Columns({**columns_of(plain), **{name: stored[name] for name in names}})
            share = output.num_rows / num_tried
            return RowFunctions(functions=functions, schema=columns.arrow_schema, share=share), columns
    filters = " and ".join(function.option for function in functions if function.kind == "filter")
    cause = f"split {split!r}: none of its {some(rows, 'row')} passes {filters}"
    raise SourceError(cause, remedy="correct the filter, or choose other splits with --split")


def _samples(reader: RowReader, groups: Groups) -> Iterator[tuple[pa.Table, str]]:
    names = reader.types.names
    table = pa.Table.from_batches([batch for _, batch in reader.read(groups.pieces(_clusters(groups)), names)])
    yield table, f"{some(table.num_rows, 'sampled row')} of split {reader.split!r}"
    for first, batch in reader.read(groups.pieces([(0, groups.total_rows)]), names):
        yield pa.Table.from_batches([batch]), describe_rows(first, batch.num_rows, split=reader.split)


def _clusters(groups: Groups) -> list[tuple[int, int]]:
    stored = int(groups.stored_bytes.sum())
    room = max(stored * _STORED_SHARE, _STORED_BYTES)
    count = int(np.clip(room * len(groups) // max(stored, 1), 1, min(_CLUSTERS, len(groups))))
    chosen = np.linspace(0, len(groups), count + 1).astype(int)[:-1]
    ranges = []
    for index in chosen.tolist():
        start, stop = int(groups.ends[index] - groups.num_rows[index]), int(groups.ends[index])
        edges = np.linspace(start, stop, -(-_CLUSTERS // count) + 1).astype(int)
        ends = np.minimum(edges[:-1] + _CLUSTER_ROWS, edges[1:])
        ranges += [(int(low), int(high)) for low, high in zip(edges[:-1], ends, strict=True) if low < high]
    return ranges
