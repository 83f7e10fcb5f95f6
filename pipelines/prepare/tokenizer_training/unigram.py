"""Unigram from counted words: the pieces and scores that `tokenizers` learns from the text itself, up to ties.

    words and counts ──► strings that go on in different ways, up to 16 characters       seeds, at most a million
                    ┌──► how often is each piece expected, over all ways to cut words?   twice: expectation, new scores
                    └─── pieces whose loss costs least are left out, a quarter at most   until a tenth too many are left
                    ──► all characters, and the best pieces

The algorithm is SentencePiece's (Kudo 2018, arXiv:1804.10959), with the seeds, thresholds and scores of `tokenizers`
(tokenizers/src/models/unigram/trainer.rs, release 0.23). That one adds numbers up in the order of a randomly seeded
hash map, so that scores differ in their last digits from run to run, and pieces wherever two are equally good. Here the
order is that of the words and pieces, whatever the number of threads.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenizer_training import unigram_kernels as kernels
from pipelines.prepare.tokenizer_training.code_points import code_points

__all__ = ["MOST_CHARACTERS", "learn"]

# Characters of distinct words to learn from: those of the most frequent words. Takes about 1.5 GB.
MOST_CHARACTERS = 12_000_000
_MOST_SEEDS = 1_000_000
_LONGEST = 16
_ROUNDS = 2
_SHRINKING = 0.75
_LEAST_EXPECTED = 0.5
_UNKNOWN_PENALTY = 10.0
_MISSING_STEP = 0.0001
# Digits behind the point of a score: with more, `tokenizers` would not read it back exactly.
_DIGITS = 8
# Runs of words whose expectations are added up apart; fixed, since the sum depends on it in its last digits.
_RUNS = 16


@dataclasses.dataclass(eq=False)
class _Pieces:
    """Pieces by number; piece 0 stands for what is unknown. `places` int64 [P]: a position of the text where the piece
    lies; `sizes` int32 [P]; `scores` float64 [P].
    """

    places: np.ndarray
    sizes: np.ndarray
    scores: np.ndarray

    def take(self, numbers: np.ndarray) -> _Pieces:
        return _Pieces(self.places[numbers], self.sizes[numbers], self.scores[numbers])

    def __len__(self) -> int:
        return len(self.sizes)


def learn(
    words: pa.Array,
    counts: np.ndarray,
    *,
    num_pieces: int,
    vocab_size: int,
    threads: int = 1,
    report: Callable[[str], None] | None = None,
) -> list[tuple[str, float]]:
    """Learn at most `num_pieces` pieces with their scores, the best first; more if there are more characters.

    Args:
        words: large_string [W], each word once; counts: int64 [W].
        report: called with a line of text before each round.
    """
    points, lengths = code_points(words)
    trainer = _Training(points, lengths, counts, threads=threads)
    most = vocab_size * 11 // 10
    while True:
        for _ in range(_ROUNDS):
            if report:
                report(f"{len(trainer.pieces):,} pieces")
            trainer.maximize()
        if len(trainer.pieces) <= most:
            return trainer.final(num_pieces)
        trainer.prune(most)


class _Training:
    """Pieces, and where they begin in the words."""

    def __init__(self, points: np.ndarray, lengths: np.ndarray, counts: np.ndarray, *, threads: int) -> None:
        self._text = points
        self._threads = threads
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._words = kernels.Words(starts, counts.astype(np.float64))
        self._characters = np.unique(points)
        self.pieces, self._matches = _seeds(points, self._words, self._characters)

    def maximize(self) -> None:
        """Set the scores by how often the pieces are expected, and leave out those that are not."""
        expected = self._expected()
        stays = expected >= _LEAST_EXPECTED
        stays[0] = True
        numbers = np.flatnonzero(stays)
        self._keep(numbers)
        expected = expected[numbers]
        expected[0] = np.nan
        self.pieces.scores = _digamma(expected) - _digamma(np.array([expected[1:].sum()]))[0]

    def prune(self, most: int) -> None:
        """Leave out the pieces whose loss costs the least likelihood: a quarter, or as many as leave `most`."""
        matches, pieces = self._scored(), self.pieces
        frequencies = np.zeros(len(pieces))
        kernels.best_paths(self._words, matches, self._unknown(), frequencies)
        kept, lengths = np.zeros(len(pieces), bool), np.zeros(len(pieces), np.int64)
        others = np.zeros((len(pieces), _LONGEST), np.int32)
        kernels.second_paths(matches, pieces.places, self._unknown(), kept, others, lengths)
        found = (frequencies > 0) | kept
        certain = found & (lengths == 0)
        candidates = np.flatnonzero(found & (lengths > 0) & (frequencies > 0))
        certain[0], candidates = True, candidates[candidates > 0]
        loss = _losses(frequencies, others, lengths, candidates) / self._words.counts.sum()
        size = max(most, int(len(pieces) * _SHRINKING))
        first = np.flatnonzero(certain)
        best = candidates[np.argsort(-loss, kind="stable")]
        self._keep(np.concatenate([first, best[: max(0, size - len(first))]]))

    def final(self, num_pieces: int) -> list[tuple[str, float]]:
        """Return all characters, and pieces until there are `num_pieces`, by score."""
        pieces = self.pieces
        scores = {self._spelling(number): float(pieces.scores[number]) for number in range(1, len(pieces))}
        chosen: dict[str, float] = {}
        missing = 0
        for point in self._characters.tolist():
            chosen[chr(point)] = scores.get(chr(point), self._least() + missing * _MISSING_STEP)
            missing += chr(point) not in scores
        for piece, score in scores.items():
            if len(chosen) >= num_pieces:
                break
            chosen.setdefault(piece, score)
        return sorted(((piece, round(score, _DIGITS)) for piece, score in chosen.items()), key=lambda item: -item[1])

    def _spelling(self, number: int) -> str:
        place = int(self.pieces.places[number])
        return "".join(map(chr, self._text[place : place + int(self.pieces.sizes[number])].tolist()))

    def _least(self) -> float:
        return float(np.nanmin(self.pieces.scores))

    def _unknown(self) -> float:
        return self._least() - _UNKNOWN_PENALTY

    def _scored(self) -> kernels.Matches:
        return self._matches._replace(sizes=self.pieces.sizes, scores=self.pieces.scores)

    def _expected(self) -> np.ndarray:
        """Return how often each piece is expected, float64 [P]."""
        matches, unknown, words = self._scored(), self._unknown(), self._words
        # Runs with about as many characters each.
        edges = np.searchsorted(words.starts, np.linspace(0, words.starts[-1], _RUNS + 1).astype(np.int64)).tolist()

        def expect(run: int) -> np.ndarray:
            expected = np.zeros(len(self.pieces))
            kernels.expect(words, matches, unknown, edges[run], edges[run + 1], expected)
            return expected

        with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            total = np.zeros(len(self.pieces))
            for expected in pool.map(expect, range(_RUNS)):
                total += expected
        return total

    def _keep(self, numbers: np.ndarray) -> None:
        """Keep these pieces, in this order."""
        new = np.full(len(self.pieces), -1, np.int32)
        new[numbers] = np.arange(len(numbers), dtype=np.int32)
        kernels.keep(self._matches, new)
        self.pieces = self.pieces.take(numbers)


def _losses(frequencies: np.ndarray, others: np.ndarray, lengths: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return by how much the likelihood falls without each of the candidates, times the sum of the words' counts.

    In the paper a piece's frequency goes to its own alternatives; SentencePiece's code, and thus `tokenizers`, has the
    number of all pieces in that place (`alternatives.size()`), which is kept.
    """
    total = frequencies.sum()
    own = frequencies[candidates]
    instead = np.log(total + own * (len(frequencies) - 1))
    parts = np.zeros(len(candidates))
    for at in range(others.shape[1]):
        has = lengths[candidates] > at
        parts[has] += np.log(frequencies[others[candidates[has], at]] + own[has]) - instead[has]
    return own * (np.log(own) - np.log(total) - parts)


