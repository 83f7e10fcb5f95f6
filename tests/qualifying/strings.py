"""Texts that have tripped tokenizers, or might: written out, drawn at random, and made of real text by mutation.

Each generator is a function of (count, rng, material); `batches` mixes them. Material are strings that mean something
to the tokenizer under test: the contents of its added tokens, and entries of its vocabulary as they are spelt there.
"""

import functools
import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from pipelines.prepare.tokenize.engines import BATTERY
from tests.support import texts

_SURROGATES = range(0xD800, 0xE000)
# CJK twice, Hangul, private use, Tangut, then planes 2 to 13, and 14 after the tags to 16.
_ALIKE = [range(0x3400, 0x4DB0), range(0x4E00, 0x9FF0), range(0xAC00, 0xD7A0), range(0xE000, 0xF8F0)]
_ALIKE += [range(0x17000, 0x18CF0), range(0x20000, 0xE0000), range(0xE0200, 0x110000)]
_NUM_REAL = 200

_SPACES = [chr(point) for point in range(0x110000) if point not in _SURROGATES and chr(point).isspace()]
_JOINERS = [*"\u200b\u200c\u200d\u2060\ufeff\u00ad\u034f\u061c\u180e\ufe0e\ufe0f\u20e3\U000e0001\U000e007f"]
_QUOTES = [*"'’‘`´ʼʹ′\u0301\uff07\"“”"]
_ENDINGS = ["", *"stmdSTMDſK", "re", "ve", "ll", "RE", "VE", "LL", "Ll", "lL", "Re"]
_ENDINGS += ["vE", "ſſ", "sx", "llx", "'re", "'s's"]
# A long s is an s that begins no ending where a letter without cases comes next.
_FOUND = ["'\u017f\u0939", "'\u017f\u0928", "e'\u017f\u0928"]
_LINES = ["\n", "\r\n", "\r", "\n\n\n", "\n \n", " \n", "\n ", "\t\n", "\r\r\n", "\n\n    ", "\x0b\n", "\u2028", "\x85"]
_ASCII = [chr(point) for point in range(128)]
_EXPANDING = [*"ﬁﬃŉǅßİıſKÅΩ½²①Ⅷ㎏㍿ﷺ\u0344\u0958", "e\u0301", "a\u0323\u0302", "q\u0307\u0323", "\u1100\u1161\u11a8"]
_NUMBERS = ["1", "12", "123", "1234", "12345678", "3.14", "1,234", "٠١٢٣", "०१२", "๑", "𝟏𝟐", "Ⅷ", "½", "一二"]
_NUMBERS += ["𐄇", "1²"]
_WORDS = ["the", "The", "THE", "hello", "camelCase", "XMLHttp", "naïve", "ΣΊΣΥΦΟΣ", "привет", "中文", "日本語"]
_WORDS += ["한국어", "שָׁלוֹם", "كَتَبَ", "हिन्दी", "ไทย", "👩\u200d👩\u200d👧", "🇩🇪", "👍🏽", "x"]
_WORDS += ["https://a.b/c?d=e", "snake_case", "a@b.c"]


@functools.cache
def _by_category() -> list[list[str]]:
    """All code points of each general category."""
    by_category: dict[str, list[str]] = {}
    for point in range(0x110000):
        if point not in _SURROGATES:
            by_category.setdefault(unicodedata.category(chr(point)), []).append(chr(point))
    return list(by_category.values())


@functools.cache
def _real() -> list[str]:
    return [text for text in texts.sentences(_NUM_REAL, seed=31) if text] + texts.MULTI_SCRIPT + texts.HOSTILE


def code_point(rng: random.Random) -> str:
    return rng.choice(rng.choice(_by_category()))


def _piece(rng: random.Random) -> str:
    pool = rng.choice((_SPACES, _JOINERS, _QUOTES, _LINES, _ASCII, _EXPANDING, _NUMBERS, _WORDS, None, None))
    return code_point(rng) if pool is None else rng.choice(pool)


def soup(rng: random.Random, material: Sequence[str]) -> str:
    return "".join(_piece(rng) for _ in range(rng.randint(1, 12)))


def repeated(rng: random.Random, material: Sequence[str]) -> str:
    return "".join(_piece(rng) * rng.randint(1, 1 << rng.randint(0, 6)) for _ in range(rng.randint(1, 4)))


def contracted(rng: random.Random, material: Sequence[str]) -> str:
    words = (rng.choice(_WORDS) + rng.choice(_QUOTES) + rng.choice(_ENDINGS) for _ in range(rng.randint(1, 4)))
    return rng.choice(("", " ", *_SPACES)).join(words)


