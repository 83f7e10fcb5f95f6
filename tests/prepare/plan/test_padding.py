"""A dataset that would be nearly all padding is said to be so, once, with what would be better."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.prepare.launch import split_plans
from pipelines.prepare.options.config import LayoutConfig, OutputConfig, PrepareConfig, SourceConfig, TokenizerConfig
from tests import building
from tests.building import REVIEWS


def warnings(command: str, *options: object, dataset: Path = REVIEWS) -> list[str]:
    outcome = building.command(command, dataset, "--tokenizer", building.tokenizer(), *options)
    assert outcome.status == 0, outcome.err
    return [line for line in outcome.err.splitlines() if line.startswith("warning") and "padding" in line]


def test_a_plan_of_nearly_all_padding_says_so_once_for_all_splits() -> None:
    (warning,) = warnings("plan", "--max-length", 2000)
    assert "98.6 % of the tokens in records would be padding" in warning
    assert warning.endswith("give --layout pack, --bucket-lengths auto:4, or a smaller --max-length")


def test_so_does_a_build_but_not_when_it_goes_on_with_an_old_plan(tmp_path: Path) -> None:
    options = ("--max-length", 1000, "--split", "validation", "--output", tmp_path / "out")
    assert len(warnings("build", *options)) == 1
    assert warnings("build", *options) == []


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (("--label-column", "label"), "give --bucket-lengths auto:4, or a smaller --max-length"),
        (("--stride", 5), "give --layout pack, or a smaller --max-length"),
        (("--layout", "seq2seq", "--target-column", "label"), "give a smaller --max-length"),
    ],
)
def test_it_names_what_the_layout_takes(options: tuple[object, ...], advice: str) -> None:
    (warning,) = warnings("plan", "--max-length", 1000, "--split", "validation", *options)
    assert warning.endswith(advice)


@pytest.mark.parametrize(
    ("label", "expected"),
    [(None, "give --pack-rows, or a smaller --max-length"), ("label", "give a smaller --max-length")],
)
def test_conversations_are_to_be_packed_unless_they_have_labels(label: str | None, expected: str) -> None:
    request = PrepareConfig(
        source=SourceConfig(dataset="data", label_column=label),
        tokenizer=TokenizerConfig(name="tokenizer"),
        output=OutputConfig(root="out", name="name"),
        layout=LayoutConfig(name="chat"),
    )
    assert split_plans.padding_advice(request) == expected


@pytest.mark.parametrize("options", [("--max-length", 64), ("--max-length", 1000, "--layout", "concat")])
def test_nothing_is_said_where_there_is_little_or_rows_are_joined(options: tuple[object, ...]) -> None:
    assert warnings("plan", "--split", "validation", *options) == []
