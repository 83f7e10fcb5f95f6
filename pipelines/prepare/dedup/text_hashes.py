r"""Hash rows: keys of whole rows, and runs of words to compare with evaluation sets.

    'Ｇood.\n So '  ──NFKD──►  'Good.\n So '  ──lower──►  'good.\n so '  ──white space──►  'good. so'

Keys have 128 bits, so any two of a billion texts collide with probability 1e-21. A run is a sequence of words without
punctuation and symbols, as in the overlap analyses of GPT-3 (Brown et al. 2020, appendix C,
https://arxiv.org/abs/2005.14165) and Llama 2 (appendix A.6). In scripts without spaces, a word is a character (Han,
kana) or four letters (such as Thai).
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipelines.prepare.sources.rows.hash_filter import row_hashes, text_buffers
from tfrecord_io.codec.kernels import jit

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(int(_FACTOR), -1, 1 << 64))
_CHARACTERS = r"[\p{Han}\p{Hiragana}\p{Katakana}]\p{M}*"
_LETTERS = r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]\p{M}*"
_WORD = 4


def row_keys(columns: Sequence[pa.Array], *, verbatim: bool) -> np.ndarray:
    """Hash n rows to 128 bits each, uint64 [n, 2]. Unless `verbatim`, texts outside lists are normalized first."""
    digests = [_digests(column, verbatim=verbatim) for column in columns]
    if len(digests) > 1:
        digests = [[xxhash.xxh3_128_digest(b"".join(row)) for row in zip(*digests, strict=True)]]
    return np.frombuffer(b"".join(digests[0]), "<u8").reshape(-1, 2)


def _normalized(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    # Texts with equal NFKC have equal NFKD.
    data, edges = text_buffers(pc.utf8_lower(pc.utf8_normalize(texts, form="NFKD")))
    out, out_edges = np.empty(len(data), np.uint8), np.zeros(len(edges), np.int64)
    _squeeze(data, edges, out, out_edges)
    return out[: out_edges[-1]], out_edges


@jit  # several times as fast as a regular expression
def _squeeze(data, edges, out, out_edges):  # type: ignore[no-untyped-def]
    to = 0
    for row in range(len(edges) - 1):
        for at in range(edges[row], edges[row + 1]):
            byte = data[at]
            if 9 <= byte <= 13 or 28 <= byte <= 31:
                byte = 32
            if byte != 32 or (to > out_edges[row] and out[to - 1] != 32):
                out[to] = byte
                to += 1
        if to > out_edges[row] and out[to - 1] == 32:
            to -= 1
        out_edges[row + 1] = to


def _digests(column: pa.Array, *, verbatim: bool) -> list[bytes]:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        hashes = np.stack([row_hashes([column], seed=seed) for seed in (1, 2)], axis=1)
        return [bytes(row) for row in hashes.astype("<u8").view(np.uint8).reshape(-1, 16)]
    texts = column.cast(pa.large_string()).fill_null("")
    data, offsets = text_buffers(texts) if verbatim else _normalized(texts)
    view = data.data
    return [xxhash.xxh3_128_digest(view[start:stop]) for start, stop in itertools.pairwise(offsets.tolist())]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationRuns:
    """Hashes of all runs of `num_words` consecutive words in evaluation sets.

    `hashes` uint64 [M]: sorted. `of` int64 [M]: the set of each run, as an index into the sets' `names`.
    """

    names: tuple[str, ...]
    num_words: int
    hashes: np.ndarray
    of: np.ndarray

    @classmethod
    def joined(cls, sets: Mapping[str, Sequence[np.ndarray]], *, num_words: int) -> EvaluationRuns:
        """Join the hashes of evaluation sets: uint64 arrays, by name. A run in several sets belongs to the first."""
        by_set = [np.concatenate([np.zeros(0, np.uint64), *parts]) for parts in sets.values()]
        hashes, first = np.unique(np.concatenate(by_set), return_index=True)
        of = np.repeat(np.arange(len(by_set)), [len(part) for part in by_set])[first]
        return cls(names=tuple(sets), num_words=num_words, hashes=hashes, of=of)

    def to_json(self) -> dict[str, object]:
        content = hashlib.sha256(self.hashes.tobytes() + self.of.astype("<i8").tobytes()).hexdigest()
        return {"words": self.num_words, "runs_sha256": content}

    def dump(self) -> bytes:
        sink = io.BytesIO()
        np.savez(sink, names=np.array(self.names), num_words=self.num_words, hashes=self.hashes, of=self.of)
        return sink.getvalue()

    @classmethod
    def load(cls, content: bytes) -> EvaluationRuns:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            names = tuple(file["names"].tolist())
            return cls(names=names, num_words=int(file["num_words"]), hashes=file["hashes"], of=file["of"])

    def find(self, texts: pa.Array) -> np.ndarray:
        """Return the evaluation set that has the first shared run of each of n texts: its index, or -1, int64 [n]."""
        set_indices = np.full(len(texts), -1)
        if not len(self.hashes):
            return set_indices
        hashes, rows = run_hashes(texts, self.num_words)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        hits = np.flatnonzero(self.hashes[at] == hashes)[::-1]  # reversed: a text's first hit is written last
        set_indices[rows[hits]] = self.of[at[hits]]
        return set_indices


def run_hashes(texts: pa.Array, num_words: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash of each run of `num_words` words, uint64 [M], and its text's index, int64 [M]."""
    texts = pc.utf8_lower(pc.utf8_normalize(texts.cast(pa.large_string()).fill_null(""), form="NFKD"))
    lists = pc.utf8_split_whitespace(texts)
    words = lists.flatten().dictionary_encode()
    kinds = pc.replace_substring_regex(words.dictionary, r"[\pP\pS]+", "")
    kinds = pc.replace_substring_regex(kinds, rf"({_CHARACTERS}|{_LETTERS})", r" \1 ")
    units = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(kinds))
    unit_hashes, unit_sizes = _hashes_and_sizes(units.flatten())
    # Units per word; most words are one unit.
    ends = np.concatenate([[0], np.cumsum(pc.list_value_length(units).to_numpy())])
    word = words.indices.to_numpy()
    counts = np.diff(ends)[word]
    at = np.arange(counts.sum()) + np.repeat(ends[word] - (np.cumsum(counts) - counts), counts)
    hashes, sizes = unit_hashes[at], unit_sizes[at]
    rows = np.repeat(pc.list_parent_indices(lists).to_numpy(), counts)
    hashes, sizes, rows = hashes[hashes != 0], sizes[hashes != 0], rows[hashes != 0]
    return _windows(hashes, sizes, rows, size=num_words * _WORD)


