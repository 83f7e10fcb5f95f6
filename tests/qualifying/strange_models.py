"""Models of strange tokenizers, as tokenizer.json has them: BPE of bytes and of characters, Unigram, WordPiece.

Merges are learnt at random from a few words, so that most of them act on the texts; then come those that make no
sense: repeated, in another order, of entries that never meet, and of entries for bytes.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Sequence

from tokenizers import pre_tokenizers

from tests.qualifying.strange_steps import Step
from tests.qualifying.strange_words import SPACES, WORDS, byte_entry

__all__ = ["byte_level_bpe", "sentencepiece_bpe", "unigram", "wordpiece"]

_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_ASCII = tuple(chr(point) for point in range(33, 127))
_TEMPTING = (" the", " The", "a1", "'s", "'st", " 12", "1234", "\n\n", " \n", "...", ".\n", "e\u0301", "K1", "  the")
_SCORES = (0.0, -0.0, -1.0, -1e-300, -1e300, 1e300, -1e308, 1.0, -3.5)
_ENTRIES = ("▁", "▁▁", "<0x41>", "<0x0A>", "##a", "\u0301", " ", "\n", "é", "e\u0301", "K", "the▁", "▁the", "fi")

Merge = tuple[str, str]


def byte_level_bpe(rng: random.Random) -> Step:
    """A BPE whose every byte is an entry."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [_as_bytes(word) for word in _some_words(rng)]
    merges = _strange(rng, _merges(rng, words, count=rng.choice((0, 20, 60))))
    others = [_as_bytes(rng.choice(WORDS)) for _ in range(rng.choice((0, 0, 6)))]
    vocabulary = _numbered(rng, [*alphabet, *others, *map("".join, merges)])
    unknown = rng.choice("!Ġ") if rng.random() < 0.05 else None
    return _bpe(rng, vocabulary, merges, unk_token=unknown, byte_fallback=rng.random() < 0.03)


def sentencepiece_bpe(rng: random.Random) -> Step:
    """A BPE with entries for bytes, which may be made of characters or be parts of longer ones."""
    words = [tuple(word) for word in _some_words(rng, spelt=lambda word: word.replace(" ", "▁"))]
    merges = _merges(rng, words, count=rng.choice((0, 20, 60)))
    if rng.random() < 0.2:
        merges += _of_byte_entries(rng)
    merges = _strange(rng, merges)
    letters = [letter for word in words for letter in word]
    pieces = ["<unk>", *_BYTES, *_ASCII, "▁", *letters, *map("".join, merges)]
    if rng.random() < 0.05:
        pieces.remove(rng.choice(_BYTES))
    vocabulary = _numbered(rng, pieces)
    # Without it, the entries of a merge may be gone.
    merges = [merge for merge in merges if {*merge, "".join(merge)} <= vocabulary.keys()]
    unknown = "<unk>" if rng.random() < 0.8 else rng.choice((None, None, None, "a"))
    return _bpe(rng, vocabulary, merges, unk_token=unknown, byte_fallback=rng.random() < 0.95)


def _bpe(rng: random.Random, vocabulary: dict[str, int], merges: list[Merge], **options: object) -> Step:
    odd = rng.random() < 0.05
    return {
        "type": "BPE",
        "dropout": rng.choice((None, None, None, 0.0)),
        "continuing_subword_prefix": "##" if odd and not merges else rng.choice((None, "")),
        "end_of_word_suffix": "</w>" if odd else rng.choice((None, "")),
        "fuse_unk": rng.random() < 0.5,
        "ignore_merges": rng.random() < 0.15,
        "vocab": vocabulary,
        "merges": [list(merge) for merge in merges],
        **options,
    }


def unigram(rng: random.Random) -> Step:
    """A Unigram model with ties, extreme scores, pieces that occur twice, and the unknown token anywhere."""
    words = [word.replace(" ", "▁") for word in _some_words(rng)]
    parts = [_part(rng, word) for word in words for _ in range(3)]
    pieces = [*_ASCII, "▁", *words, *parts, *(rng.choice(_ENTRIES) for _ in range(6))]
    if fallback := rng.random() < 0.4:
        pieces += _BYTES if rng.random() < 0.8 else rng.sample(_BYTES, 100)
    if rng.random() < 0.9:
        pieces = list(dict.fromkeys(pieces))
    rng.shuffle(pieces)
    pieces.insert(rng.choice((0, 0, 2, len(pieces))), "<unk>")
    score = rng.choice((_tied, _tied, _spread, _extreme))
    return {
        "type": "Unigram",
        "unk_id": pieces.index("<unk>") if rng.random() < 0.95 else None,
        "vocab": [[piece, score(rng)] for piece in pieces],
        "byte_fallback": fallback,
    }