def _seeds(text: np.ndarray, words: kernels.Words, characters: np.ndarray) -> tuple[_Pieces, kernels.Matches]:
    """Return the first pieces: all characters, and strings by how often and how long they are; and where they begin."""
    size = len(text)
    lengths = np.diff(words.starts)
    ends = np.repeat(words.starts[1:], lengths)
    order = _sorted_suffixes(text, ends)
    shared = np.zeros(size, np.int32)
    kernels.common_lengths(text, ends, order, _LONGEST + 1, shared)
    left, right = np.empty(size, np.int64), np.empty(size, np.int64)
    depth = np.empty(size, np.int32)
    found = kernels.repeats(shared, left, right, depth)
    left, right, depth = left[:found], right[:found], depth[:found]
    places = order[left]
    usable = (depth > 1) & (depth <= _LONGEST) & (places + depth <= ends[places])
    left, right, depth = left[usable], right[usable], depth[usable]
    score = (right - left) * depth
    best = np.lexsort((-depth, -left, -score))[: max(0, _MOST_SEEDS - len(characters))]
    left, right, depth, score = left[best], right[best], depth[best], score[best]
    # Characters, the most frequent first.
    index = np.searchsorted(characters, text)
    often = np.bincount(index, weights=np.repeat(words.counts, lengths), minlength=len(characters))
    rank = np.lexsort((-characters, -often))
    number = np.empty(len(characters), np.int32)
    number[rank] = np.arange(1, len(characters) + 1, dtype=np.int32)
    first_place = np.zeros(len(characters), np.int64)
    first_place[index[::-1]] = np.arange(size - 1, -1, -1)
    values = np.concatenate([often[rank], score]).astype(np.float64)
    pieces = _Pieces(
        places=np.concatenate([[0], first_place[rank], order[left]]).astype(np.int64),
        sizes=np.concatenate([[1], np.ones(len(characters)), depth]).astype(np.int32),
        scores=np.concatenate([[np.nan], np.log(values) - np.log(values.sum())]),
    )
    return pieces, _matches(order, number[index], left, right, pieces)