def mutated(rng: random.Random, material: Sequence[str]) -> str:
    """A piece of real text with pieces put in, taken out and exchanged."""
    text = rng.choice(_real())
    start = rng.randrange(len(text) + 1)
    text = text[start : start + rng.randint(1, 120)]
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + _piece(rng) + text[at + rng.randrange(3) :]
    return text


def literal(rng: random.Random, material: Sequence[str]) -> str:
    """Added tokens and entries of the vocabulary as text, whole and broken, between pieces of all kinds."""
    parts = []
    for _ in range(rng.randint(1, 5)):
        content = rng.choice(material) if material else ""
        kind = rng.random()
        if kind < 0.15:
            content = content[: rng.randrange(len(content) + 1)]
        elif kind < 0.25:
            content = content.swapcase()
        parts += [content, rng.choice(("", " ", "  ", "\n", "a", "1", "_", "é", ".", _piece(rng)))]
    return "".join(parts if rng.random() < 0.5 else parts[::-1])


def scripts(rng: random.Random, material: Sequence[str]) -> str:
    first = rng.randrange(0x110000 >> 7) << 7
    points = (first + rng.randrange(128) for _ in range(rng.randint(1, 10)))
    return rng.choice(("", " ", "a", "1")).join(chr(point) for point in points if point not in _SURROGATES)


GENERATORS: dict[str, Callable[[random.Random, Sequence[str]], str]] = {
    function.__name__: function for function in (soup, repeated, contracted, mutated, literal, scripts)
}


def random_batches(count: int, *, seed: object, material: Sequence[str], size: int = 5_000) -> Iterator[list[str]]:
    """`count` strings of all generators in turn, in batches. Batch i depends on (seed, i) and the material only."""
    functions = list(GENERATORS.values())
    for number, start in enumerate(range(0, count, size)):
        rng = random.Random(f"{seed} {number}")
        yield [functions[index % len(functions)](rng, material) for index in range(min(size, count - start))]


def random_bytes(count: int, *, seed: object, size: int = 5_000) -> Iterator[list[str]]:
    """`count` runs of up to 200 random bytes, read as UTF-8 with replacements and as Latin-1 in turn, in batches."""
    rng = random.Random(f"bytes {seed}")
    for start in range(0, count, size):
        runs = [rng.randbytes(rng.randint(1, 200)) for _ in range(min(size, count - start))]
        yield [run.decode("latin-1" if at % 2 else "utf-8", "replace") for at, run in enumerate(runs)]


def written() -> list[str]:
    return [*BATTERY, *texts.HOSTILE, *texts.MULTI_SCRIPT, *_FOUND]


def every_code_point(*, step: int = 1) -> Iterator[list[str]]:
    """Return code points in eleven contexts: at the edges, next to letters, digits, spaces, signs, marks, itself.

    All of the first two planes and of the tags; every 16th in runs of thousands of similar ones: ideographs, syllables,
    private use, and planes without letters. Of these, every `step`-th one.
    """
    points = _points()[::step]
    docs = [
        "".join(f"{c}a{c} {c}1{c}.{c}{c}'{c}s\n{c}\n\n {c}  {c}\u0301é{c}中" for c in points[start : start + 16])
        for start in range(0, len(points), 16)
    ]
    for start in range(0, len(docs), 2_000):
        yield docs[start : start + 2_000]


@functools.cache
def _points() -> list[str]:
    alike = set().union(*_ALIKE, _SURROGATES)
    return [chr(point) for point in range(0x110000) if point not in (alike if point % 16 else _SURROGATES)]


def long_documents(num_bytes: int, *, seed: int, material: Sequence[str]) -> list[str]:
    """One of real text and one of all generators, about `num_bytes` each, and one of a single word, a 50th of it."""
    rng = random.Random(f"long {seed}")
    real, mixed, size = [], [], 0
    while size < num_bytes:
        real.append(rng.choice(_real()[:_NUM_REAL]))
        size += len(real[-1]) + 1
    size = 0
    while size < num_bytes:
        mixed.append(rng.choice(list(GENERATORS.values()))(rng, material))
        size += len(mixed[-1].encode())
    return ["\n".join(real), "".join(mixed), texts.ONE_MB_WORD[: num_bytes // 50]]


def white_document(num_bytes: int) -> str:
    return (" " * 999 + "\n") * (num_bytes // 1_000)
