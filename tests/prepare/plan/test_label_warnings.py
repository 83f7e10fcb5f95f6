"""Labels that are perhaps not what was meant are named in one line before anything is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import building


def warnings(folder: Path, labels: Sequence[Any], **options: object) -> list[str]:
    """The lines about labels that `plan` prints for rows with these."""
    source = building.source(folder / "in", train=[{"text": "good", "label": label} for label in labels])
    arguments = building.options(folder / "out", label_column="label", **options)[2:]
    outcome = building.command("plan", source, *arguments)
    assert outcome.status == 0, outcome.err
    return [line for line in outcome.err.splitlines() if "label column" in line]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([1, 2, 3, 4, 5] * 6, "5 values from 1 to 5, which are not 0 to 4; --label-classes"),
        ([-1, 1] * 6, "2 values from -1 to 1, which are not 0 to 1; --label-classes"),
        ([0, 5, 10] * 6, "3 values from 0 to 10, which are not 0 to 2; --label-classes"),
        ([0, 1, -1, 1] * 6, "25.0% are -1, a label like any other"),
        (list(range(400)), " sampled rows; is it the right column?"),
        ([1.0, 2.0] * 6, "floats, but whole numbers (2 values from 1 to 2), to be learned as numbers; --label-classes"),
        (["Good", "good ", "bad"] * 6, "'Good' and 'good ' differ only by case or blanks"),
        ([f"name {row}" for row in range(30)], "30 classes of 30 rows, so that most have a single row"),
    ],
)
def test_a_line_says_what_is_odd_and_what_to_do(tmp_path: Path, labels: list[Any], said: str) -> None:
    (line,) = warnings(tmp_path, labels)
    assert said in line


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        ([0, 1, 2] * 6, {}),
        ([0.5, 1.0] * 6, {}),
        (["good", "bad"] * 6, {}),
        ([1, 2, 3] * 6, {"label_classes": True}),
        ([["a"], ["b", "c"]], {}),
        ([[0, 1, 0], [1, 0, 1]], {}),
    ],
)
def test_nothing_is_said_of_usual_labels(tmp_path: Path, labels: list[Any], options: dict[str, object]) -> None:
    assert warnings(tmp_path, labels, **options) == []
