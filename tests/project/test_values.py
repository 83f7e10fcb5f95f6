"""The table of values in docs/reference/difficult-data.md: written values are kept in each format.

Each value is written in a column of two rows, followed by a plain value of the same type. The test compares it with the
value that a build's planning reads.
"""

import datetime
import json
import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.columns import column_planning, extraction
from pipelines.prepare.sources.ingest import objects
from tests import building
from tests.building import REPOSITORY
from tfrecord_io.errors import PrepError

FORMATS = ("json", "jsonl", "csv", "tsv", "parquet", "arrow", "Dataset", "frame")
DAY = datetime.date(2024, 1, 31)
TIME = datetime.datetime(2024, 1, 31, 12, 30)
LONG = "é" * 40

# name: the two values, and the Arrow type of formats that have types.
VALUES: dict[str, tuple[list[Any], pa.DataType]] = {
    "text": (["plain text", "b"], pa.string()),
    "text-like-a-number": (["007", "12"], pa.string()),
    "text-like-a-fraction": (["0012345.50", "1.0"], pa.string()),
    "text-like-an-exponent": (["1e5", "2"], pa.string()),
    "text-like-a-boolean": (["True", "false"], pa.string()),
    "text-like-a-date": (["2024-01-31", "2024-02-01"], pa.string()),
    "text-with-quotes": (['say "so", then', "b"], pa.string()),
    "text-with-line-breaks": (["one\ntwo", "b"], pa.string()),
    "text-with-blanks": (["  a\t", "b"], pa.string()),
    "text-with-marks": (["مرحبا 😀 é", "b"], pa.string()),
    "text-null": ([None, "b"], pa.string()),
    "text-empty": (["", "b"], pa.string()),
    "text-word-for-null": (["NA", "null"], pa.string()),
    "large-text": ([LONG, "b"], pa.large_string()),
    "text-view": ([LONG, "b"], pa.string_view()),
    "text-dictionary": (["red", "blue"], pa.dictionary(pa.int32(), pa.string())),
    "integer": ([7, -12], pa.int64()),
    "small-integer": ([7, 3], pa.int8()),
    "unsigned-integer": ([7, 3], pa.uint64()),
    "integer-null": ([None, 3], pa.int64()),
    "beyond-int32": ([2**31, 3], pa.int64()),
    "fraction": ([0.5, -1.25], pa.float64()),
    "fraction-third": ([1 / 3, 0.5], pa.float64()),
    "boolean": ([True, False], pa.bool_()),
    "bytes": ([b"\x00\xff", b"b"], pa.binary()),
    "class": ([0, 1], pa.int64()),
    "date": ([DAY, DAY], pa.date32()),
    "time": ([TIME, TIME], pa.timestamp("us")),
    "vector": ([[1, 2], [3, 4]], pa.list_(pa.int64())),
    "nested": ([{"a": "x"}, {"a": "y"}], pa.struct({"a": pa.string()})),
    "late-key": ([None, "b"], pa.string()),
}  # fmt: skip


def _features(name: str, kind: pa.DataType) -> datasets.Features:
    value = datasets.ClassLabel(names=["no", "yes"]) if name == "class" else None
    kept = datasets.Features.from_arrow_schema(pa.schema([("v", kind)]))
    return datasets.Features({"text": datasets.Value("string"), "v": value or kept["v"]})


def _rows(name: str, values: list[Any]) -> list[dict[str, Any]]:
    rows = [{"text": "a", "v": value} for value in values]
    if name == "late-key":
        del rows[0]["v"]
    return rows


def write(folder: Path, form: str, name: str) -> dict[str, Any]:
    values, kind = VALUES[name]
    path = folder / f"train.{form}"
    if form in ("json", "jsonl"):
        lines = [json.dumps(row, default=str) for row in _rows(name, values)]
        path.write_text(f"[{', '.join(lines)}]" if form == "json" else "\n".join(lines))
    elif form in ("csv", "tsv"):
        frame = pd.DataFrame({"text": ["a", "a"], "v": pd.Series(values, dtype=object)})
        frame.to_csv(path, sep="\t" if form == "tsv" else ",", index=False)
    elif form in ("parquet", "arrow"):
        table = pa.table({"text": ["a", "a"], "v": pa.array(values, kind)})
        if name == "class":
            table = table.cast(_features(name, kind).arrow_schema)
        if form == "parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_stream(str(path), table.schema) as stream:
                stream.write_table(table)
    else:
        columns: dict[str, Any] = {"text": ["a", "a"], "v": values}
        made = (
            datasets.Dataset.from_dict(columns, _features(name, kind)) if form == "Dataset" else pd.DataFrame(columns)
        )
        place, splits = objects.store(made, str(folder))
        return {"dataset": place, "object_splits": splits}
    return {"dataset": str(path)}


def outcome(folder: Path, form: str, name: str) -> str:
    """`=` if both values are kept as they were written, else what becomes of the first."""
    values = VALUES[name][0]
    role = {"label_column": "v"} if name == "class" else {"keep_columns": ("v",)}
    config = SourceConfig(**write(folder, form, name), **role)
    try:
        source = building.opened(config)
        plan = column_planning.plan_columns(config, source)
        (split,) = source.splits.values()
        ((_, batch),) = split.read(split.ranges, plan.names)
        rows, reasons = extraction.extract(batch, plan)
    except PrepError:
        return "refused"
    if reasons.any():
        return f"`{reasons[0]}`"
    kept = rows.arrays["label" if name == "class" else "v"]
    read = kept.tolist()
    if name == "class":
        assert plan.label_names is None or [plan.label_names[row] for row in read] == ["no", "yes"]
        return "=" if read == values else str(read[0])
    read = [item.decode() if isinstance(item, bytes) and not isinstance(values[0], bytes) else item for item in read]
    if read == values:
        return "="
    if read == [float(np.float32(value)) if isinstance(value, float) else value for value in values]:
        return "float32"
    return f"`{read[0]}`"


def page() -> dict[str, list[str]]:
    text = (REPOSITORY / "docs" / "reference" / "difficult-data.md").read_text(encoding="utf-8")
    table = text.partition("| value | json |")[2].partition("\n\n")[0]
    lines = re.findall(r"^\| ([a-z0-9-]+) \| (.+) \|$", table, re.M)
    return {name: cells.split(" | ") for name, cells in lines}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_kept_as_the_page_says(tmp_path: Path, name: str) -> None:
    for form, expected in zip(FORMATS, page().get(name, ["="] * len(FORMATS)), strict=True):
        (tmp_path / form).mkdir()
        assert outcome(tmp_path / form, form, name) == expected, form


def test_the_page_has_the_values_that_a_format_changes() -> None:
    rows = page()
    assert [*rows] == [name for name in VALUES if name in rows]
    assert [name for name, cells in rows.items() if {*cells} == {"="}] == []
