"""The input runs on a worker that shares neither files nor network with the client: see `isolated_worker`."""

import shutil
import sys
from pathlib import Path

import pytest

from tests import building
from tests.cloud import namespace
from tests.support import isolated_worker, processes


@pytest.mark.slow
def test_a_worker_elsewhere_makes_the_batches_of_a_local_run_and_sees_nothing_else(tmp_path: Path) -> None:
    if not namespace.entering():
        pytest.skip("neither root nor user namespaces here: no worker with mounts and a network of its own")
    shutil.copytree(building.reviews(), tmp_path / "out")
    arguments = ["client", str(tmp_path), str(tmp_path / "out"), str(building.reviews())]
    done = processes.run([sys.executable, "-m", isolated_worker.__name__, *arguments])
    assert done.returncode == 0, done.stderr