def _hashes_and_sizes(units: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    units = units.dictionary_encode()
    texts = units.dictionary.cast(pa.large_binary()).to_pylist()
    hashes = np.array([xxhash.xxh3_64_intdigest(text) if text else 0 for text in texts], np.uint64)
    is_letter = np.asarray(pc.match_substring_regex(units.dictionary, f"^{_LETTERS}$"))
    at = units.indices.to_numpy()
    return hashes[at], np.where(is_letter, 1, _WORD)[at]


def _windows(hashes: np.ndarray, sizes: np.ndarray, rows: np.ndarray, *, size: int) -> tuple[np.ndarray, np.ndarray]:
    # For each unit, the shortest run of `size` or more that starts there: its hash and its row.
    ends = np.cumsum(sizes)
    stops = np.searchsorted(ends, ends - sizes + size)
    starts = np.flatnonzero(stops < len(ends))
    starts = starts[rows[starts] == rows[stops[starts]]]
    # A polynomial of the hashes modulo 2^64; dividing by its first power makes it independent of the position.
    powers, inverse = (np.multiply.accumulate(np.full(len(hashes), base)) for base in (_FACTOR, _INVERSE))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes * powers, dtype=np.uint64)])
    run_sums = (sums[stops[starts] + 1] - sums[starts]) * inverse[starts]
    return run_sums ^ (run_sums >> np.uint64(29)), rows[starts]
