"""A short run of scripts/rehearse_scale.py: every part, in small numbers."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import rehearse_scale
from scripts.benchmarks.figures import Figure
from scripts.rehearsing import planned
from tests import building

SCRIPT = building.REPOSITORY / "scripts" / "rehearse_scale.py"
SMALL = ("--blocks=5000", "--shards=60", "--files=12", "--worker-shards=4")


@pytest.mark.slow
def test_every_bar_is_reached_in_small_numbers(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPT), "--json", "--workdir", str(tmp_path), *SMALL]
    ended = subprocess.run(words, env=building.environment(), capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert all(figure["ok"] and figure["measured"] > 0 for figure in found)
    assert {figure["name"].partition(" ")[0].partition(":")[0] for figure in found} == {
        *("plan", "plan.json", "graph", "commit", "manifest", "reader.open,", "worker"),
    }


def test_the_plan_that_is_rehearsed_has_every_block_once() -> None:
    plan = planned.make_plan(blocks=3_000, shards=40)
    assert len(plan.shards) == 40
    rows = sorted(span for shard in plan.shards for span in shard)
    assert rows[0][0] == 0
    assert rows[-1][1] == 3_000 * planned.ROWS
    assert all(before[1] == after[0] for before, after in itertools.pairwise(rows))


def test_a_bar_that_is_missed_gives_exit_status_1() -> None:
    reached = Figure(name="x", measured=1.0, at_most=2.0)
    missed = Figure(name="y", measured=3.0, at_most=2.0)
    assert rehearse_scale.exit_status([reached]) == 0
    assert rehearse_scale.exit_status([reached, missed]) == 1


def test_a_part_that_fails_gives_exit_status_1_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").mkdir()
    monkeypatch.setattr(sys, "argv", ["x", "--only", "plan", "--blocks=10", "--shards=2", "--workdir", str(tmp_path)])
    assert rehearse_scale.main() == 1
    assert "IsADirectoryError" in capsys.readouterr().err
