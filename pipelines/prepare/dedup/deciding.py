"""Find duplicate rows, and rows that evaluation sets contaminate, in two rounds of tasks that exchange files.

A row's key is a 128-bit hash. In the first round, each task (`write_keys`) takes a part of the rows; in the second
(`find_duplicates`), a range of keys. The first of several equal rows in a split is kept.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.dedup import text_hashes
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.sources.columns import extraction
from pipelines.prepare.sources.parquet.groups import Pieces, cover
from pipelines.prepare.sources.rows import unused_rows
from pipelines.prepare.sources.rows.reading import RowReader, SplitSource
from tfrecord_io.errors import OutputError

_KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("at", "<u8"), ("label", "<u8")])
# Unused row: the row, the row that it repeats or its evaluation set, and whether labels are equal.
_UNUSED = np.dtype([("at", "<u8"), ("of", "<u8"), ("same_label", "<u8")])
# In `at` and `of`, the high 16 bits are the number of the row's split, the low 48 its number in the source's split.
_ROW_BITS = np.uint64(48)
_ROW_MASK = np.uint64((1 << 48) - 1)

_RUNS = "runs"
_RANGE_ROWS = 4_000_000
_TASK_BYTES, _TASK_ROWS = 256 << 20, 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Settings that all tasks of a search for duplicate and contaminated rows share.

    `dedup`: how to compare texts; None to keep duplicates. `train`: number of the split train if its rows are compared
    with other splits, else None. `sets`: names of evaluation sets. `num_parts`, `num_ranges`: tasks of the first and
    the second round. `folder`: for the tasks' files, inside the output folder `inside`.
    """

    columns: extraction.ColumnPlan
    dedup: str | None
    train: int | None
    sets: tuple[str, ...]
    num_parts: int
    num_ranges: int
    folder: str
    inside: str | None

    def write(self, name: str, records: np.ndarray) -> None:
        storage.write_bytes(storage.join(self.folder, name), records.tobytes(), inside=self.inside)

    def read(self, names: Sequence[str], kind: np.dtype) -> np.ndarray:
        """Return the joined records, of dtype `kind`, of several files. Raises: OutputError."""
        parts = [np.zeros(0, kind)]
        for name, content in zip(names, storage.read_many([storage.join(self.folder, n) for n in names]), strict=True):
            if content is None:
                raise OutputError(
                    f"{storage.join(self.folder, name)}: this file disappeared while rows were compared; another job "
                    "may have started over in this folder",
                    remedy="let one job at a time write to this folder, and run the same command again",
                )
            parts.append(np.frombuffer(content, kind))
        return np.concatenate(parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Input of a task of the first round, number `index`: the rows `pieces` of split number `split`."""

    index: int
    split: int
    reader: RowReader
    pieces: Pieces


def divide(
    splits: Mapping[str, SplitSource],
    *,
    columns: extraction.ColumnPlan,
    dedup: str | None,
    runs: text_hashes.EvaluationRuns | None,
    across: bool,
    folder: str,
    inside: str | None,
) -> tuple[Comparison, list[Part]]:
    """Plan a search for duplicate and contaminated rows: its settings, and parts of about 256 MB or a million rows.

    `columns`: the columns to compare. `runs`: hashes of the evaluation sets, written to `folder`; None without such
    sets. `across`: also drop rows of the split train that another split has.
    """
    if runs is not None:
        storage.write_bytes(storage.join(folder, _RUNS), runs.dump(), inside=inside)
    parts: list[Part] = []
    for number, split in enumerate(splits.values()):
        covered = cover(split.groups.ends, split.ranges)
        share = covered.counts / np.maximum(split.groups.num_rows[covered.groups], 1)
        weight = np.cumsum(split.groups.num_bytes[covered.groups] * share / _TASK_BYTES + covered.counts / _TASK_ROWS)
        spans = np.stack([covered.starts, covered.starts + covered.counts], axis=1)
        for part in np.split(spans, np.flatnonzero(np.diff(weight.astype(np.int64))) + 1):
            pieces = split.groups.pieces(part).part(slice(None))
            parts.append(Part(index=len(parts), split=number, reader=split.reader, pieces=pieces))
    comparison = Comparison(
        columns=columns,
        dedup=dedup,
        train=[*splits].index("train") if across else None,
        sets=runs.names if runs is not None else (),
        num_parts=len(parts),
        num_ranges=-(-max(sum(split.num_rows for split in splits.values()), 1) // _RANGE_ROWS),
        folder=folder,
        inside=inside,
    )
    return comparison, parts


def write_keys(comparison: Comparison, task: Part, progress: Progress) -> dict[str, int]:
    """Write the keys of a part's usable rows, one file per range of keys, and a file of its contaminated rows."""
    keys, contaminated = [np.zeros(0, _KEY)], [np.zeros(0, _UNUSED)]
    plan, runs = comparison.columns, None
    if comparison.sets:
        runs = text_hashes.EvaluationRuns.load(storage.read_bytes(storage.join(comparison.folder, _RUNS)))
    base = np.uint64(task.split) << _ROW_BITS
    for first, batch in task.reader.read(task.pieces, plan.names):
        is_usable = extraction.validate(batch, plan) == ""
        rows = batch.filter(pa.array(is_usable))
        places = base + np.arange(first, first + batch.num_rows, dtype=np.uint64)[is_usable]
        columns = [rows.column(name) for name in plan.content]
        if comparison.dedup is not None:
            batch_keys = np.zeros(len(places), _KEY)
            batch_keys["at"] = places
            batch_keys["high"], batch_keys["low"] = text_hashes.row_keys(
                columns, verbatim=comparison.dedup == "verbatim"
            ).T
            if plan.label is not None:
                label = rows.column(plan.label.column)
                batch_keys["label"] = text_hashes.row_keys([label], verbatim=True)[:, 0]
            keys.append(batch_keys)
        if runs is not None:
            sets = np.max([runs.find(column) for column in columns], axis=0)
            hits = np.empty(int((sets >= 0).sum()), _UNUSED)
            hits["at"], hits["of"], hits["same_label"] = places[sets >= 0], sets[sets >= 0], 1
            contaminated.append(hits)
    all_keys = np.concatenate(keys)
    ranges = all_keys["high"] % np.uint64(comparison.num_ranges)
    for number in range(comparison.num_ranges):
        comparison.write(f"keys-{task.index}-{number}", all_keys[ranges == number])
    comparison.write(f"contaminated-{task.index}", np.concatenate(contaminated))
    progress.add(rows=task.pieces.num_rows)
    return {"rows": task.pieces.num_rows}


def find_duplicates(comparison: Comparison, number: int, progress: Progress) -> dict[str, int]:
    """Write a file of all duplicate rows with keys in range `number`, each with the row that it repeats."""
    keys = comparison.read([f"keys-{part}-{number}" for part in range(comparison.num_parts)], _KEY)
    high = np.sort(keys["high"])
    # Most rows are unique, so few pass this filter.
    repeated = keys[np.isin(keys["high"], high[1:][high[1:] == high[:-1]])]
    comparison.write(f"found-{number}", _duplicates(repeated, train=comparison.train))
    return {"rows": len(keys)}


def _duplicates(rows: np.ndarray, *, train: int | None) -> np.ndarray:
    # `train`: number of the split that is compared with all others, which must be the last; None if there is none.
    rows = rows[np.lexsort((rows["at"], rows["low"], rows["high"]))]
    split = rows["at"] >> _ROW_BITS
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (rows["high"][1:] != rows["high"][:-1]) | (rows["low"][1:] != rows["low"][:-1])
    is_new_here = is_new.copy()
    is_new_here[1:] |= split[1:] != split[:-1]
    first = np.maximum.accumulate(np.where(is_new_here, np.arange(len(rows)), 0))
    if train is not None:
        first_of_all = np.maximum.accumulate(np.where(is_new, np.arange(len(rows)), 0))
        first = np.where(split == train, first_of_all, first)
    kept = rows[first]
    is_duplicate = kept["at"] != rows["at"]  # a row that is selected twice does not duplicate itself
    duplicates = np.empty(int(is_duplicate.sum()), _UNUSED)
    duplicates["at"], duplicates["of"] = rows["at"][is_duplicate], kept["at"][is_duplicate]
    duplicates["same_label"] = (kept["label"] == rows["label"])[is_duplicate]
    return duplicates


def collect_unused(comparison: Comparison, splits: Sequence[str]) -> tuple[dict[str, pa.Table], int]:
    """Return each split's unused rows, and the number of duplicates with another label than the kept row.

    `splits`: names, in the order passed to `divide`. The tables have the schema `unused_rows.TYPES`.
    """
    num_ranges = 0 if comparison.dedup is None else comparison.num_ranges
    same = comparison.read([f"found-{number}" for number in range(num_ranges)], _UNUSED)
    test = comparison.read([f"contaminated-{part}" for part in range(comparison.num_parts)], _UNUSED)
    same = np.unique(same[~np.isin(same["at"], test["at"])])
    at = np.concatenate([same["at"], test["at"]])
    sets = pa.array([f"contaminated:{name}" for name in comparison.sets], pa.string())
    columns = [
        [pa.repeat(pa.scalar("duplicate"), len(same)), sets.take(pa.array(test["of"].astype(np.int64)))],
        [pa.array(splits).take(pa.array(same["of"] >> _ROW_BITS)), pa.nulls(len(test), pa.string())],
        [pa.array((same["of"] & _ROW_MASK).astype(np.int64)), pa.nulls(len(test), pa.int64())],
    ]
    arrays = [pa.array((at & _ROW_MASK).astype(np.int64)), *map(pa.chunked_array, columns)]
    table = pa.Table.from_arrays(arrays, schema=unused_rows.TYPES)
    numbers = at >> _ROW_BITS
    by_split = {name: table.filter(pa.array(numbers == number)).sort_by("row") for number, name in enumerate(splits)}
    return by_split, int(np.count_nonzero(same["same_label"] == 0))
