"""The input runs on a worker that shares neither files nor network with the client: see `isolated_worker`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import building
from tests.cloud import namespace
from tests.support import isolated_worker
from tests.support.isolated_worker import CASES, STEPS

pytestmark = pytest.mark.slow

Report = dict[str, Any]

WORKER = ["/job:worker/replica:0/task:0/device:CPU:0"]
SECONDS = 120


@pytest.fixture(scope="module")
def client_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the worker does not see, with a dataset as out/."""
    folder = tmp_path_factory.mktemp("client")
    shutil.copytree(building.reviews(), folder / "out")
    return folder


@pytest.fixture(scope="module")
def report(client_folder: Path) -> Report:
    """Of a client whose worker reads a copy of the dataset that both of them see."""
    if not namespace.entering():
        pytest.skip("neither root nor user namespaces here: no worker with mounts and a network of its own")
    arguments = ["client", str(client_folder), str(client_folder / "out"), str(building.reviews())]
    done = subprocess.run(
        [sys.executable, "-m", isolated_worker.__name__, *arguments],
        env=building.environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


class TestSharedFolder:
    @pytest.mark.parametrize("case", sorted(CASES))
    def test_batches_are_those_of_a_local_run(self, report: Report, case: str) -> None:
        local, remote = report["local"][case], report["remote"][case]
        assert len(local["digests"]) > 2
        assert case.startswith("evaluation") or len(local["digests"]) == STEPS
        assert remote["digests"] == local["digests"]

    def test_they_are_made_on_the_worker(self, report: Report) -> None:
        assert [case["devices"] for case in report["remote"].values()] == [WORKER] * len(CASES)
        assert all("localhost" in device for case in report["local"].values() for device in case["devices"])

    def test_readiness_looks_at_a_dataset_on_a_worker(self, report: Report) -> None:
        # What it has to say is that this folder is not gs://, of each of the input functions.
        assert len(report["findings"]) >= len(CASES)
        assert all("not on gs://" in problem for problem in report["findings"])


class TestWhatTheWorkerDoesNotSee:
    def test_it_does_not_see_the_clients_folder(self, report: Report, client_folder: Path) -> None:
        assert report["hidden"].startswith("NotFoundError")
        assert str(client_folder) in report["hidden"]
        assert (client_folder / "out" / "manifest.json").exists()

    def test_a_local_path_is_refused_before_anything_starts(self, report: Report, client_folder: Path) -> None:
        assert f"{client_folder}/out/reviews-train-0000" in report["refusal"]
        assert "not on gs://" in report["refusal"]
        assert "copy the dataset to a bucket" in report["refusal"]

    def test_it_would_have_failed_on_the_worker(self, report: Report) -> None:
        assert report["hidden data"].startswith("NotFoundError")
