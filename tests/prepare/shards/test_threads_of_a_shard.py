"""How many threads call an encoder while a shard's rows are gathered, and how many shards are gathered at once."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from pipelines.prepare import storage
from pipelines.prepare.beam.run import Run
from pipelines.prepare.dataset import plan_files
from pipelines.prepare.dataset.reservation import JOB_FILE
from pipelines.prepare.shards import shard_writer
from tests.prepare import stored
from tests.support.tokenizers_zoo import Zoo


class Meter:
    """Notes how many threads are inside at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
        time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1


class Metered:
    """An encoder that notes how many threads are in it at once."""

    def __init__(self, encoder: Any, *, concurrent: bool) -> None:
        self._encoder = encoder
        self.meter = Meter()
        self.concurrent = concurrent
        self.reference = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(self, rows: Any) -> Any:
        with self.meter:
            return self._encoder.encode(rows)


@pytest.mark.parametrize("concurrent", [False, True])
def test_an_encoder_is_called_by_several_threads_only_if_it_can_serve_them(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concurrent: bool
) -> None:
    monkeypatch.setattr(shard_writer, "_BATCH_BYTES", 200)
    source = stored.parquet(tmp_path / "data", {"text": ["a small house by the river"] * 200})
    work = stored.work(zoo.path("wordpiece_cased"), source, root=str(tmp_path))
    storage.write_bytes(work.job.work_path(JOB_FILE), b"{}", inside=work.job.root)
    made, _ = stored.plan(work, targets=1)
    plan_files.write(work.job, made, source.groups)
    encoder: Any = Metered(work.encoder, concurrent=concurrent)
    task = plan_files.task_of(work.job, plan_files.key_of(made.tasks()[0]))
    shard_writer.write(task, work.job, encoder, gathering=contextlib.nullcontext(2))
    assert encoder.meter.most == (2 if concurrent else 1)


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


class Encoder:
    def __init__(self, *, concurrent: bool) -> None:
        self.concurrent = concurrent


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(("num_tasks", "threads"), [(1, [4]), (2, [2, 2]), (3, [1, 1, 1]), (9, [1, 1, 1, 1])])
def test_cores_are_shared_among_the_shards_that_can_be_made_at_once(num_tasks: int, threads: list[int]) -> None:
    run = Run(num_tasks=num_tasks)
    with contextlib.ExitStack() as stack:
        encoder: Any = Encoder(concurrent=True)
        assert [stack.enter_context(run.gathering(encoder)) for _ in threads] == threads


@pytest.mark.usefixtures("four_cores")
def test_the_last_shard_has_all_cores_once_the_others_are_gathered() -> None:
    run = Run(num_tasks=5)
    encoder: Any = Encoder(concurrent=True)
    for _ in range(4):
        with run.gathering(encoder):
            pass
    with run.gathering(encoder) as threads:
        assert threads == 4


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(("concurrent", "most"), [(True, 4), (False, 1)])
def test_an_encoder_in_python_gathers_one_shard_at_a_time(concurrent: bool, most: int) -> None:
    run, meter, together = Run(num_tasks=8), Meter(), threading.Barrier(most, timeout=120)
    encoder: Any = Encoder(concurrent=concurrent)

    def gather(_: int) -> None:
        with run.gathering(encoder), meter:
            together.wait()

    with futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(gather, range(8)))
    assert meter.most == most
