"""The same pipeline on Apache Flink: the same bytes, and an end in two lines when something goes wrong."""

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import building
from tests.building import REVIEWS, Outcome
from tests.prepare.beam.test_portable import (
    FOUND_BY_A_SHARD,
    check_same,
    only_shards_find,
    reviews,
    small_sample,
    written,
)
from tests.support import flink, servers
from tests.support.servers import Cluster

__all__ = ["small_sample"]

# A worker stays for the next stage of a job, which would else start another.
KEPT = "--environment_cache_millis=20000"
SOON = 90
CHANGES = {"layout": "concat", "shard_size": "10kB"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Flink, and a pool for its workers."""
    folder = tmp_path_factory.mktemp("flink")
    with flink.job_server(folder) as service, servers.worker_pool(folder) as pool:
        yield Cluster(service=service, pool=pool)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("source") / "train.parquet", reviews())


@contextlib.contextmanager
def build_that_starts_flink(dataset: Path, output: Path) -> Iterator[subprocess.Popen[str]]:
    """A build at work, as a user would type it: one task at a time, in a thread of the launcher."""
    args = ["--runner=FlinkRunner", "--flink_master=[local]", f"--flink_job_server_jar={flink.jar()}"]
    args += ["--parallelism=1", *(f"--job_server_jvm_properties={option}" for option in flink.JVM)]
    command = building.program("build", dataset, *building.options(output, **CHANGES), "--", *args)
    # Whatever started these tests may have them ignore interrupts, which processes inherit.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, env=building.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        signal.signal(signal.SIGINT, before)
        try:
            yield process
        finally:
            process.kill()


def flink_of(process: subprocess.Popen[str], output: Path) -> list[int]:
    """Waits for the first shard. Returns: the processes that the build has started by then."""
    while not list(output.glob(".prep/*/train/receipt-*")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    return [pid for pid in servers.descendants(process.pid) if "java" in Path(f"/proc/{pid}/comm").read_text()]


@pytest.mark.slow
def test_flink_with_workers_elsewhere_changes_no_byte(tmp_path: Path, source: Path, cluster: Cluster) -> None:
    before, logged = cluster.worker_pids(), len(cluster.service.log.read_text())
    args = [*cluster.beam_args, KEPT, "--parallelism=3"]
    check_same(source, tmp_path / "out", *args, label_column="label", shard_size="6kB")
    assert len(set(cluster.worker_pids()) - set(before)) == 1, "made by a worker that Flink had the pool start"
    tasks = re.findall(r"WriteShard.*?\((\d/\d)\)", cluster.service.log.read_text()[logged:])
    assert {"1/3", "2/3", "3/3"} <= set(tasks), "one part of the work for each of three"


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_flink_that_beam_starts_changes_no_byte_and_ends_with_the_job(
    tmp_path: Path, source: Path, interrupted: bool
) -> None:
    with build_that_starts_flink(source, tmp_path / "out") as process:
        (started,) = flink_of(process, tmp_path / "out")
        if interrupted:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SOON)
    assert not Path(f"/proc/{started}").exists()
    if interrupted:
        outcome = Outcome(status=process.returncode, out=out, err=err)
        assert outcome.error[0] == "interrupted before the dataset was complete"
        assert not (tmp_path / "out" / "manifest.json").exists()
    else:
        assert process.returncode == 0, err
        assert building.files(tmp_path / "out") == building.files(building.built(source, **CHANGES))


@pytest.mark.slow
@pytest.mark.usefixtures("small_sample")
def test_an_error_on_a_worker_comes_back_through_flink(tmp_path: Path, cluster: Cluster) -> None:
    data, options = only_shards_find(tmp_path)
    args = [*cluster.beam_args, KEPT, "--parallelism=2"]
    cause, remedy = building.command("build", data, *options, "--", *args).error
    assert re.fullmatch(FOUND_BY_A_SHARD, cause)
    assert remedy.startswith("mend or filter these rows")
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("given", ["--flink_job_server_jar=/no/such.jar", "--job_server_java_launcher=/no/java"])
def test_a_flink_that_does_not_start_is_an_error(tmp_path: Path, given: str) -> None:
    jar = tmp_path / "x.jar"
    jar.touch()
    args = ["--runner=FlinkRunner", f"--flink_job_server_jar={jar}", given]
    cause, remedy = building.command("build", REVIEWS, *building.options(tmp_path / "out"), "--", *args).error
    assert cause.startswith("the job server for --runner=FlinkRunner did not start: ")
    assert given.partition("=")[2] in cause
    assert "--job_endpoint" in remedy
