"""The parts of scripts/prove_sources.py, and that a claim which does not hold is seen."""

from __future__ import annotations

import dataclasses
import gzip
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scripts.benchmarks import measure
from scripts.proving import building, corpora, counting, launcher_share, same_digests, small_disk
from scripts.proving.building import BuildResult
from scripts.proving.corpora import Shape
from scripts.proving.counting import SERVICE, Tally
from scripts.proving.launcher_share import Share
from scripts.proving.same_digests import Made
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


@pytest.mark.slow
def test_files_of_all_forms_have_the_same_rows(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {}
    for form in corpora.FORMS:
        shape = Shape(form=form, num_files=3, file_bytes=0, text_bytes=100_000)
        files = sorted(corpora.made(tmp_path, shape).iterdir())
        assert len(files) == 3
        rows[form] = [_rows(path) for path in files]
    assert all(each == rows["parquet"] for each in rows.values())


def _rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        table: pa.Table = pq.read_table(path)
        return table.to_pylist()
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    return [json.loads(line) for line in text.splitlines()]


def test_what_a_command_and_its_children_write_is_counted(tmp_path: Path) -> None:
    write = f"open({str(tmp_path / 'file')!r}, 'wb').write(bytes(3_000_000)); print('{{}}')"
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {write!r}], check=True)"
    run = measure.run([sys.executable, "-c", inner])
    assert 3_000_000 <= run.written_bytes < 3_100_000
    assert run.cpu_seconds > 0


@pytest.mark.slow
def test_a_home_that_is_too_small_is_too_small(tmp_path: Path) -> None:
    prefix, log = small_disk.limiting(tmp_path)
    assert prefix, "neither root nor user namespaces here"
    fits, too_much = small_disk.LIMIT_BYTES // 4 >> 20, (small_disk.LIMIT_BYTES >> 20) + 20
    for mebibytes, is_well in ((fits, True), (too_much, False)):
        words = ["dd", "if=/dev/zero", f"of={tmp_path / 'home' / 'tmp' / 'file'}", "bs=1M", f"count={mebibytes}"]
        # dd is over before anything looks at what lies there.
        command = ["bash", "-c", '"$@"; status=$?; sleep 0.5; exit $status', "dd", *words]
        ended = subprocess.run([*prefix, *command], capture_output=True)
        assert (ended.returncode == 0) is is_well, ended.stderr
        assert small_disk.most_bytes(log) > small_disk.LIMIT_BYTES // 5
    assert not (tmp_path / "home" / "tmp" / "file").exists()


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


def test_another_digest_and_a_failed_build_are_seen() -> None:
    ways = [Made(form="jsonl", engine="threads", workers=count, digest="1") for count in (1, 2)]
    for bad in (dataclasses.replace(ways[0], digest="2"), dataclasses.replace(ways[0], digest="", failure="status 1")):
        assert [len(figure.failures) for figure in same_digests.figures([*ways, bad])] == [1]
    untried = dataclasses.replace(ways[0], engine="flink", digest="", untried="java is not on PATH")
    (figure,) = same_digests.figures([*ways, untried])
    assert (figure.tried, figure.failures, figure.note) == (2, [], "flink: java is not on PATH")


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
    words = ["--same-digests", "--small-disk", "--scale=0.01", "--gb=0.002", "--forms=parquet", "--shard-size=50kB"]
    command = [sys.executable, str(SCRIPT), *words, "--engines", "--workdir", str(tmp_path), "--json"]
    ended = subprocess.run(command, env=test_building.environment(), capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    assert [(figure["section"], figure["tried"], figure["failed"]) for figure in figures] == [
        ("disk", 1, 0),
        ("disk", 1, 0),
        ("digests", 3, 0),
    ]
