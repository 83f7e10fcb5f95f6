"""Column plans of small datasets, and the rows that they extract."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.columns.column_planning import plan_columns
from pipelines.prepare.sources.columns.extraction import ColumnPlan, extract, validate
from pipelines.prepare.sources.rows.reading import Source
from tests.building import opened


def _batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def run(plan: ColumnPlan, **columns: pa.Array) -> tuple[list[str], dict[str, list[Any]]]:
    """The reasons, and the arrays of the rows that can be used."""
    length = len(next(iter(columns.values())))
    batch = _batch(**{"text": pa.array([str(index) for index in range(length)]), **columns})
    rows, reasons = extract(batch, plan)
    assert reasons.tolist() == validate(batch, plan).tolist()
    assert rows.texts[0].to_pylist() == [str(index) for index in range(length) if not reasons[index]]
    return reasons.tolist(), {name: values.tolist() for name, values in rows.arrays.items()}


def _source(folder: Path, made: dict[str, datasets.Dataset], **options: Any) -> tuple[SourceConfig, Source]:
    datasets.DatasetDict(made).save_to_disk(folder)
    config = SourceConfig(dataset=str(folder), **options)
    return config, opened(config)


def dataset(features: dict[str, Any] | None = None, **columns: Sequence[Any]) -> datasets.Dataset:
    made = {"text": [""] * len(next(iter(columns.values()))), **columns}
    told = datasets.Features({"text": datasets.Value("string"), **features}) if features else None
    return datasets.Dataset.from_dict(made, features=told)


def planned(folder: Path, made: datasets.Dataset, **options: Any) -> ColumnPlan:
    return plan_columns(*_source(folder, {"train": made}, **options))
