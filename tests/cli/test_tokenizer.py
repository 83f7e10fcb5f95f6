"""The command `prep-tfrecords tokenizer`: summary, JSON and errors."""

import json
from pathlib import Path

import pytest

from tests import building
from tests.building import Outcome

TRAIN = building.REVIEWS / "train.jsonl"


def tokenizer(output: Path, *arguments: object, kind: str = "byte-bpe", vocab_size: int = 600) -> Outcome:
    return building.command(
        "tokenizer", TRAIN, "--output", output, "--kind", kind, "--vocab-size", vocab_size, *arguments
    )


@pytest.mark.engines
def test_the_summary_says_what_was_made(tmp_path: Path) -> None:
    outcome = tokenizer(tmp_path / "out", "--json")
    assert outcome.status == 0, outcome.err
    assert "learning from 320 rows" in outcome.err
    assert "byte-bpe tokenizer in the style of gpt2" in outcome.err
    assert "in the first 320 texts" in " ".join(outcome.err.split())
    summary = json.loads(outcome.out)
    assert summary["rows"].items() > {"trained": 320, "rejected": {}, "filtered": {}}.items()
    assert (summary["vocab_size"], summary["engine"], summary["evaluation"]["unknown_share"]) == (600, "fastokens", 0.0)
    assert summary["evaluation"]["tokens_per_word"] > 1


def test_a_sample_is_said_in_a_line(tmp_path: Path) -> None:
    outcome = tokenizer(tmp_path / "rows", "--sample", "200")
    assert "a sample of 200 of 320 rows was read (--sample)" in outcome.err
    assert "--sample" not in tokenizer(tmp_path / "all", "--sample", "1000").err


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    outcome = tokenizer(tmp_path / "out", vocab_size=90_000)
    assert outcome.status == 0
    assert sum(line.startswith("warning: the texts give a vocabulary of ") for line in outcome.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "cause"),
    [
        (["--style", "bert"], 2, "--style bert with --kind byte-bpe"),
        (["--text-column", "nothing"], 1, "has no column 'nothing'"),
        (["--split", "nothing"], 1, "--split 'nothing': Unknown split"),
        (["--chat-template", "nothing.jinja"], 2, "--chat-template nothing.jinja: cannot be read"),
        (["--sample", "0"], 2, "--sample 0, expected at least 1"),
        (
            ["--vocab-size", "12"],
            2,
            "--vocab-size 12 is too small: this style already has 257 special tokens and bytes",
        ),
    ],
)
def test_errors_are_two_lines(tmp_path: Path, arguments: list[str], status: int, cause: str) -> None:
    outcome = tokenizer(tmp_path / "out", *arguments)
    assert outcome.status == status
    assert cause in outcome.error[0]
    assert outcome.error[1]
    assert not (tmp_path / "out").exists()
