"""Make a vocabulary that looks like English to a tokenizer: 60,000 word forms with the frequencies of natural text.

    rank      1 .. 302    real English words, function words first    about half of all tokens, short
    rank    303 .. N      stems of syllables, inflected and derived   the long tail, longer if rarer

Frequencies follow Zipf's law with Mandelbrot's shift, p(rank) ~ 1 / (rank + SHIFT) ** EXPONENT. Random letters would
not do: a tokenizer's speed depends on how often words repeat (its cache), on the number of pieces per word, and on word
length. Shared stems, shared affixes and the frequencies make all three realistic.
"""

import numpy as np

NUM_WORDS = 60_000
NUM_NUMBERS = 4_000
EXPONENT = 1.07
SHIFT = 2.7

_HEAD = """
the of and to a in is that for it was on with as he be at by this had not are but from or have an they which one you
were her all she there would their we him been has when who will more no if out so said what up its about into than
them can only other new some could time these two may then do first any my now such like our over man me even most
made after also did many before must through back years where much your way well down should because each just those
people mr how too little state good very make world still own see men work long get here between both life being under
never day same another know while last might us great old year off come since against go came right used take three
don't it's i'm can't didn't that's states himself few house use during without again place around however small found
mrs thought went say part once general high upon school every does got united left number course war until always away
something fact water though less public put think almost hand enough far took head yet government system better set
told nothing night end why called look find going asked later knew point next program city business give group toward
young days let room side social given present several order national possible rather second face per among form
important often things looked early white case large big need four within felt along children saw best church ever
least power development light thing seemed family interest want members mind country area others done turned although
open god service certain kind problem began different door thus help sense means whole matter it'll won't wasn't
café naïve résumé
"""

# Repeated letters are more likely.
_ONSETS = "b c d f g h j k l m n p r s t v w b c d f l m n p r s t st tr pr br cr gr pl cl fl sp sh ch th str qu gl"
_NUCLEI = "a e i o u a e i o u a e i o ea ai ou oo ee io"
_CODAS = "n r l s t n r l m d p c ck nd nt st rt ss ll rm ng rd mp ct"
_PREFIXES = [*[""] * 30, "re", "un", "in", "de", "con", "pro", "dis", "ex", "inter", "over"]
_SUFFIXES = [
    *["", "s", "ed", "ing", "er", "ly", "al", "y", "e", "", "s", "ed", "ing", "er", "ly", "ers", "es", "", "s", "e"],
    *["tion", "ness", "ment", "able", "ive", "ity", "ous", "ism", "ist", "ful", "tions", "ally"],
]


def vocabulary() -> list[str]:
    """Return NUM_WORDS distinct lower-case words, the most frequent first; the same on every machine."""
    head = _HEAD.split()
    rng = np.random.default_rng([0, 1])
    words = dict.fromkeys(head)
    while len(words) < NUM_WORDS:
        words |= dict.fromkeys(_coined(rng, count=NUM_WORDS // 4))
    tail = list(words)[len(head) : NUM_WORDS]
    # Frequent words are short, but only roughly: the rank is the length plus noise.
    rank = np.argsort(np.array([len(word) for word in tail]) + rng.normal(0.0, 2.2, len(tail)), kind="stable")
    return head + [tail[index] for index in rank]


def probabilities() -> np.ndarray:
    """Return the frequencies of the words of `vocabulary` in text, float64 [NUM_WORDS]; they add up to 1."""
    weights = (np.arange(1, NUM_WORDS + 1) + SHIFT) ** -EXPONENT
    return weights / weights.sum()


def numbers() -> list[str]:
    """Return NUM_NUMBERS numbers as texts write them: years, counts, decimals, percentages, dollars."""
    rng = np.random.default_rng([0, 2])
    values = rng.lognormal(4.0, 2.5, NUM_NUMBERS)
    kinds = rng.integers(0, 6, NUM_NUMBERS)
    return [_number(value, kind=kind) for value, kind in zip(values.tolist(), kinds.tolist(), strict=True)]


def _number(value: float, *, kind: int) -> str:
    whole = int(value)
    forms = (f"{1900 + whole % 130}", f"{whole % 100}", f"{whole:,}", f"{value % 1000:.1f}", f"{whole % 101}%")
    return [*forms, f"${whole:,}"][kind]


def _coined(rng: np.random.Generator, *, count: int) -> list[str]:
    """Return about `count` invented words: four forms of each stem, so that tokenizers find shared pieces."""
    onsets, nuclei, codas = _ONSETS.split(), _NUCLEI.split(), [*[""] * 24, *_CODAS.split()]
    words = []
    for syllables in rng.choice([1, 2, 3], p=[0.36, 0.58, 0.06], size=count // 4):
        stem = "".join(_pick(rng, onsets) + _pick(rng, nuclei) + _pick(rng, codas) for _ in range(syllables))
        words += [_pick(rng, _PREFIXES) + stem + _pick(rng, _SUFFIXES) for _ in range(4)]
    return words


def _pick(rng: np.random.Generator, options: list[str]) -> str:
    return options[int(rng.integers(len(options)))]
