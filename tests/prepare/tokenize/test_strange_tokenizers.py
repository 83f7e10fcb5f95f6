"""Tokenizers put together at random: whatever engine serves one gives what the tokenizer gives.

The short form of `scripts/qualify_engines.py strange`, with a new seed each time.
"""

from __future__ import annotations

import random

import pytest

from tests.qualifying import fuzzing, strange, strange_texts

TOKENIZERS = 64
TEXTS = 120


@pytest.mark.slow
def test_no_strange_tokenizer_gets_other_tokens_from_the_engine_that_serves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the tokenizers library panics, the trace takes longer than the rest.
    monkeypatch.setenv("RUST_BACKTRACE", "0")
    seed = random.SystemRandom().randrange(2**32)
    outcomes = [fuzzing.try_number(seed, number, num_texts=TEXTS) for number in range(TOKENIZERS)]
    said = fuzzing.as_text(outcomes, seed=seed)
    assert not any(outcome.findings for outcome in outcomes), said
    # Most of WordPiece alone are served, 16 of each family are tried.
    assert sum(outcome.texts for outcome in outcomes) >= 5 * TEXTS, said


def test_seed_and_number_say_what_is_tried() -> None:
    made = [strange.make(7, number) for number in (0, 1, 2, 3, 0)]
    states = [tokenizer.backend_tokenizer.to_str() for _, tokenizer in made]
    texts = [strange_texts.make(made[at][1], count=20, seed=7, number=0) for at in (0, 4)]
    assert [family for family, _ in made[:4]] == list(strange.FAMILIES)
    assert (states[0], texts[0]) == (states[4], texts[1])
    assert strange.make(8, 0)[1].backend_tokenizer.to_str() != states[0]
