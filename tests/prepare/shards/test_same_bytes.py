"""One dataset, the same bytes: on threads of the launcher, and on worker processes of Beam's portable runner."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.prepare.shards import shard_writer
from tests import building
from tests.building import REVIEWS, read_manifest
from tests.support import servers
from tests.support.servers import Cluster
from tfrecord_io import manifest

# Small enough that each of seven workers gets shards.
SHARD_SIZE = "6kB"
LAYOUTS: dict[str, dict[str, Any]] = {
    "pad": {"label_column": "label"},
    "concat": {"layout": "concat"},
    "pack": {"layout": "pack"},
}


def check_same(output: Path, *beam_args: str, layout: str, workers: int) -> None:
    """Builds, and compares every file with those of a plain build."""
    changes = {**LAYOUTS[layout], "shard_size": SHARD_SIZE}
    options = building.options(output, workers=workers, **changes)
    outcome = building.command("build", REVIEWS, "--json", *options, "--", *beam_args)
    assert outcome.status == 0, outcome.err
    plain = building.built(REVIEWS, **changes)
    assert len(building.shard_bytes(plain)) >= 7
    assert building.files(output) == building.files(plain)
    assert json.loads(outcome.out)["manifest_sha256"] == manifest.digest(read_manifest(plain))


@pytest.fixture
def helpless_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process cannot make a shard: whatever gets made was made by another one."""
    for layout in LAYOUTS.values():
        building.built(REVIEWS, **layout, shard_size=SHARD_SIZE)

    def fail(*args: object) -> None:
        raise AssertionError("made in the launcher's process")

    monkeypatch.setattr(shard_writer, "write", fail)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with servers.cluster(tmp_path_factory.mktemp("cluster") / "servers") as started:
        yield started


@pytest.mark.slow
@pytest.mark.usefixtures("helpless_launcher")
@pytest.mark.parametrize(("workers", "layout"), [(1, "pad"), (3, "concat")])
def test_the_portable_runner_changes_no_byte(tmp_path: Path, cluster: Cluster, workers: int, layout: str) -> None:
    before = cluster.worker_pids()
    check_same(tmp_path / "out", *cluster.beam_args, layout=layout, workers=workers)
    # The source is ingested by workers of a job of its own.
    assert len(set(cluster.worker_pids()) - set(before)) == 2 * workers, "each in a process of its own"
    assert "with state DONE" in cluster.service.log.read_text()
