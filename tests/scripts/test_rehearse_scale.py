"""A short run of scripts/rehearse_scale.py: every part, in small numbers."""

from __future__ import annotations

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
SMALL = ("--groups=5000", "--shards=60", "--files=12", "--finished-shards=60", "--worker-shards=4")


@pytest.mark.slow
def test_every_bar_is_reached_in_small_numbers(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPT), "--json", "--workdir", str(tmp_path), *SMALL]
    ended = subprocess.run(words, env=building.environment(), capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert all(figure["ok"] and figure["measured"] > 0 for figure in found)
    assert {figure["name"].partition(" ")[0].partition(":")[0] for figure in found} == {
        *("plan", "parts", "task", "graph", "commit", "manifest", "reader.open,", "worker"),
    }


def test_the_plan_that_is_rehearsed_has_every_row_once(tmp_path: Path) -> None:
    made = planned._make(tmp_path, groups=3_000, files=30, shards=40)
    assert made["shards"] == 40
    assert made["rows"] == 3_000 * planned.ROWS
    found = planned._read(tmp_path, groups=3_000)
    assert found["shards"] == 40
    assert found["task_bytes"] < 100_000


def test_a_bar_that_is_missed_gives_exit_status_1() -> None:
    reached = Figure(name="x", measured=1.0, at_most=2.0)
    missed = Figure(name="y", measured=3.0, at_most=2.0)
    assert rehearse_scale.exit_status([reached]) == 0
    assert rehearse_scale.exit_status([reached, missed]) == 1


@pytest.mark.slow
def test_a_part_that_fails_gives_exit_status_1_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan").write_text("no folder")
    words = ["--only", "plan", "--groups=10", "--files=1", "--shards=2", "--workdir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["x", *words])
    assert rehearse_scale.main() == 1
    assert "OutputError" in capsys.readouterr().err
