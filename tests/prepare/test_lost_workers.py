"""Processes that die in the middle of a job: it ends soon, with cause and remedy, and the same command finishes it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import building, servers
from tests.building import REVIEWS, Outcome
from tests.servers import Cluster

WORKERS = 2
CHANGES = {"label_column": "label", "shard_size": "10kB", "workers": WORKERS}
PROCESSES = ["--direct_running_mode=multi_processing"]
# From the death of a process to the end of the launcher, on a busy machine.
SOON = 90


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that takes a second or two: the reviews, ten times."""
    folder = tmp_path_factory.mktemp("large") / "reviews"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes((REVIEWS / "train.jsonl").read_bytes() * 10)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with servers.cluster(tmp_path_factory.mktemp("cluster") / "servers") as started:
        yield started


@contextlib.contextmanager
def building_process(large: Path, output: Path, *beam_args: str) -> Iterator[subprocess.Popen[str]]:
    """A build at work, as a process."""
    command = building.program("build", large, *building.options(output, **CHANGES), "--", *beam_args)
    with subprocess.Popen(command, env=building.environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_shards(process: subprocess.Popen[str], output: Path, *, shards: int = 3) -> None:
    """Waits until the build has finished some of its shards, but by far not all."""
    while len(list(output.glob(".prep/*/train/receipt-*"))) < shards:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def wait_for_workers(process: subprocess.Popen[str]) -> list[int]:
    """Waits until the build has started its worker processes; those of them that are Python."""
    while True:
        found = [pid for pid in servers.descendants(process.pid) if "sdk_worker_main" in words(pid)]
        if len(found) >= WORKERS:
            return found
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def words(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if " -c " in line else line


def end_of(process: subprocess.Popen[str]) -> Outcome:
    """What the launcher leaves. Fails if it takes long."""
    _, said = process.communicate(timeout=SOON)
    return Outcome(status=process.returncode, out="", err=said)


def error_among(outcome: Outcome) -> tuple[str, str]:
    """Cause and remedy, whatever worker processes still say on the same terminal before and after."""
    assert outcome.status == 1, outcome.err
    lines = outcome.err.splitlines()
    (at,) = (index for index, line in enumerate(lines) if line.startswith("error: "))
    assert lines[at + 1].startswith("remedy: ")
    return lines[at], lines[at + 1]


def check_finished_later(large: Path, output: Path) -> None:
    """The same command, wherever it runs now, keeps what is there, and makes what a clean run makes."""
    assert not (output / "manifest.json").exists()
    kept = len(list(output.glob(".prep/*/train/receipt-*")))
    again = building.command("build", large, *building.options(output, **CHANGES))
    assert again.status == 0, again.err
    assert f"{kept} kept" in again.err
    assert building.files(output) == building.files(building.built(large, **CHANGES))


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_a_worker_process_that_is_killed_ends_the_job(tmp_path: Path, large: Path, which: int) -> None:
    """Beam itself notices it for one of the two, and for the other only when the first has made all of its shards."""
    output = tmp_path / "out"
    with building_process(large, output, *PROCESSES) as process:
        wait_for_shards(process, output)
        os.kill(wait_for_workers(process)[which], signal.SIGKILL)
        cause, remedy = error_among(end_of(process))
    assert "a worker process died in the middle of its work" in cause
    assert "run the same command again; finished shards are kept" in remedy
    check_finished_later(large, output)


@pytest.mark.slow
def test_a_worker_process_that_is_killed_before_it_begins_ends_the_job(tmp_path: Path, large: Path) -> None:
    """Beam itself would wait forever."""
    with building_process(large, tmp_path / "out", *PROCESSES) as process:
        os.kill(wait_for_workers(process)[1], signal.SIGKILL)
        cause, _ = error_among(end_of(process))
    assert "a worker process died in the middle of its work" in cause
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.slow
def test_a_portable_worker_that_is_killed_ends_the_job(tmp_path: Path, large: Path, cluster: Cluster) -> None:
    output = tmp_path / "out"
    with building_process(large, output, *cluster.beam_args, "--direct_num_workers=1") as process:
        wait_for_shards(process, output)
        os.kill(cluster.worker_pids()[-1], signal.SIGKILL)
        cause, remedy = end_of(process).error
    assert cause == "a worker process died in the middle of its work"
    assert remedy.startswith("run the same command again; finished shards are kept")
    check_finished_later(large, output)


@pytest.mark.slow
def test_a_job_service_that_is_killed_ends_the_job(tmp_path: Path, large: Path) -> None:
    output = tmp_path / "out"
    with (
        servers.cluster(tmp_path / "servers") as cluster,
        building_process(large, output, *cluster.beam_args) as process,
    ):
        wait_for_shards(process, output)
        cluster.service.kill()
        cause, remedy = end_of(process).error
    assert cause.startswith("the connection to the job service or to a worker broke: ")
    assert "run the same command again; finished shards are kept" in remedy
    check_finished_later(large, output)


@pytest.mark.slow
def test_a_worker_pool_that_is_killed_loses_nothing_once_its_workers_are_at_work(tmp_path: Path) -> None:
    output = tmp_path / "out"
    changes = {"label_column": "label", "shard_size": "3kB"}
    options = building.options(output, **changes)
    with servers.cluster(tmp_path / "servers") as cluster:
        command = building.program("build", REVIEWS, *options, "--", *cluster.beam_args)
        with subprocess.Popen(command, env=building.environment(), stderr=subprocess.PIPE, text=True) as process:
            wait_for_shards(process, output, shards=1)
            cluster.pool.kill()
            assert end_of(process).status == 0
        again = building.command("build", REVIEWS, *building.options(tmp_path / "again"), "--", *cluster.beam_args)
    assert building.files(output) == building.files(building.built(REVIEWS, **changes))
    assert again.error[0].startswith("the connection to the job service or to a worker broke: ")
    assert not (tmp_path / "again" / "manifest.json").exists()


@pytest.mark.slow
def test_a_portable_worker_that_never_begins_ends_the_job(tmp_path: Path) -> None:
    """As where the pool's Python has no Beam. Beam's job service waits forever."""
    program = (
        "from pipelines import cli\n"
        "from pipelines.prepare import waiting\n"
        "waiting._FIRST_SIGN_SECONDS = 3.0\n"
        "cli.main()\n"
    )
    words = ["build", REVIEWS, *building.options(tmp_path / "out")]
    with servers.cluster(tmp_path / "servers", worker="/bin/false") as cluster:
        command = [sys.executable, "-c", program, *map(str, words), "--", *cluster.beam_args]
        with subprocess.Popen(command, env=building.environment(), stderr=subprocess.PIPE, text=True) as process:
            cause, remedy = end_of(process).error
    assert cause == "no worker has begun 3 seconds after the job was started"
    assert "logs of the job service and its workers" in remedy


@pytest.mark.slow
def test_an_interrupt_ends_a_portable_launcher_at_once(tmp_path: Path, large: Path, cluster: Cluster) -> None:
    output = tmp_path / "out"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with building_process(large, output, *cluster.beam_args, "--direct_num_workers=1") as process:
        signal.signal(signal.SIGINT, before)
        wait_for_shards(process, output)
        process.send_signal(signal.SIGINT)
        assert end_of(process).error[0] == "interrupted before the dataset was complete"
    os.kill(cluster.worker_pids()[-1], signal.SIGKILL)
    check_finished_later(large, output)


@pytest.mark.slow
def test_an_error_in_a_portable_worker_ends_in_its_cause_and_remedy(tmp_path: Path, cluster: Cluster) -> None:
    options = building.options(tmp_path / "out", truncation="do_not_truncate")
    outcome = building.command("build", REVIEWS, *options, "--", *cluster.beam_args)
    assert outcome.error[0].startswith("97 of 400 rows cannot be used (train: 70 too_long; validation: 27 too_long)")
    assert outcome.error[1].startswith("mend or filter these rows")
    assert not (tmp_path / "out" / "manifest.json").exists()
