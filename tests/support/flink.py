"""Beam's job server for Apache Flink, with a whole Flink in its process, as a server on this machine.

    launcher ──► job server = Flink ──► workers: a pool's, or threads of the launcher

scripts/get_flink_job_server.py gets it. Where that was not done, or Java is missing, tests are skipped.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scripts import get_flink_job_server
from tests import building
from tests.building import REVIEWS, read_manifest
from tests.support import seams, servers
from tests.support.servers import Server
from tfrecord_io import manifest

# A small heap, and no time spent on optimizing what runs for seconds.
_JVM = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def jvm(folder: Path) -> tuple[str, ...]:
    return *_JVM, f"-Djava.io.tmpdir={folder}"


def jar() -> Path:
    """The job server's jar. Skips the test if it cannot run here, and says why."""
    if missing := get_flink_job_server.missing():
        pytest.skip(f"no Flink: {missing}")
    return get_flink_job_server.path()


@contextlib.contextmanager
def job_server(folder: Path) -> Iterator[Server]:
    """Start a server that runs jobs on its own Flink. `folder` gets its log and job files."""
    ports = ["--job-port=0", "--artifact-port=0", "--expansion-port=0"]
    options = ["--job-host=localhost", "--flink-master=[local]", f"--artifacts-dir={folder / 'artifacts'}", *ports]
    with servers.server(
        ["java", *jvm(folder), "-jar", str(jar()), *options], folder / "flink.log", _logged_port
    ) as started:
        yield started


def _logged_port(log: str) -> str | None:
    match = re.search(r"JobService started on localhost:(\d+)\n(?=.*Job server now running)", log)
    return match.group(1) if match else None


def check_same(dataset: Path, output: Path, *beam_args: str, workers: int = 1, **changes: object) -> None:
    """Build in other processes, and compare every file with a plain build."""
    plain = building.built(dataset, **changes)
    options = building.options(output, **{**changes, "workers": workers})
    with pytest.MonkeyPatch.context() as patched:
        seams.put(patched, write_shard=None)  # whatever gets made was made by another process
        outcome = building.command("build", dataset, "--json", *options, "--", *beam_args)
    assert outcome.status == 0, outcome.err
    assert building.files(output) == building.files(plain)
    assert json.loads(outcome.out)["manifest_sha256"] == manifest.digest(read_manifest(plain))


def written(path: Path, rows: list[dict[str, object]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def reviews() -> list[dict[str, object]]:
    return [json.loads(line) for line in (REVIEWS / "train.jsonl").read_text().splitlines()]
