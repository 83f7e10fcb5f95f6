"""Tokenizers put together at random: whatever engine serves one gives what the tokenizer gives.

The short form of `scripts/qualify_engines.py strange`, with a new seed each time.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import pyarrow as pa
import pytest

from pipelines.prepare.tokenize.engines import HuggingFaceEngine, gigatoken_engine
from pipelines.prepare.tokenize.engines.choice import Choice
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tests.qualifying import fuzzing, running, strange, strange_texts

TOKENIZERS = 64
TEXTS = 120


class Erring(HuggingFaceEngine):
    """Passes for a fast engine, and forgets every x."""

    name = "wordpiece"

    def encode(self, texts: pa.Array) -> RaggedTokens:
        return super().encode(pa.array([text.replace("x", "") for text in texts.to_pylist()], pa.string()))


class Failing(HuggingFaceEngine):
    """Passes for a fast engine, and fails with every x."""

    name = "wordpiece"

    def encode(self, texts: pa.Array) -> RaggedTokens:
        if any("x" in text for text in texts.to_pylist()):
            raise ValueError("an x")
        return super().encode(texts)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tokenizers library panics, the trace takes longer than the rest."""
    monkeypatch.setenv("RUST_BACKTRACE", "0")


@functools.cache
def _first_served_by_reference() -> int:
    """The number of a tokenizer that no fast engine takes, of seed 3."""
    numbers = (number for number in range(1, 200, 4) if fuzzing.try_number(3, number, num_texts=2).engine == "hf")
    return next(numbers)


def _chosen(engine: Any, tokenizer: Any, reference: Any, *, dtype: Any) -> Choice:
    return Choice(engine=engine(tokenizer, dtype=dtype), reasons={})


@pytest.mark.slow
def test_no_strange_tokenizer_gets_other_tokens_from_the_engine_that_serves_it() -> None:
    seed = random.SystemRandom().randrange(2**32)
    outcomes = running.try_all(range(TOKENIZERS), seed=seed, num_texts=TEXTS)
    assert not any(outcome.findings for outcome in outcomes), running.as_text(outcomes, seed=seed)
    # Most of WordPiece alone are served, 16 of each family are tried.
    assert sum(outcome.texts for outcome in outcomes) >= 5 * TEXTS, running.as_text(outcomes, seed=seed)


def test_seed_and_number_say_what_is_tried() -> None:
    made = [strange.make(7, number) for number in (0, 1, 2, 3, 0)]
    states = [each.tokenizer.backend_tokenizer.to_str() for each in made]
    texts = [strange_texts.make(each, count=20, seed=7, number=0) for each in (made[0], made[4])]
    assert [each.family for each in made[:4]] == list(strange.FAMILIES)
    assert states[0] == states[4]
    assert texts[0] == texts[1]
    assert strange.make(8, 0).tokenizer.backend_tokenizer.to_str() != states[0]


@pytest.mark.parametrize("engine", [Erring, Failing])
def test_an_engine_that_errs_is_found_with_the_smallest_text(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    number = _first_served_by_reference()
    monkeypatch.setattr(fuzzing, "decide", functools.partial(_chosen, engine))
    outcome = fuzzing.try_number(3, number, num_texts=200)
    (found,) = outcome.findings
    assert outcome.is_served
    assert found.texts == ("x",)
    said = running.as_text([outcome], seed=3)
    assert f"strange --seed 3 --only {found.number}" in said
    assert "1 tokenizers with a finding" in said


def test_rows_are_compared_with_the_tokenizers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "decide", functools.partial(_chosen, Erring))
    monkeypatch.setattr(fuzzing._Trial, "compare_texts", lambda *arguments: None)
    outcomes = [fuzzing.try_number(3, number, num_texts=100) for number in range(1, 30, 4)]
    rows = [found for outcome in outcomes for found in outcome.findings]
    assert rows
    assert all("other rows of" in found.what and "x" in "".join(found.texts) for found in rows)


def test_an_error_while_an_engine_is_opened_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise ValueError("no such model")

    number = _first_served_by_reference()
    monkeypatch.setattr(gigatoken_engine, "make_gigatoken", fail)
    outcome = fuzzing.try_number(3, number, num_texts=5)
    (found,) = outcome.findings
    assert found.what.startswith("gigatoken: ")
    assert "no such model" in found.what
    monkeypatch.setattr(fuzzing, "decide", fail)
    (found,) = fuzzing.try_number(3, number, num_texts=5).findings
    assert found.what == "choosing an engine raises ValueError: no such model"


def test_what_the_reference_serves_counts_as_not_tried() -> None:
    outcome = fuzzing.try_number(3, _first_served_by_reference(), num_texts=5)
    assert (outcome.engine, outcome.is_served, outcome.texts, outcome.rows) == ("hf", False, 0, 0)
    assert "1 tokenizers, 0 served by a fast engine" in running.as_text([outcome], seed=3)


@pytest.mark.slow
def test_the_processes_give_what_one_gives_and_end_with_the_numbers() -> None:
    options: Any = {"seed": 3, "minutes": 5, "processes": 1, "tokenizers": 2, "num_texts": 5}
    outcomes = [outcome for _, outcome in running.outcomes(**options)]
    assert outcomes == running.try_all(range(2), seed=3, num_texts=5)
