"""What strange tokenizers, and texts for them, are made of: code points, words, and the contents of added tokens."""

from __future__ import annotations

import functools
import random
import unicodedata
from collections.abc import Sequence

from tokenizers import AddedToken

__all__ = ["SPACES", "VANISHING", "WORDS", "added_tokens", "byte_entry", "rare_points"]

WORDS = (
    *("the", "The", "user", "film", "word", "over", "don't", "it's", "we'll", "hello", "house", "lead", "trail"),
    *("12", "123", "3.14", "1", "x", "s", "K", "é", "É", "e\u0301", "ﬁ", "ß", "İ", "Σ", "中文", "日本"),
    *("ไทย", "हि", "각"),
    *("...", "!", "--", "_", "a_b", "(", "'s", "a1", "##a", "``", "''", "👍🏽", "привет", "ſ", "½", "㎏"),
)
SPACES = (" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n", "\x0b", "\x85", "\u00a0", "\u2003", "\u2028", "\u3000")
# What one normalizer or another takes away, or joins with what stands before it.
VANISHING = (
    *("\x00", "\x01", "\x0b", "\x1f", "\x7f", "\x8f", "\u00ad", "\u0300", "\u0301", "\u0323", "\u0334", "\u0345"),
    *("\u034f", "\u0600", "\u180e", "\u200b", "\u200c", "\u200d", "\u2060", "\ufe0f", "\ufeff", "\ufffd", "\U000e0001"),
)
_SIGNS = (
    *("<mask>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<tag>", "<tag>more", "<ta", "[MASK]", "[CLS]"),
    *("<extra_id_0>", "<extra_id_1>", "|||A|||", "<0x41>", "<0x0A>", "<unk>", "▁", "▁▁", "▁the", "Ġthe", "Ġ"),
)
_SURROGATES = range(0xD800, 0xE000)
_RATES = (0.0, 0.0, 0.3, 1.0)
_FLAGS = ("normalized", "single_word", "lstrip", "rstrip")


@functools.cache
def _by_kind() -> list[list[str]]:
    """All code points by general category and combining class."""
    found: dict[tuple[str, int], list[str]] = {}
    for point in range(0x110000):
        if point not in _SURROGATES:
            letter = chr(point)
            found.setdefault((unicodedata.category(letter), unicodedata.combining(letter)), []).append(letter)
    return list(found.values())


def rare_points(rng: random.Random, count: int) -> list[str]:
    """Code points of any category and combining class, each of which is as likely as the next."""
    return [rng.choice(rng.choice(_by_kind())) for _ in range(count)]


def byte_entry(rng: random.Random) -> str:
    """The name of an entry for a byte; mostly of one that has a meaning in text."""
    return f"<0x{rng.choice((0x0A, 0x20, 0x41, 0xC3, 0xE2, rng.randrange(256))):02X}>"


def added_tokens(rng: random.Random, pieces: Sequence[str], *, without: Sequence[str] = ()) -> list[AddedToken]:
    """Up to eight added tokens, each flag on none, some or all of them.

    Args:
        pieces: entries of the vocabulary, some of which become added tokens.
        without: the flags that none of them has.
    """
    rates = {flag: 0.0 if flag in without else rng.choice(_RATES) for flag in _FLAGS}
    special = rng.choice(_RATES)
    found: list[str] = []
    for _ in range(rng.choice((0, 1, 2, 2, 3, 4, 6, 8))):
        found.append(_content(rng, pieces, found))
    return [
        AddedToken(content, special=rng.random() < special, **{flag: rng.random() < rates[flag] for flag in _FLAGS})
        for content in found
        if content
    ]


def _content(rng: random.Random, pieces: Sequence[str], before: Sequence[str]) -> str:
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(_SIGNS)
    if kind < 0.55:
        return rng.choice(SPACES)
    if kind < 0.7:
        return rng.choice(WORDS)
    if kind < 0.8 or not before:
        return rng.choice(pieces)
    return _overlapping(rng, rng.choice(before))


def _overlapping(rng: random.Random, content: str) -> str:
    cut = rng.randrange(len(content))
    return rng.choice(
        (content[cut:], content[: cut + 1], content * 2, content + rng.choice(WORDS), f" {content}", f"{content} ")
    )
