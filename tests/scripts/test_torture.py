"""A short run of scripts/torture.py: every section but the disks (tests/test_cli.py has those), in small numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests import building

SECTIONS = ("kills", "flips", "storage", "meddling", "jobs", "repair")
NUMBERS = ("--kills=2", "--flips=12", "--operations=2", "--changes=1", "--jobs=1", "--repairs=4")
SCRIPT = building.REPOSITORY / "scripts" / "torture.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one run of all these sections found."""
    workdir = tmp_path_factory.mktemp("torture")
    words = [sys.executable, str(SCRIPT), "--json", "--workdir", str(workdir), *NUMBERS, "--only", *SECTIONS]
    ended = subprocess.run(words, env=building.environment(), capture_output=True, text=True, timeout=280)
    assert ended.stdout, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    assert ended.returncode == (1 if any(figure["failed"] for figure in found) else 0)
    return found


@pytest.mark.parametrize("section", SECTIONS)
def test_every_claim_of_a_section_was_tried_and_held(figures: list[dict[str, Any]], section: str) -> None:
    ours = [figure for figure in figures if figure["section"] == section]
    assert ours
    assert [figure["claim"] for figure in ours if not figure["tried"]] == []
    assert [failure for figure in ours for failure in figure["failures"]] == []


def test_a_claim_that_does_not_hold_is_counted_and_shown() -> None:
    from scripts.torturing.figures import Figure, failures_text, figures_table

    figure = Figure(section="kills", claim="nothing is lost")
    for problem in ("", "2 files are missing", ""):
        figure.check(problem)
    assert "| kills   | nothing is lost | 3     | 1      |" in figures_table([figure])
    assert failures_text([figure]) == "kills: nothing is lost\n    2 files are missing"


def test_a_claim_that_could_not_be_tried_is_not_said_to_hold() -> None:
    from scripts.torturing.figures import Figure, figures_table

    assert "| 0     | not tried |" in figures_table([Figure(section="disk", claim="goes on")])
