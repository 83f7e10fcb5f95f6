"""Runs of words that rows share with texts of evaluation sets.

A text is words between white space, in NFKD and lower case, without punctuation and symbols, as in the overlap analysis
of GPT-3 (Brown et al. 2020, appendix C, https://arxiv.org/abs/2005.14165), which takes runs of 13 words; so does Llama
2's (appendix A.6) with tokens. An evaluation text of fewer words has no run, and is not looked for.

    evaluation sets ──► hashes of their runs, once ──► sorted uint64 [M] ──► each row's runs are looked up
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

__all__ = ["EvaluationRuns", "run_hashes"]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationRuns:
    """The runs of `num_words` words of evaluation sets `names`: `hashes` sorted, uint64 [M]; the set `of` each, [M]."""

    names: tuple[str, ...]
    num_words: int
    hashes: np.ndarray
    of: np.ndarray

    @classmethod
    def joined(cls, sets: Mapping[str, Sequence[np.ndarray]], *, num_words: int) -> EvaluationRuns:
        """Join the hashes of several sets by name; a run of several is of the first."""
        found = [np.concatenate([np.zeros(0, np.uint64), *parts]) for parts in sets.values()]
        every, first = np.unique(np.concatenate(found), return_index=True)
        of = np.repeat(np.arange(len(found)), [len(each) for each in found])[first]
        return cls(names=tuple(sets), num_words=num_words, hashes=every, of=of)

    def to_json(self) -> dict[str, object]:
        """Return what the fingerprint covers."""
        content = hashlib.sha256(self.hashes.tobytes() + self.of.astype("<i8").tobytes()).hexdigest()
        return {"sets": list(self.names), "words": self.num_words, "runs_sha256": content}

    def dump(self) -> bytes:
        """Return the runs as a file for workers."""
        sink = io.BytesIO()
        np.savez(sink, names=np.array(self.names), num_words=self.num_words, hashes=self.hashes, of=self.of)
        return sink.getvalue()

    @classmethod
    def load(cls, content: bytes) -> EvaluationRuns:
        """Return the runs that `dump` wrote."""
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            names = tuple(file["names"].tolist())
            return cls(names=names, num_words=int(file["num_words"]), hashes=file["hashes"], of=file["of"])

    def find(self, texts: pa.Array) -> np.ndarray:
        """Return the set with which each text shares a run, int64 [n]; -1 for none."""
        found = np.full(len(texts), -1)
        if not len(self.hashes):
            return found
        hashes, rows = run_hashes(texts, self.num_words)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        hit = np.flatnonzero(self.hashes[at] == hashes)[::-1]  # of a text's runs the first decides
        found[rows[hit]] = self.of[at[hit]]
        return found


def run_hashes(texts: pa.Array, num_words: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash of each run of words, uint64 [M], and the text that it is of, int64 [M]."""
    texts = pc.utf8_lower(pc.utf8_normalize(texts.cast(pa.large_string()).fill_null(""), form="NFKD"))
    lists = pc.utf8_split_whitespace(texts)
    words = lists.flatten().dictionary_encode()
    kinds = pc.replace_substring_regex(words.dictionary, r"[\pP\pS]+", "")
    values = np.array(
        [xxhash.xxh3_64_intdigest(kind) if kind else 0 for kind in kinds.cast(pa.large_binary()).to_pylist()], np.uint64
    )
    hashes, rows = values[words.indices.to_numpy()], pc.list_parent_indices(lists).to_numpy()
    hashes, rows = hashes[hashes != 0], rows[hashes != 0]
    last = max(len(hashes) - num_words + 1, 0)
    starts = np.flatnonzero(rows[:last] == rows[num_words - 1 :][:last])
    found = np.zeros(len(starts), np.uint64)
    for at in range(num_words):
        found = (found ^ hashes[starts + at]) * _FACTOR
        found ^= found >> np.uint64(29)
    return found, rows[starts]
