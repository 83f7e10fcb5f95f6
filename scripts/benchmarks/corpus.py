"""Make synthetic documents of any size, as Parquet files: columns text (string) and label (int64, 0 or 1).

Works on whole arrays, never on one Python string per word. A document is a run of pieces, alternately a word and a
separator. `take` on the table of all pieces puts their bytes next to each other, so documents are only offsets:

    pieces   the | " " | table | " " | was | " " | laid | ".\\n" | It | " " | stood | "."
    bytes    the table was laid.\\nIt stood.
    offsets  ^ this document                          ^ the next one

The generator is one stream: a smaller corpus is the beginning of a larger one.
"""

import functools
import itertools
import pathlib
import shutil
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scripts.benchmarks import words
from scripts.benchmarks.words import NUM_NUMBERS, NUM_WORDS

_MEAN_DOCUMENT_BYTES = 1_300
_MAX_DOCUMENT_BYTES = 50_000
_ROWS_PER_GROUP = 2_000
_TABLES_PER_FILE = 17  # about 100 MB
_CACHE_VERSION = 2  # raise it when the generator changes, to ignore older corpora

_WORDS_PER_CHUNK = 1_000_000
_BYTES_PER_WORD = 5.87  # with its separator; only converts document sizes to word counts
_LOG_NORMAL_SIGMA = 0.95
_SENTENCE_WORDS = 17

_INSIDE = [" ", ", ", "; ", ": ", " - ", " (", ") ", "’s "]
_INSIDE_SHARES = [0.913, 0.065, 0.004, 0.004, 0.003, 0.003, 0.003, 0.005]
_BETWEEN = [". ", "? ", "! ", ".\n", '." ']
_BETWEEN_SHARES = [0.86, 0.04, 0.02, 0.06, 0.02]
_LAST = ["."]
_FIRST_SEPARATOR = 2 * NUM_WORDS + NUM_NUMBERS


def documents(*, num_bytes: int) -> Iterator[pa.Table]:
    """Yield tables with about 6 MB of text and labels each; all texts together have at least `num_bytes` bytes."""
    rng = np.random.default_rng([0, 3])
    while num_bytes > 0:
        text = _chunk(rng)
        labels = rng.integers(0, 2, len(text))
        ends = np.cumsum(pc.binary_length(text).to_numpy())
        count = int(np.searchsorted(ends, num_bytes)) + 1
        yield pa.table({"text": text, "label": labels}).slice(0, count)
        num_bytes -= int(ends[-1])


def parquet(workdir: pathlib.Path, *, num_bytes: int) -> pathlib.Path:
    """Return a folder of Parquet files with `num_bytes` of text, about 100 MB in each; made on the first call."""
    folder = workdir / f"corpus-v{_CACHE_VERSION}-{num_bytes}"
    if not folder.exists():
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        tables = documents(num_bytes=num_bytes)
        for part, in_file in enumerate(iter(lambda: list(itertools.islice(tables, _TABLES_PER_FILE)), [])):
            path = partial / f"part-{part:05d}.parquet"
            pq.write_table(pa.concat_tables(in_file), path, row_group_size=_ROWS_PER_GROUP)
        partial.rename(folder)
    return folder


@functools.cache
def _pieces() -> pa.LargeStringArray:
    """Return all words, the same words capitalised, numbers, and the separators `_INSIDE`, `_BETWEEN` and `_LAST`."""
    vocabulary = words.vocabulary()
    capitals = [word[0].upper() + word[1:] for word in vocabulary]
    return pa.array([*vocabulary, *capitals, *words.numbers(), *_INSIDE, *_BETWEEN, *_LAST], pa.large_string())


@functools.cache
def _names() -> np.ndarray:
    """Return bool [NUM_WORDS], True for words that are always capitalised, like names."""
    is_name = np.random.default_rng([0, 4]).random(NUM_WORDS) < 0.06
    is_name[:1_000] = False
    return is_name


def _chunk(rng: np.random.Generator) -> pa.StringArray:
    """Return about a million words of text as whole documents."""
    ends_document = _document_ends(rng)
    count = len(ends_document)
    ends_sentence = _sentence_ends(rng, count) | ends_document
    ids = np.empty((count, 2), np.int64)
    ids[:, 0] = _words(rng, starts_sentence=np.concatenate([[True], ends_sentence[:-1]]))
    ids[:, 1] = _FIRST_SEPARATOR + _separators(rng, ends_sentence=ends_sentence, ends_document=ends_document)
    laid_out = _pieces().take(pa.array(ids.reshape(-1)))
    return _cut(laid_out, last_pieces=2 * np.flatnonzero(ends_document) + 1)


def _document_ends(rng: np.random.Generator) -> np.ndarray:
    """Draw documents of log-normal sizes; return bool [words], True on the last word of each document."""
    mean_words = _MEAN_DOCUMENT_BYTES / _BYTES_PER_WORD
    location = np.log(mean_words) - _LOG_NORMAL_SIGMA**2 / 2
    sizes = rng.lognormal(location, _LOG_NORMAL_SIGMA, round(_WORDS_PER_CHUNK / mean_words))
    sizes = np.clip(sizes.astype(np.int64), 5, int(_MAX_DOCUMENT_BYTES / _BYTES_PER_WORD))
    ends = np.zeros(int(sizes.sum()), bool)
    ends[np.cumsum(sizes) - 1] = True
    return ends


def _sentence_ends(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw sentences of 3 to 60 words; return bool [count], True on the last word of each sentence."""
    lengths = np.clip(rng.lognormal(np.log(_SENTENCE_WORDS) - 0.15, 0.55, count // 3 + 1), 3, 60).astype(np.int64)
    last = np.cumsum(lengths) - 1
    ends = np.zeros(count, bool)
    ends[last[last < count]] = True
    return ends


def _words(rng: np.random.Generator, *, starts_sentence: np.ndarray) -> np.ndarray:
    """Draw words by frequency, capitalised as in English, and a few numbers; return indices into `_pieces`, int64."""
    count = len(starts_sentence)
    ids = np.minimum(np.searchsorted(np.cumsum(words.probabilities()), rng.random(count)), NUM_WORDS - 1)
    ids += np.where(starts_sentence | _names()[ids], NUM_WORDS, 0)
    numbers = 2 * NUM_WORDS + rng.integers(0, NUM_NUMBERS, count)
    return np.where(rng.random(count) < 0.015, numbers, ids)


def _separators(rng: np.random.Generator, *, ends_sentence: np.ndarray, ends_document: np.ndarray) -> np.ndarray:
    """Draw the separator after each word; return indices into `_INSIDE`, `_BETWEEN` and `_LAST` together, int64."""
    count = len(ends_sentence)
    inside = rng.choice(len(_INSIDE), count, p=_INSIDE_SHARES)
    between = len(_INSIDE) + rng.choice(len(_BETWEEN), count, p=_BETWEEN_SHARES)
    return np.where(ends_document, len(_INSIDE) + len(_BETWEEN), np.where(ends_sentence, between, inside))


def _cut(pieces: pa.LargeStringArray, *, last_pieces: np.ndarray) -> pa.StringArray:
    """Join `pieces`, and cut them after each index in `last_pieces`; return one string per document."""
    _, offsets, data = pieces.buffers()
    ends = np.frombuffer(offsets, np.int64)[last_pieces + 1]
    starts_and_ends = np.concatenate([[0], ends]).astype(np.int32)
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(starts_and_ends), data)
