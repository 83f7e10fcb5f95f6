"""Detection of unusable rows before shards are made."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from pipelines.prepare.launch import launcher, split_plans
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.sources.rows.unused_rows import RejectedRow, UnusedRows
from tests import building
from tests.prepare import stored
from tests.prepare.stored import Work
from tests.support import seams
from tests.support.commits import request
from tests.support.plans import groups_of, plan_of
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io.schema import Feature

ROWS = 2000
COLUMNS = ColumnPlan(texts=("text",), kept=(Feature(name="kept", dtype="int64", shape=(), role="column"),))


def made(folder: Path, zoo: Zoo, *, texts: Any = (), kept: Any = (), ranges: Any = None) -> Work:
    """Rows with nulls of `texts` and `kept`."""
    columns = {"text": [None if row in texts else f"text {row} " * 5 for row in range(ROWS)]}
    columns["kept"] = pa.array([None if row in kept else row for row in range(ROWS)], pa.int64())
    source = stored.parquet(folder, pa.table(columns), group_rows=20, ranges=ranges)
    return stored.work(zoo.path("wordpiece_uncased"), source, columns=COLUMNS)


def unused_rows(work: Work) -> UnusedRows:
    return split_plans.find_unused(work.job.spec.columns, work.splits["train"], work.measure().read)


def test_of_a_split_that_is_read_whole_every_unusable_row_is_known(tmp_path: Path, zoo: Zoo) -> None:
    unused = unused_rows(made(tmp_path, zoo, texts=range(7, ROWS, 50), kept=[1999, 57]))
    assert unused.rejected == {"column_null": 1, "text_null": 40}
    assert unused.first == tuple(RejectedRow(row=row, reason="text_null") for row in (7, 57, 107))
    assert unused.exact


@pytest.mark.parametrize(
    ("nulls", "rows"),
    [
        ({"texts": range(1407, ROWS, 50)}, [12]),
        # Nulls of several columns may be in the same rows.
        ({"texts": range(0, 20, 2), "kept": range(0, 20, 4)}, [10]),
        # Of the group of rows 1000 to 1019 half is asked for: of its 12 nulls 2 at least are there, 6 if sampled.
        ({"texts": [*range(998), *range(1004, 1016)], "ranges": [(1010, ROWS)]}, [2, 6]),
    ],
)
def test_nulls_are_counted_without_reading(
    tmp_path: Path, zoo: Zoo, nulls: dict[str, Any], rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seams.put(monkeypatch, sample_bytes=3000)
    unused = unused_rows(made(tmp_path, zoo, **nulls))
    assert unused.rejected.get("text_null", 0) in rows
    assert not unused.exact


def test_more_shards_than_a_manifest_can_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = building.source(tmp_path / "data", train=[{"text": f"row {row}"} for row in range(400)])
    seams.put(monkeypatch, manifest_bytes=1000)
    ran = building.command("build", data, *building.options(tmp_path / "out", shard_size="1kB"))
    assert ran.status != 0
    assert "shards of 1,000 bytes, more than a manifest.json can list" in ran.err
    assert "give a larger --shard-size" in ran.err
    assert not [*(tmp_path / "out").rglob("*.tfrecord")]


@pytest.mark.slow
def test_a_relative_output_is_made_absolute_before_it_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seams.put(monkeypatch, open_request=(opened := mock.Mock(side_effect=ArithmeticError)))
    with pytest.raises(ArithmeticError):
        launcher.build(dataclasses.replace(request("out"), beam_args=("--runner=DirectRunner",)))
    assert opened.call_args.args[0].output.root == str(tmp_path / "out")


def test_the_requests_to_the_hub_are_counted_once_the_plan_is_there(caplog: pytest.LogCaptureFixture) -> None:
    files = tuple(DataFile(path=f"hf://datasets/a/b@c/{index}.parquet", size=9) for index in range(2))
    groups = dataclasses.replace(groups_of([10] * 4000), files=files, source_rows=np.array([15_000, 25_000]))
    # Two runs of the first shard share a file; one continues in the other file. Each file has a footer.
    plan = plan_of([[(0, 10), (20, 20_000)], [(20_000, 40_000)]] * 500, rows=40_000)
    opened: Any = SimpleNamespace(job=SimpleNamespace(splits={"train": SimpleNamespace(groups=groups)}))
    planned: Any = {"train": (plan, None)}
    split_plans._warn_of_requests(opened, planned)
    assert "needs up to 4,000 requests, and the Hub allows 3,000" in caplog.text
