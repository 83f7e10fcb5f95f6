"""Counting words for a tokenizer on a runner's workers, which are other processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from apache_beam.internal import pickler

from pipelines.prepare.beam import transforms
from pipelines.prepare.beam.run import Run
from pipelines.prepare.options.source_config import SourceConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.tokenizer_training import counting
from pipelines.prepare.tokenizer_training.counting import CountTask
from pipelines.prepare.tokenizer_training.styles import StyleOptions
from tests import building
from tests.building import Outcome
from tests.support import servers
from tests.support.servers import Cluster
from tfrecord_io.errors import OutputError


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with servers.cluster(tmp_path_factory.mktemp("cluster") / "servers") as started:
        yield started


def train(output: Path, *beam_args: str, column: str = "text") -> Outcome:
    options = ["--kind", "wordpiece", "--vocab-size", 500, "--text-column", column, "--workers", 2]
    return building.command("tokenizer", building.REVIEWS, "--output", output, *options, "--", *beam_args)


@pytest.mark.slow
def test_workers_elsewhere_change_no_byte_and_leave_nothing_behind(tmp_path: Path, cluster: Cluster) -> None:
    outcome = train(tmp_path / "there", *cluster.beam_args)
    assert outcome.status == 0, outcome.err
    assert train(tmp_path / "here").status == 0
    assert building.files(tmp_path / "there") == building.files(tmp_path / "here")
    assert len(cluster.worker_pids()) > 0


def tasks(folder: Path) -> list[CountTask]:
    splits = list(building.opened(SourceConfig(dataset=str(building.REVIEWS))).splits.values())
    return counting.tasks_of(
        splits,
        ColumnPlan(texts=("text",)),
        [np.array([3], np.int64)] * len(splits),
        counts_evaluated=False,
        kind="wordpiece",
        style="bert",
        options=StyleOptions(),
        folder=str(folder),
    )


def test_tasks_and_the_step_that_runs_them_travel(tmp_path: Path) -> None:
    task = pickle.loads(pickle.dumps(counting.put_away(tasks(tmp_path)[0])))
    assert len(task.pieces) == len(task.pieces.files) == 0
    step = pickler.loads(
        pickler.dumps(transforms.Call(counting.run_counted, root=str(tmp_path), run=Run(), versions={}))
    )
    (rows,) = step.process(task)
    assert rows == counting.read_row_counts([task]).counted > 0
    assert len(counting.read_texts([task], most_bytes=10**6)) == 1


def test_a_task_whose_files_are_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"count-00000.json: missing, though the task is done"):
        counting.read_row_counts(tasks(tmp_path)[:1])
