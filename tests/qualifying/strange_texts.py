"""Texts for a strange tokenizer: what means something to it, between all that may vanish, join or come apart."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.qualifying.strange import SPACES, VANISHING, WORDS, rare_points

__all__ = ["make"]

_NUM_ENTRIES = 60
_LONGEST = 400
_READ = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n", "ĉ": "\t"})

_Draw = Callable[[random.Random], str]


def make(tokenizer: Any, *, count: int, seed: int, number: int) -> list[str]:
    """`count` texts for the tokenizer of that seed and number."""
    rng = random.Random(f"texts {seed} {number}")
    draws = _draws(tokenizer, rng)
    return [_text(rng, draws)[:_LONGEST] for _ in range(count)]


def _draws(tokenizer: Any, rng: random.Random) -> Sequence[_Draw]:
    added = [token.content for token in tokenizer.added_tokens_decoder.values()] or [""]
    vocabulary = sorted(tokenizer.get_vocab())
    entries = rng.sample(vocabulary, min(len(vocabulary), _NUM_ENTRIES))
    points = rare_points(rng, 12)
    return (
        lambda rng: _altered(rng, rng.choice(added)),
        lambda rng: _altered(rng, rng.choice(added)),
        lambda rng: rng.choice(entries),
        lambda rng: rng.choice(entries).translate(_READ),
        lambda rng: rng.choice(WORDS),
        lambda rng: f" {rng.choice(WORDS)}",
        lambda rng: rng.choice(SPACES),
        lambda rng: rng.choice(VANISHING),
        lambda rng: rng.choice(points),
        lambda rng: f"<0x{rng.choice((0x0A, 0x20, 0x41, 0xC3, 0xE2, rng.randrange(256))):02X}>",
    )


def _altered(rng: random.Random, content: str) -> str:
    """An added token: whole, doubled, cut, in the other case, with white space around it, with a letter at its side."""
    kind = rng.randrange(8)
    if kind == 0:
        return content * 2
    if kind == 1:
        return content[: rng.randrange(len(content) + 1)]
    if kind == 2:
        return content[rng.randrange(len(content) + 1) :]
    if kind == 3:
        return content.swapcase()
    if kind == 4:
        return rng.choice(SPACES) + content + rng.choice(SPACES)
    if kind == 5:
        return content + rng.choice("a1_'.")
    return content


def _text(rng: random.Random, draws: Sequence[_Draw]) -> str:
    parts = [rng.choice(draws)(rng) for _ in range(rng.randint(1, 6))]
    if rng.random() < 0.15:
        parts.insert(0, rng.choice(VANISHING))
    if rng.random() < 0.15:
        parts.append(rng.choice((*VANISHING, *SPACES)))
    if rng.random() < 0.05:
        parts.append(rng.choice(parts) * (1 << rng.randint(1, 6)))
    return rng.choice(("", "", "", " ")).join(parts)
