"""Where sources lie and jobs run: a bucket of the emulator, and clusters of worker processes on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts import get_flink_job_server
from tests.cloud import emulator
from tests.cloud.emulator import Gcs
from tests.support import flink, servers
from tests.support.servers import Cluster

__all__ = ["ENGINES", "Bucket", "beam_args", "cluster", "filled_bucket", "missing"]

ENGINES = ("portable", "flink")
# A worker stays for the next stage of a job, which would else start another.
_KEPT = "--environment_cache_millis=20000"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bucket:
    """A bucket with source files in `data/`."""

    gcs: Gcs
    name: str

    def address(self, path: str) -> str:
        """The gs:// address of a path in it."""
        return f"gs://{self.name}/{path}"

    def manifest(self, output: str) -> dict[str, Any]:
        """The manifest of the dataset in the folder `output`."""
        found: dict[str, Any] = json.loads(self.gcs.read(self.name, f"{output}/manifest.json"))
        return found


@contextlib.contextmanager
def filled_bucket(folder: Path | None) -> Iterator[Bucket]:
    """An emulator with one bucket, which has the files of `folder` in `data/`, or nothing."""
    with emulator.running() as gcs:
        name = gcs.bucket()
        for path in sorted(folder.iterdir()) if folder else ():
            gcs.write(name, f"data/{path.name}", path.read_bytes())
        yield Bucket(gcs=gcs, name=name)


def missing(engine: str) -> str:
    """Why an engine cannot run here; empty if it can."""
    return get_flink_job_server.missing() if engine == "flink" else ""


@contextlib.contextmanager
def cluster(engine: str, folder: Path, **changes: str) -> Iterator[Cluster]:
    """A job service and a worker pool in the new `folder`; `changes` are to the environment of the workers."""
    folder.mkdir(parents=True)
    service = flink.job_server(folder) if engine == "flink" else servers.job_service(folder)
    with service as started, servers.worker_pool(folder, **changes) as pool:
        yield Cluster(service=started, pool=pool)


def beam_args(engine: str, running: Cluster, *, workers: int) -> tuple[str, ...]:
    """What a build says after its `--` to run there."""
    return (*running.beam_args, *((_KEPT, f"--parallelism={workers}") if engine == "flink" else ()))
