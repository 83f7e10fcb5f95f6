"""BPE from counted words: the vocabulary and the merges that `tokenizers` learns from the text itself.

    words and counts    low 5, lower 2, newest 6
    vocabulary          special tokens, then the alphabet by code point, then one token for each merge
    merges              the most frequent pair of neighbours, again and again; of equals the one with the smallest ids

The trainers of the Python package `tokenizers` take texts, not counts, so they hold every text's words in one map. This
one follows their algorithm (tokenizers/src/models/bpe/trainer.rs, release 0.23) step by step, and gives the same tokens
with the same ids. Three things in which `tokenizers` differs from run to run are fixed here:

    ids of continuing characters (`##a`)    by code point; there in the order of a randomly seeded hash map, which also
                                            decides between merges that are equally frequent
    the limit of the alphabet               of equally frequent characters those with small code points stay
    a pair that is waiting to be merged     the older one first
    twice, with the same count

Counts are of 64 bits; there they are of 32, and overflow at two billion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenizer_training import bpe_kernels as kernels
from pipelines.prepare.tokenizer_training.code_points import code_points

__all__ = ["Learned", "learn"]

_CODE_POINTS = 0x110000
_LEAST_SLOTS = 1 << 16
# Symbols whose pairs are counted before the table is asked whether it has room for more.
_SYMBOLS_AT_ONCE = 1 << 18
# Words whose characters are counted at once.
_WORDS_AT_ONCE = 1 << 18
# Merges between two reports of progress.
_REPORT = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
    """`tokens` by id: `num_given` special tokens and characters, then those of merges. `merges`: pairs of tokens, in
    their order.
    """

    tokens: tuple[str, ...]
    num_given: int
    merges: tuple[tuple[str, str], ...]


def learn(
    words: pa.Array,
    counts: np.ndarray,
    *,
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    initial_alphabet: Sequence[str] = (),
    limit_alphabet: int | None = None,
    min_frequency: int = 0,
    continuing_prefix: str = "",
    report: Callable[[int], None] | None = None,
) -> Learned:
    """Learn a vocabulary of at most `vocab_size` tokens; fewer if no pair occurs `min_frequency` times any more.

    Args:
        words: large_string [W], each word once; counts: int64 [W].
        special_tokens, initial_alphabet: tokens, and characters, to have in any case, also beyond `vocab_size`.
        limit_alphabet: the most characters to have; others are left out of words.
        continuing_prefix: what WordPiece puts before tokens that continue a word.
        report: called with the number of tokens now and then.
    """
    ids = dict.fromkeys(special_tokens)
    vocabulary = {token: number for number, token in enumerate(ids)}
    points, lengths = code_points(words)
    alphabet = _alphabet(points, lengths, counts, initial_alphabet, limit_alphabet)
    for character in alphabet:
        vocabulary.setdefault(chr(character), len(vocabulary))
    split = _split(points, lengths, counts, vocabulary, continuing_prefix)
    trainer = _Merging(split, vocabulary, prefix=continuing_prefix)
    num_given = len(vocabulary)
    merges = trainer.run(vocab_size=vocab_size, min_frequency=min_frequency, report=report)
    return Learned(tokens=tuple(vocabulary), num_given=num_given, merges=merges)


def _alphabet(
    points: np.ndarray, lengths: np.ndarray, counts: np.ndarray, initial: Sequence[str], limit: int | None
) -> list[int]:
    """Return the characters to have, by code point."""
    found = np.zeros(_CODE_POINTS)
    ends = np.cumsum(lengths)
    for first in range(0, len(lengths), _WORDS_AT_ONCE):
        some = slice(first, first + _WORDS_AT_ONCE)
        weights = np.repeat(counts[some], lengths[some])
        begin, end = ends[first] - lengths[first], ends[some][-1]
        found += np.bincount(points[begin:end], weights=weights, minlength=_CODE_POINTS)
    found[[ord(character[0]) for character in initial]] = np.inf
    characters = np.flatnonzero(found)
    if limit is not None and len(characters) > limit:
        characters = np.sort(characters[np.argsort(-found[characters], kind="stable")][:limit])
    return characters.tolist()


def _split(
    points: np.ndarray, lengths: np.ndarray, counts: np.ndarray, vocabulary: dict[str, int], prefix: str
) -> kernels.Words:
    """Return the words as ids of their characters, and give an id to each character that continues a word."""
    inside = np.ones(len(points), bool)
    starts = np.cumsum(lengths) - lengths
    inside[starts[lengths > 0]] = False
    first_ids, inner_ids = np.full(_CODE_POINTS, -1, np.int32), np.full(_CODE_POINTS, -1, np.int32)
    for character in np.unique(points).tolist():
        first_ids[character] = vocabulary.get(chr(character), -1)
    used = np.unique(points[inside]).tolist() if prefix else []
    for character in used:
        if first_ids[character] >= 0:
            inner_ids[character] = vocabulary.setdefault(prefix + chr(character), len(vocabulary))
    symbols = np.where(inside, inner_ids[points], first_ids[points]) if prefix else first_ids[points]
    known = symbols >= 0
    if not known.all():  # a character that the alphabet has no room for is left out, and its neighbours meet
        owner = np.repeat(np.arange(len(lengths)), lengths)[known]
        symbols, lengths = symbols[known], np.bincount(owner, minlength=len(lengths))
        starts = np.cumsum(lengths) - lengths
    return kernels.Words(
        symbols=symbols.astype(np.int32),
        starts=starts.astype(np.int64),
        lengths=lengths.astype(np.int32),
        counts=np.ascontiguousarray(counts, np.int64),
    )


def _table(slots: int) -> kernels.Table:
    return kernels.Table(
        keys=np.full(slots, kernels.NONE, np.uint64),
        counts=np.zeros(slots, np.int64),
        group=np.full(slots, -1, np.int64),
        used=np.zeros(1, np.int64),
    )


def _heap(entries: int, *, places: np.ndarray) -> kernels.Heap:
    return kernels.Heap(
        keys=np.zeros(entries, np.uint64),
        counts=np.zeros(entries, np.int64),
        first=np.zeros(entries, np.int64),
        stop=np.zeros(entries, np.int64),
        places=places,
        size=np.zeros(2, np.int64),
    )


class _Merging:
    """Merges pairs until the vocabulary, by token, is full."""

    def __init__(self, words: kernels.Words, vocabulary: dict[str, int], *, prefix: str) -> None:
        self._words = words
        self._vocabulary = vocabulary
        self._tokens = list(vocabulary)
        self._prefix = prefix
        self._table = _table(_LEAST_SLOTS)
        ends = words.starts + words.lengths
        first = 0
        while first < len(ends):
            stop = max(first + 1, int(np.searchsorted(ends, words.starts[first] + _SYMBOLS_AT_ONCE, "right")))
            self._require_slots(int(ends[stop - 1] - words.starts[first]))
            kernels.count_pairs(words, self._table, first, stop)
            first = stop
        # Never touched beyond what is used, so never resident.
        places = np.empty(3 * len(words.symbols) + 1, np.int32)
        self._heap = _heap(int(self._table.used[0]) + 1, places=places)
        kernels.fill_heap(words, self._table, self._heap)

    def run(
        self, *, vocab_size: int, min_frequency: int, report: Callable[[int], None] | None
    ) -> tuple[tuple[str, str], ...]:
        """Return the merges, each pair once, at the place where it was merged last, as `tokenizers` writes them."""
        merges: dict[tuple[int, int], None] = {}
        while len(self._vocabulary) < vocab_size:
            key, count, first, stop = kernels.next_pair(self._table, self._heap)
            if count < max(1, min_frequency):
                break
            left, right = int(key) >> 32, int(key) & 0xFFFFFFFF
            token = self._token_of(self._tokens[left] + self._tokens[right].removeprefix(self._prefix))
            merges.pop((left, right), None)
            merges[left, right] = None
            self._require_room()
            kernels.merge(self._words, self._table, self._heap, left, right, token, first, stop)
            if report and len(self._tokens) % _REPORT == 0:
                report(len(self._tokens))
        return tuple((self._tokens[left], self._tokens[right]) for left, right in merges)

    def _token_of(self, text: str) -> int:
        """Return the id of a token, the same one for two pairs that spell the same."""
        if text not in self._vocabulary:
            self._vocabulary[text] = len(self._tokens)
            self._tokens.append(text)
        return self._vocabulary[text]

    def _require_room(self) -> None:
        """Make room for all pairs that a merge can bring: each token to the left of the new one, and to the right."""
        most = 2 * len(self._tokens) + 1
        self._require_slots(most)
        heap = self._heap
        if int(heap.size[0]) + most > len(heap.keys):
            larger = _heap(2 * (int(heap.size[0]) + most), places=heap.places)
            for old, new in zip(heap, larger, strict=True):
                if new is not heap.places:
                    new[: len(old)] = old
            self._heap = larger

    def _require_slots(self, more: int) -> None:
        slots = len(self._table.keys)
        while 2 * (int(self._table.used[0]) + more) > slots:
            slots *= 2
        if slots > len(self._table.keys):
            larger = _table(slots)
            kernels.rehash(self._table, larger)
            self._table = larger
