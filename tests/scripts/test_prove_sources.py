"""The parts of scripts/prove_sources.py, and that a claim which does not hold is seen."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks import measure
from scripts.proving import building, launcher_share
from scripts.proving.building import BuildResult
from scripts.proving.counting import SERVICE, Tally
from scripts.proving.launcher_share import Share
from tests import building as test_building

SCRIPT = test_building.REPOSITORY / "scripts" / "prove_sources.py"
RUN = measure.Run(
    seconds=2, cpu_seconds=1, tree_bytes=10, process_bytes=10, written_bytes=100, stored_bytes=100, stdout=""
)


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
def test_the_script_tells_what_held(tmp_path: Path) -> None:
    words = ["--relayed", "--scale=0.01", "--forms=jsonl.gz", "--shard-size=200kB"]
    command = [sys.executable, str(SCRIPT), *words, "--workdir", str(tmp_path), "--json"]
    ended = subprocess.run(command, env=test_building.environment(), capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    assert figures
    assert all(figure["tried"] and not figure["failed"] for figure in figures)
