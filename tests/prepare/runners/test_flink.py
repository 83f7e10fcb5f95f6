"""The same pipeline on Apache Flink: the same bytes, and an end in two lines when something goes wrong."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import building
from tests.building import REVIEWS
from tests.support import flink, limits, servers
from tests.support.flink import check_same, reviews, written
from tests.support.servers import Cluster

# A worker stays for the next stage of a job, which would else start another.
KEPT = f"--environment_cache_millis={limits.PROCESS * 1000}"
CHANGES = {"layout": "concat", "shard_size": "10kB"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("flink")
    with flink.job_server(folder) as service, servers.worker_pool(folder) as pool:
        yield Cluster(service=service, pool=pool)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("source") / "train.parquet", reviews())


@pytest.mark.slow
def test_flink_with_workers_elsewhere_changes_no_byte(tmp_path: Path, source: Path, cluster: Cluster) -> None:
    before, logged = cluster.worker_pids(), len(cluster.service.log.read_text())
    args = [*cluster.beam_args, KEPT, "--parallelism=3"]
    check_same(source, tmp_path / "out", *args, label_column="label", shard_size="6kB")
    assert len(set(cluster.worker_pids()) - set(before)) == 1, "made by a worker that Flink had the pool start"
    tasks = re.findall(r"Work.*?\((\d/\d)\)", cluster.service.log.read_text()[logged:])
    assert {"1/3", "2/3", "3/3"} <= set(tasks), "one part of the work for each of three"


@pytest.mark.slow
def test_a_flink_that_beam_starts_changes_no_byte_and_ends_with_the_job(tmp_path: Path, source: Path) -> None:
    args = ["--runner=FlinkRunner", "--flink_master=[local]", f"--flink_job_server_jar={flink.jar()}"]
    args += ["--parallelism=1", *(f"--job_server_jvm_properties={option}" for option in flink.jvm(tmp_path))]
    output = tmp_path / "out"
    command = building.program("build", source, *building.options(output, **CHANGES), "--", *args)
    with building.started(command, output, shards=1) as process:
        pids = servers.descendants(process.pid)
        (started,) = (pid for pid in pids if "java" in Path(f"/proc/{pid}/comm").read_text())
        _, err = process.communicate(timeout=limits.PROCESS)
    assert not Path(f"/proc/{started}").exists()
    assert process.returncode == 0, err
    assert building.files(output) == building.files(building.built(source, **CHANGES))


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--flink_job_server_jar=/no/such.jar", "--job_server_java_launcher=/no/java"])
def test_a_flink_that_does_not_start_is_an_error(tmp_path: Path, option: str) -> None:
    jar = tmp_path / "x.jar"
    jar.touch()
    args = ["--runner=FlinkRunner", f"--flink_job_server_jar={jar}", option]
    cause, remedy = building.command("build", REVIEWS, *building.options(tmp_path / "out"), "--", *args).error
    assert cause.startswith("the job server for --runner=FlinkRunner did not start: ")
    assert option.partition("=")[2] in cause
    assert "--job_endpoint" in remedy
