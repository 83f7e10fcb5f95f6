"""TensorFlow's gs:// client reads datasets built into a bucket. It shares no code with the client that wrote them.

It accepts only Google's address, so it runs in a namespace where this machine has that address (tests.cloud.namespace).
"""

import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import building
from tests.cloud import namespace, proxy, reading
from tests.cloud.emulator import Gcs
from tests.cloud.proxy import HOSTS, Faults
from tests.support import isolated_worker, processes
from tfrecord_io.ordering import global_order

pytestmark = pytest.mark.slow

TRAIN = "reviews-train-00001-of-00003.tfrecord"


@pytest.fixture(scope="module")
def bucket(gcs: Gcs) -> str:
    """With a dataset as out/, and copies of it: missing/ is without a shard, and in short/ one lacks its last bytes.
    A build into a bucket makes the same bytes (tests/cloud/test_whole_build.py).
    """
    bucket = gcs.bucket()
    for name, content in building.files(building.reviews()).items():
        gcs.write(bucket, f"out/{name}", content)
        if name != TRAIN:
            gcs.write(bucket, f"missing/{name}", content)
        gcs.write(bucket, f"short/{name}", content[:-16] if name == TRAIN else content)
    return bucket


# What prepares datasets, and what TensorFlow imports although nothing here needs it: a third of its start. To Python,
# None means that there is no such module.
HIDDEN = {"apache_beam", "datasets", "fsspec", "gcsfs", "jax", "keras", "pipelines"}
PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split()))
from tests.cloud import reading
reading.main(*sys.argv[1:])
"""


def range_of(headers: dict[str, str]) -> tuple[str, str]:
    matches = [re.fullmatch(r"bytes=(\d+)-(\d+)", value) for name, value in headers.items() if name.lower() == "range"]
    return (matches[0][1], matches[0][2]) if matches and matches[0] else ("", "")


def read(
    endpoint: str,
    bucket: str,
    folder: Path,
    *,
    parts: list[str],
    faults: Faults | None = None,
    environment: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The program's report, from a process with only TensorFlow and the reader, and the proxy's counts."""
    arguments = ["-c", PROGRAM, " ".join(HIDDEN), f"gs://{bucket}", str(building.reviews()), *parts]
    with proxy.running(endpoint, faults=faults, tls=True) as google:
        done = namespace.run(arguments, google, folder, **(environment or {}))
        assert done.returncode == 0, done.stderr
        sizes = [int(last) - int(first) + 1 for first, last in map(range_of, google.requests) if last]
        return {**json.loads(done.stdout), "counts": google.counts, "sizes": sizes}


@pytest.fixture(scope="module")
def seen(gcs: Gcs, bucket: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    parts = ["written", "records", "batches", "a global batch", "refusals", "missing"]
    return read(gcs.endpoint, bucket, tmp_path_factory.mktemp("seen"), parts=parts)


@pytest.fixture(scope="module")
def faulty(gcs: Gcs, bucket: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report with injected faults and exact ranges in TensorFlow, and its output."""
    faults = Faults(unavailable=0.1, cut_downloads=0.25, cut_uploads=0.5)
    parts, exact = ["written", "records", "global"], {global_order.GCS_BLOCK_SIZE: "0"}
    report = read(gcs.endpoint, bucket, tmp_path_factory.mktemp("bad"), parts=parts, faults=faults, environment=exact)
    return {**report, "arrived": gcs.read(bucket, "written")}


class TestRecords:
    def test_tensorflow_reads_the_records_of_the_local_shards(self, seen: dict[str, Any]) -> None:
        assert len(seen["records"]["gs"]) == 4
        assert seen["records"]["gs"] == seen["records"]["local"]

    def test_they_came_through_both_names_of_google(self, seen: dict[str, Any]) -> None:
        assert all(seen["counts"][f"host {host}"] > 0 for host in HOSTS)

    def test_what_tensorflow_writes_arrives_whole(self, seen: dict[str, Any], gcs: Gcs, bucket: str) -> None:
        assert gcs.read(bucket, "written") == reading.WRITTEN

    def test_faults_on_the_way_change_nothing(self, faulty: dict[str, Any]) -> None:
        assert all(faulty["counts"][kind] for kind in ("unavailable", "cut_downloads", "cut_uploads")), faulty["counts"]
        assert faulty["records"]["gs"] == faulty["records"]["local"]
        assert faulty["arrived"] == reading.WRITTEN


class TestReader:
    @pytest.mark.parametrize("case", ["training", "training of one host", "evaluation"])
    def test_batches_are_those_of_a_local_copy(self, seen: dict[str, Any], case: str) -> None:
        assert len(seen["batches"]["gs"][case]) >= 3
        assert seen["batches"]["gs"][case] == seen["batches"]["local"][case]

    def test_training_continues_with_the_batches_that_would_have_come(self, seen: dict[str, Any]) -> None:
        expected = seen["batches"]["local"]["training"][reading.START :]
        assert seen["batches"]["gs"]["continued"] == expected

    def test_the_global_order_asks_for_blocks_by_default(self, seen: dict[str, Any], faulty: dict[str, Any]) -> None:
        """Remove `ask_for_exact_ranges` and the warning once TensorFlow requests exact ranges by default."""
        expected = faulty["global"]["local"]
        assert len(expected) == 4
        assert faulty["global"]["gs"] == expected
        assert max(faulty["sizes"]) < 1 << 20
        *batches, warned = seen["a global batch"]
        assert batches == expected[:1]
        assert global_order.GCS_BLOCK_SIZE in warned
        assert max(seen["sizes"]) == 64 << 20

    def test_a_missing_shard_or_dataset_is_named_at_open(self, seen: dict[str, Any], bucket: str) -> None:
        assert f"gs://{bucket}/missing: shard {TRAIN} of split 'train' is missing" in seen["refusals"]["missing"]
        assert seen["refusals"]["short"] == "nothing", "without fsspec sizes are not asked for"
        assert f"gs://{bucket}/absent/manifest.json: no such file, expected the manifest" in seen["refusals"]["absent"]

    def test_it_needs_nothing_of_what_wrote_the_bucket(self, seen: dict[str, Any]) -> None:
        assert set(seen["missing"]) >= HIDDEN


def test_a_worker_elsewhere_makes_the_batches_of_a_local_run_and_sees_nothing_else(tmp_path: Path) -> None:
    if not namespace.entering():
        pytest.skip("neither root nor user namespaces here: no worker with mounts and a network of its own")
    shutil.copytree(building.reviews(), tmp_path / "out")
    arguments = ["client", str(tmp_path), str(tmp_path / "out"), str(building.reviews())]
    done = processes.run([sys.executable, "-m", isolated_worker.__name__, *arguments])
    assert done.returncode == 0, done.stderr