def _tied(rng: random.Random) -> float:
    return float(-rng.randint(1, 4))


def _spread(rng: random.Random) -> float:
    return -20 * rng.random()


def _extreme(rng: random.Random) -> float:
    return rng.choice(_SCORES) if rng.random() < 0.5 else _spread(rng)


def wordpiece(rng: random.Random) -> Step:
    """A WordPiece model with any prefix, any limit, and entries that no normalized text has."""
    prefix = rng.choice(("##", "##", "##", "", "@@", "▁", "a"))
    words = _some_words(rng)
    parts = [_part(rng, word) for word in words for _ in range(3)]
    letters = rng.sample(_ASCII, rng.choice((40, len(_ASCII))))
    inner = [prefix + piece for piece in (*letters, *parts)]
    return {
        "type": "WordPiece",
        "unk_token": "[UNK]" if rng.random() < 0.95 else "a",
        "continuing_subword_prefix": prefix,
        "max_input_chars_per_word": rng.choice((0, 1, 4, 10, 100, 100, 100, 10**15)),
        "vocab": _numbered(rng, ["[UNK]", "a", *letters, *words, *parts, *inner, *rng.sample(_ENTRIES, 4)]),
    }


def _some_words(rng: random.Random, *, spelt: Callable[[str], str] = str) -> list[str]:
    words = [rng.choice(WORDS) for _ in range(25)]
    words = [word if rng.random() < 0.5 else f" {word}" for word in words]
    return [spelt(word) for word in (*words, *rng.sample(_TEMPTING, 8), *rng.sample(SPACES, 3))]


@functools.cache
def _as_bytes(word: str) -> str:
    ((spelt, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(word)
    return str(spelt)


def _part(rng: random.Random, word: str) -> str:
    start = rng.randrange(len(word))
    return word[start : start + rng.randint(1, 4)]


def _numbered(rng: random.Random, pieces: Iterable[str]) -> dict[str, int]:
    """An id for each piece: in order, in any order, or with holes."""
    different = list(dict.fromkeys(pieces))
    ids = list(range(len(different)))
    if rng.random() < 0.2:
        ids = sorted(rng.sample(range(2 * len(different)), len(different)))
    if rng.random() < 0.6:
        rng.shuffle(ids)
    return dict(zip(different, ids, strict=True))


def _merges(rng: random.Random, words: Iterable[Sequence[str]], *, count: int) -> list[Merge]:
    """Merges of neighbours in the words, as these are after the merges before."""
    lines, merges = [list(word) for word in words], []
    for _ in range(count):
        line = rng.choice(lines)
        if len(line) > 1:
            at = rng.randrange(len(line) - 1)
            merges.append((line[at], line[at + 1]))
            lines = [_merged(line, merges[-1]) for line in lines]
    return merges


def _merged(line: list[str], merge: Merge) -> list[str]:
    out: list[str] = []
    for piece in line:
        if out and (out[-1], piece) == merge:
            out[-1] += piece
        else:
            out.append(piece)
    return out


def _of_byte_entries(rng: random.Random) -> list[Merge]:
    """Merges that make the name of a byte's entry out of characters, and some that go on from there."""
    name = byte_entry(rng)
    made = _merges(rng, [tuple(name)], count=len(name)) if rng.random() < 0.8 else []
    letter = rng.choice(("a", "▁", byte_entry(rng)))
    used = rng.choice(([], [(name, letter)], [(letter, name)], [(name, name)]))
    return [*made, *used]


def _strange(rng: random.Random, merges: list[Merge]) -> list[Merge]:
    """The merges, some of them again, others of entries that seldom meet, in this order or in any."""
    if not merges:
        return merges
    parts = [part for merge in merges for part in (*merge, "".join(merge))]
    if rng.random() < 0.3:
        merges = [*merges, *((rng.choice(parts), rng.choice(parts)) for _ in range(5))]
    if rng.random() < 0.3:
        merges = [*merges, *(rng.choice(merges) for _ in range(3))]
    if rng.random() < 0.3:
        rng.shuffle(merges)
    return merges
