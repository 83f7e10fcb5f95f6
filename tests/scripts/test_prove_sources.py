"""The parts of scripts/prove_sources.py, and that a claim which does not hold is seen."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks import measure
from scripts.proving import building, counting, launcher_share
from scripts.proving.building import BuildResult
from scripts.proving.corpora import Shape
from scripts.proving.counting import SERVICE, Tally
from scripts.proving.launcher_share import Share
from tests import building as test_building
from tests.cloud import emulator
from tests.cloud.emulator import Gcs

SCRIPT = test_building.REPOSITORY / "scripts" / "prove_sources.py"
RUN = measure.Run(
    seconds=2, cpu_seconds=1, tree_bytes=10, process_bytes=10, written_bytes=100, stored_bytes=100, stdout=""
)


@pytest.fixture(scope="module")
def gcs() -> Iterator[Gcs]:
    with emulator.running() as running:
        yield running


@pytest.mark.slow
def test_each_client_is_counted_apart_and_by_folder(gcs: Gcs) -> None:
    bucket = gcs.bucket()
    gcs.write(bucket, "data/a", b"x" * 10_000)
    with counting.counted(gcs.endpoint, "launcher", "workers") as tallies:
        launcher, workers = (emulator.client(tallies[name].endpoint) for name in ("launcher", "workers"))
        assert launcher.cat_file(f"{bucket}/data/a", start=1_000, end=1_500) == b"x" * 500
        assert workers.cat_file(f"{bucket}/data/a") == b"x" * 10_000
        workers.pipe_file(f"{bucket}/out/b", b"y" * 300)
        assert launcher.ls(f"{bucket}/out") == [f"{bucket}/out/b"]
    assert tallies["launcher"].received["data"] == 500
    assert tallies["workers"].received["data"] == 10_000
    assert tallies["launcher"].received[SERVICE] > 0
    assert tallies["launcher"].sent["out"] == 0
    assert 300 <= tallies["workers"].sent["out"] < 1_500, "the content, with what a client sends around it"


def test_an_upload_in_several_requests_counts_for_its_folder(gcs: Gcs) -> None:
    bucket = gcs.bucket()
    content = bytes(range(256)) * 3072
    with counting.counted(gcs.endpoint, "workers") as tallies:
        with emulator.client(tallies["workers"].endpoint).open(
            f"{bucket}/out/large", "wb", block_size=1 << 18
        ) as stream:
            stream.write(content)
        assert tallies["workers"].requests >= 3
        assert tallies["workers"].sent["out"] >= len(content)
    assert gcs.read(bucket, "out/large") == content


def test_an_error_is_no_content(gcs: Gcs) -> None:
    bucket = gcs.bucket()
    with counting.counted(gcs.endpoint, "launcher") as tallies, pytest.raises(FileNotFoundError):
        emulator.client(tallies["launcher"].endpoint).cat_file(f"{bucket}/data/none")
    assert tallies["launcher"].received["data"] == 0


def test_what_a_command_and_its_children_write_is_counted(tmp_path: Path) -> None:
    write = f"open({str(tmp_path / 'file')!r}, 'wb').write(bytes(3_000_000)); print('{{}}')"
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {write!r}], check=True)"
    run = measure.run([sys.executable, "-c", inner])
    assert 3_000_000 <= run.written_bytes < 3_100_000
    assert run.cpu_seconds > 0


def share(**changes: Any) -> Share:
    sound = Share(
        form="parquet",
        engine="portable",
        source_bytes=1_000_000,
        launcher=Tally(endpoint="", received=Counter({"data": 12_000, SERVICE: 7_000})),
        workers=Tally(endpoint="", received=Counter({"data": 1_000_000})),
        built=BuildResult(run=RUN, failure="", home_bytes=500),
        digest="1",
        expected="1",
    )
    return dataclasses.replace(sound, **changes)


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({"launcher": Tally(endpoint="", received=Counter({"data": 12_000, SERVICE: 9_000}))}, "less than 2 %"),
        ({"built": BuildResult(run=RUN, failure="", home_bytes=2_000_000)}, "to its disk"),
        (
            {"built": BuildResult(run=dataclasses.replace(RUN, written_bytes=10**7), failure="", home_bytes=0)},
            "to its disk",
        ),
        ({"digest": "2"}, "that of a local build"),
        ({"built": BuildResult(run=None, failure="exit status 1", home_bytes=0)}, "the build succeeds"),
    ],
)
def test_a_launcher_that_takes_too_much_is_seen(changes: dict[str, Any], claim: str) -> None:
    assert not [figure.claim for figure in launcher_share.figures(share()) if figure.failures]
    (failed,) = [figure.claim for figure in launcher_share.figures(share(**changes)) if figure.failures]
    assert claim in failed


def test_a_dataset_is_compared_by_all_but_its_source() -> None:
    manifest = building.local_manifest(test_building.reviews())
    moved = {
        **manifest,
        "fingerprint": "0",
        "sha256": "0",
        "source": {},
        "options": {**manifest["options"], "source": 1},
    }
    damaged = json.loads(json.dumps(manifest))
    damaged["splits"]["train"]["shards"][0]["sha256"] = "0" * 64
    assert building.dataset_digest(moved) == building.dataset_digest(manifest)
    assert building.dataset_digest(damaged) != building.dataset_digest(manifest)


@pytest.mark.slow
def test_workers_elsewhere_read_the_rows_and_make_a_local_builds_dataset(tmp_path: Path) -> None:
    shape = Shape(form="jsonl.gz", num_files=8, file_bytes=2_000_000)
    found = launcher_share.measure_share(tmp_path, shape, "portable", shard_size="2MB")
    assert not found.built.failure
    assert found.digest == found.expected
    assert found.workers.received["data"] > 0.9 * found.source_bytes
    # Of a small source a sample is a larger part than the 2 % of a large one: up to 4 MB.
    assert found.launcher.received["data"] < 0.4 * found.source_bytes
    assert found.built.home_bytes < launcher_share.MOST_HOME_BYTES


@pytest.mark.slow
def test_the_script_tells_what_held(tmp_path: Path) -> None:
    words = ["--relayed", "--scale=0.01", "--forms=jsonl.gz", "--shard-size=200kB"]
    command = [sys.executable, str(SCRIPT), *words, "--workdir", str(tmp_path), "--json"]
    ended = subprocess.run(command, env=test_building.environment(), capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    assert figures
    assert all(figure["tried"] and not figure["failed"] for figure in figures)