def _matches(
    order: np.ndarray, characters: np.ndarray, left: np.ndarray, right: np.ndarray, pieces: _Pieces
) -> kernels.Matches:
    """Return which pieces begin at each position: its character, and the runs of suffixes that it is in."""
    size = len(order)
    steps = np.bincount(left, minlength=size + 1) - np.bincount(right, minlength=size + 1)
    counts = np.empty(size, np.int64)
    counts[order] = np.cumsum(steps[:size]) + 1
    offsets = np.concatenate([[0], np.cumsum(counts)])
    matches = kernels.Matches(offsets, np.empty(int(offsets[-1]), np.int32), pieces.sizes, pieces.scores)
    kernels.fill(matches, order, characters, left, right)
    return matches


def _sorted_suffixes(text: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return all positions, int64 [N], ordered by the next 32 characters of their words, equal ones by position.

    Ranks by 1, 2, 4, … characters: each pair of ranks is one number, whose rank is the next (Manber, Myers 1993).
    """
    positions = np.arange(len(text))
    rank = np.unique(text, return_inverse=True)[1].astype(np.int64) + 1
    width = 1
    while width <= _LONGEST:
        behind = np.zeros(len(text), np.int64)
        inside = positions + width < ends
        behind[inside] = rank[positions[inside] + width]
        rank = np.unique(rank * (rank.max(initial=0) + 1) + behind, return_inverse=True)[1].astype(np.int64) + 1
        width *= 2
    return np.argsort(rank, kind="stable")


def _digamma(values: np.ndarray) -> np.ndarray:
    """The derivative of log gamma, by its recurrence up to 7 and its asymptotic series around a half."""
    values, result = values.astype(np.float64).copy(), np.zeros(len(values))
    while (small := values < 7.0).any():
        result[small] -= 1.0 / values[small]
        values[small] += 1.0
    values -= 0.5
    square = 1.0 / values**2
    series = square / 24.0 - 7.0 / 960.0 * square**2 + 31.0 / 8064.0 * square**3 - 127.0 / 30720.0 * square**4
    return result + np.log(values) + series
