"""What `datasets` takes from the first file for all files: classes are mapped by name; types must keep the values."""

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.columns import column_planning
from pipelines.prepare.sources.rows.reading import Source
from tests import building
from tfrecord_io.errors import SourceError

FIRST, LATER = ("neg", "neutral", "pos"), ("neg", "pos", "new")


def write(folder: Path, name: str, columns: Mapping[str, Sequence[Any]], **features: Any) -> None:
    known = datasets.Features({"text": datasets.Value("string"), **features})
    made = datasets.Dataset.from_dict({"text": ["a"] * len(next(iter(columns.values()))), **columns}, features=known)
    if name.endswith(".parquet"):
        made.to_parquet(folder / name)
        return
    made.save_to_disk(folder / "saved")
    shutil.move(next((folder / "saved").glob("*.arrow")), folder / name)
    shutil.rmtree(folder / "saved")


def opened(folder: Path, suffix: str, **options: Any) -> Source:
    return building.opened(SourceConfig(dataset=f"{folder}/*.{suffix}", **options))


def values(source: Source, name: str) -> list[Any]:
    split = source.splits["train"]
    return [value for _, batch in split.read(split.ranges, [name]) for value in batch.column(0).to_pylist()]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("role", ["label_column", "keep_columns"])
def test_each_row_has_the_class_that_its_own_file_gives_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, role: str
) -> None:
    for name, names in (("a", FIRST), ("b", LATER)):
        rows: dict[str, list[Any]] = {"label": [0, 1, 2, -1], "tags": [[0, 1], [], [2], [2, 0]]}
        label = datasets.ClassLabel(names=[*names])
        write(tmp_path, f"{name}.{suffix}", rows, label=label, tags=datasets.List(label))
    with caplog.at_level(logging.WARNING, logger="pipelines"):
        for column, held in (
            ("label", [0, 1, 2, -1, 0, 2, 3, -1]),
            ("tags", [[0, 1], [], [2], [2, 0], [0, 2], [], [3], [3, 0]]),
        ):
            config: dict[str, Any] = {role: column if role == "label_column" else (column,)}
            source = opened(tmp_path, suffix, **config)
            assert values(source, column) == held
            plan = column_planning.plan_columns(SourceConfig(dataset="x", **config), source)
            assert plan.label is None or plan.label.names == (*FIRST, "new")
    assert "its files have different classes; all files get the classes neg, neutral, pos, new" in caplog.text


def test_an_id_that_its_own_file_has_no_class_for_is_none_of_another_file(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", {"label": [0, 2]}, label=datasets.ClassLabel(names=[*FIRST]))
    schema = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["pos", "neg"])}
    ).arrow_schema
    pq.write_table(pa.table({"text": ["a"] * 4, "label": [0, 1, 2, None]}, schema=schema), tmp_path / "b.parquet")
    assert values(opened(tmp_path, "parquet", label_column="label"), "label") == [0, 2, 2, 0, -2, None]


def test_a_column_that_nothing_reads_costs_no_copy(tmp_path: Path) -> None:
    for name, names in (("a", FIRST), ("b", LATER)):
        write(tmp_path, f"{name}.parquet", {"label": [1]}, label=datasets.ClassLabel(names=[*names]))
    source = opened(tmp_path, "parquet")
    assert not any(file.ingested for file in source.splits["train"].groups.files)


@pytest.mark.parametrize(
    ("kind", "rows"), [(datasets.Value("int64"), [0, 1]), (datasets.Value("string"), ["neg", "pos"])]
)
def test_classes_in_one_file_and_none_in_another_are_refused(tmp_path: Path, kind: Any, rows: list[Any]) -> None:
    write(tmp_path, "a.parquet", {"label": [0, 2]}, label=datasets.ClassLabel(names=[*FIRST]))
    write(tmp_path, "b.parquet", {"label": rows}, label=kind)
    with pytest.raises(SourceError, match=r"b.parquet: column 'label' is Value\(.*, but ClassLabel.* in the first"):
        opened(tmp_path, "parquet", label_column="label")


TEXT, INT, BOOL, TIME, UTC = pa.string(), pa.int64(), pa.bool_(), pa.timestamp("us"), pa.timestamp("us", "UTC")
# The column's type in the first file and in a later one, and a value there.
CHANGED: tuple[tuple[pa.DataType, pa.DataType, Any], ...] = (
    *((TEXT, INT, 7), (INT, TEXT, "007"), (BOOL, INT, 2), (INT, BOOL, True), (TEXT, BOOL, True), (TIME, UTC, 0)),
    *((UTC, TIME, 0), (pa.date32(), TIME, 0), (TEXT, TIME, 0), (pa.list_(TEXT), pa.list_(INT), [7])),
    *((pa.list_(INT, 2), pa.list_(INT, 3), [1, 2, 3]), (pa.struct({"a": TEXT}), pa.struct({"a": INT}), {"a": 7})),
    (TEXT, pa.dictionary(pa.int32(), INT), 7),
)
KEPT: tuple[tuple[pa.DataType, pa.DataType, Any], ...] = (
    *((pa.int32(), INT, 7), (pa.float64(), INT, 7), (TEXT, pa.large_string(), "a"), (TEXT, pa.string_view(), "a")),
    *((TEXT, pa.dictionary(pa.int32(), TEXT), "a"), (TEXT, pa.null(), None), (pa.list_(INT), pa.list_(INT, 2), [1, 2])),
    (pa.struct({"a": INT, "b": INT}), pa.struct({"b": pa.int32()}), {"a": None, "b": 1}),
)


@pytest.mark.parametrize(("first", "later", "value"), [*CHANGED, *KEPT])
def test_a_later_type_is_read_if_it_keeps_values_and_refused_if_it_would_change_them(
    tmp_path: Path, first: pa.DataType, later: pa.DataType, value: Any
) -> None:
    for name, kind, held in (("a", first, None), ("b", later, value)):
        pq.write_table(pa.table({"text": ["a"], "x": pa.array([held], kind)}), tmp_path / f"{name}.parquet")
    if (first, later, value) in KEPT:
        assert values(opened(tmp_path, "parquet"), "x") == [None, value]
        return
    with pytest.raises(SourceError, match=r"b.parquet: column 'x' holds .*, expected .*, as in the first file or"):
        opened(tmp_path, "parquet")
