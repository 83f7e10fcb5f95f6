"""Beam's portable runner with separate worker processes: the same bytes, and a clean end after any death.

A job ends soon after one of its processes dies, with cause and remedy, and the same command finishes it. A launcher
leaves no process, however it ends: each launcher process leads a session, which must be empty soon afterwards.
Other tests use this process as the launcher.

Every process must import Beam, which dominates the cost of these tests, so none starts more than it needs.
"""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import building
from tests.building import Outcome, read_manifest
from tests.support import limits, seams, servers
from tests.support.flink import check_same, reviews, written
from tests.support.servers import Cluster

# Shards after which a build is at work.
SOME = 3
CHANGES = {"label_column": "label", "shard_size": "10kB", "workers": 1}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with servers.cluster(tmp_path_factory.mktemp("cluster") / "servers") as started:
        yield started


@pytest.mark.slow
def test_several_workers_change_no_byte(tmp_path: Path, cluster: Cluster) -> None:
    dataset = written(tmp_path / "train.parquet", reviews())
    check_same(dataset, tmp_path / "out", *cluster.beam_args, workers=2, layout="concat", shard_size="6kB")
    assert len(cluster.worker_pids()) >= 2, "each in a process of its own"
    assert "with state DONE" in cluster.service.log.read_text()


@pytest.mark.slow
def test_rows_compared_by_workers_are_those_that_are_compared_here(tmp_path: Path, cluster: Cluster) -> None:
    rows = reviews()
    dataset = written(tmp_path / "train.parquet", [*rows, *rows[:9]])
    exam = building.source(tmp_path, exam=[{"text": rows[20]["text"]}]) / "exam.jsonl"
    options: dict[str, Any] = {"dedup": "exact", "decontaminate": exam, "decontaminate_words": 8}
    check_same(dataset, tmp_path / "out", *cluster.beam_args, **options)
    left = read_manifest(tmp_path / "out").splits["train"].ledger.filtered
    assert {reason.partition(":")[0]: count for reason, count in left.items()} == {"contaminated": 1, "duplicate": 9}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("large") / "train.parquet", reviews() * 5)


def end_of_launcher(
    output: Path, large: Path, *beam_args: str, at_work: Callable[[subprocess.Popen[str]], object]
) -> Outcome:
    """Return the files of a launcher that an event interrupts. Fail if it takes long to end or leaves a process."""
    command = building.program("build", large, *building.options(output, **CHANGES), "--", *beam_args)
    with building.started(command, output, shards=SOME, start_new_session=True) as process:
        at_work(process)
        out, err = process.communicate(timeout=limits.PROCESS)
    give_up = time.monotonic() + limits.ANSWER
    while left := servers.session(process.pid):
        assert time.monotonic() < give_up, left
        time.sleep(0.01)
    return Outcome(status=process.returncode, out=out, err=err)


def build_until(at_work: Callable[[], object], dataset: Path, output: Path, *beam_args: str) -> Outcome:
    """Runs a build with one worker in this process. Calls `at_work` once it is. Fails if the build takes long then."""
    over = threading.Event()
    called = []

    def watch() -> None:
        while not over.wait(0.02):
            if len(list(output.glob(".prep/*/train/receipt-*"))) >= SOME:
                at_work()
                called.append(True)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        outcome = building.command("build", dataset, *building.options(output, **CHANGES), "--", *beam_args)
    finally:
        over.set()
        watcher.join()
    assert called, "the build was over before anything could happen to it"
    return outcome


@pytest.mark.slow
def test_a_portable_worker_that_is_killed_ends_the_job(tmp_path: Path, large: Path, cluster: Cluster) -> None:
    output = tmp_path / "out"
    outcome = build_until(lambda: os.kill(cluster.worker_pids()[-1], signal.SIGKILL), large, output, *cluster.beam_args)
    cause, remedy = outcome.error
    assert cause == "a worker process died during its work"
    assert remedy.startswith("run the same command again; finished shards are kept")
    assert not (output / "manifest.json").exists()


@pytest.mark.slow
def test_a_job_service_that_is_killed_ends_the_job(tmp_path: Path, large: Path, cluster: Cluster) -> None:
    output = tmp_path / "out"
    with servers.job_service(tmp_path) as service:
        own = Cluster(service=service, pool=cluster.pool)
        cause, remedy = end_of_launcher(output, large, *own.beam_args, at_work=lambda _: service.kill()).error
    assert cause.startswith("the connection to the job service or to a worker broke: ")
    assert "run the same command again; finished shards are kept" in remedy
    assert not (output / "manifest.json").exists()


@pytest.mark.slow
def test_an_interrupt_ends_a_portable_launcher_at_once(tmp_path: Path, large: Path, cluster: Cluster) -> None:
    output = tmp_path / "out"
    outcome = end_of_launcher(output, large, *cluster.beam_args, at_work=lambda child: child.send_signal(signal.SIGINT))
    assert outcome.error[0] == "interrupted before the dataset was complete"
    os.kill(cluster.worker_pids()[-1], signal.SIGKILL)
    assert not (output / "manifest.json").exists()


@pytest.mark.slow
def test_an_error_in_a_portable_worker_ends_in_its_cause_and_remedy(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seams.put(monkeypatch, sample_rows=16)  # without the long row
    data = written(tmp_path / "data.parquet", [{"text": "word " * (50 if row == 199 else 5)} for row in range(200)])
    changes = {"truncation": "do_not_truncate", "no_shuffle": True, "shard_size": "2kB"}
    options = building.options(tmp_path / "out", **changes)
    cause, remedy = building.command("build", data, *options, "--", *cluster.beam_args).error
    assert re.fullmatch(r"row \d+ of .*: too many tokens; --max-error-rate 0 allows no row that cannot be used", cause)
    assert remedy.startswith("give a larger --max-length, or allow a share of them")
    assert not (tmp_path / "out" / "manifest.json").exists()
