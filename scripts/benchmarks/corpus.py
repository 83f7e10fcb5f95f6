"""Make synthetic documents of any size, as Parquet files: columns text (string) and label (int64, 0 or 1).

Works on whole arrays, never on one Python string per word. A document is a run of pieces, alternately a word and a
separator. `take` on the table of all pieces puts their bytes next to each other, so documents are only offsets:

    pieces   the | " " | table | " " | was | " " | laid | ".\\n" | It | " " | stood | "."
    bytes    the table was laid.\\nIt stood.
    offsets  ^ this document                          ^ the next one

The generator is one stream: with the same seed, a smaller corpus is the beginning of a larger one.
"""

import dataclasses
import functools
import pathlib
import shutil
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scripts.benchmarks import words

MEAN_DOCUMENT_BYTES = 1_300
MAX_DOCUMENT_BYTES = 50_000
ROWS_PER_GROUP = 2_000
_CACHE_VERSION = 1  # raise it when the generator changes, to ignore older corpora

_WORDS_PER_CHUNK = 1_000_000
_BYTES_PER_WORD = 5.87  # with its separator; only converts document sizes to word counts
_LOG_NORMAL_SIGMA = 0.95
_SENTENCE_WORDS = 17

_INSIDE = [" ", ", ", "; ", ": ", " - ", " (", ") ", "’s "]
_INSIDE_SHARES = [0.913, 0.065, 0.004, 0.004, 0.003, 0.003, 0.003, 0.005]
_BETWEEN = [". ", "? ", "! ", ".\n", '." ']
_BETWEEN_SHARES = [0.86, 0.04, 0.02, 0.06, 0.02]
_LAST = ["."]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pieces:
    """Table of all pieces: the words, the words capitalised, numbers, then the separators of three places."""

    table: pa.LargeStringArray
    cumulative: np.ndarray  # of the words' probabilities
    is_name: np.ndarray  # bool[num_words], always capitalised
    num_words: int
    num_numbers: int

    @property
    def first_separator(self) -> int:
        return 2 * self.num_words + self.num_numbers


def documents(*, num_bytes: int, seed: int = 0) -> Iterator[pa.Table]:
    """Yield tables of whole documents with `num_bytes` bytes of text in total; the last document is cut at a word.

    Columns: text string, label int64; about 6 MB of text per table.
    """
    pieces = _pieces(seed)
    rng = np.random.default_rng([seed, 3])
    left = num_bytes
    while left > 0:
        text = _chunk(pieces, rng)
        labels = rng.integers(0, 2, len(text))
        text = _first_bytes(text, limit=left)
        left -= text_bytes(text)
        if len(text) == 0:
            return
        yield pa.table({"text": text, "label": pa.array(labels[: len(text)], pa.int64())})
        if len(text) < len(labels):
            return


def parquet(workdir: pathlib.Path, *, num_bytes: int, part_bytes: int, seed: int = 0) -> pathlib.Path:
    """Return a folder of Parquet files with `num_bytes` of text, about `part_bytes` in each; made on the first call."""
    folder = workdir / f"corpus-v{_CACHE_VERSION}-seed{seed}-{num_bytes}-by-{part_bytes}"
    if folder.exists():
        return folder
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _write_parts(
        partial,
        documents(num_bytes=num_bytes, seed=seed),
        part_bytes=part_bytes,
        parts=max(1, round(num_bytes / part_bytes)),
    )
    partial.rename(folder)
    return folder


def first_rows(workdir: pathlib.Path, *, num_rows: int, seed: int = 0) -> pathlib.Path:
    """Return a folder with one Parquet file of the corpus's first `num_rows` rows; written on each call."""
    folder = workdir / f"corpus-v{_CACHE_VERSION}-seed{seed}-{num_rows}-rows"
    folder.mkdir(parents=True, exist_ok=True)
    tables = list(documents(num_bytes=2 * num_rows * MEAN_DOCUMENT_BYTES, seed=seed))
    _write(folder, [pa.concat_tables(tables).slice(0, num_rows)], part=0)
    return folder


def text_bytes(column: pa.StringArray | pa.ChunkedArray) -> int:
    """Return the UTF-8 bytes of all strings of the column."""
    return pc.sum(pc.binary_length(column)).as_py() or 0


def _write_parts(folder: pathlib.Path, tables: Iterator[pa.Table], *, part_bytes: int, parts: int) -> None:
    """Split the stream at the table that fills a part, so that parts differ by less than the bytes of a table."""
    part, filled = 0, 0
    pending: list[pa.Table] = []
    for table in tables:
        pending.append(table)
        filled += text_bytes(table["text"])
        if filled >= (part + 1) * part_bytes and part < parts - 1:
            _write(folder, pending, part=part)
            part, pending = part + 1, []
    if pending:
        _write(folder, pending, part=part)


def _write(folder: pathlib.Path, tables: list[pa.Table], *, part: int) -> None:
    pq.write_table(pa.concat_tables(tables), folder / f"part-{part:05d}.parquet", row_group_size=ROWS_PER_GROUP)


@functools.lru_cache(maxsize=2)
def _pieces(seed: int) -> _Pieces:
    vocabulary = words.vocabulary(seed=seed)
    capitals = [word[0].upper() + word[1:] for word in vocabulary]
    numbers = words.numbers(seed=seed)
    table = pa.array([*vocabulary, *capitals, *numbers, *_INSIDE, *_BETWEEN, *_LAST], pa.large_string())
    is_name = np.random.default_rng([seed, 4]).random(len(vocabulary)) < 0.06
    is_name[:1_000] = False
    return _Pieces(
        table=table,
        cumulative=np.cumsum(words.probabilities(len(vocabulary))),
        is_name=is_name,
        num_words=len(vocabulary),
        num_numbers=len(numbers),
    )


def _chunk(pieces: _Pieces, rng: np.random.Generator) -> pa.StringArray:
    """Return about a million words of text as whole documents."""
    ends_document = _document_ends(rng)
    count = len(ends_document)
    ends_sentence = _sentence_ends(rng, count) | ends_document
    ids = np.empty((count, 2), np.int64)
    ids[:, 0] = _words(pieces, rng, starts_sentence=np.concatenate([[True], ends_sentence[:-1]]))
    ids[:, 1] = pieces.first_separator + _separators(rng, ends_sentence=ends_sentence, ends_document=ends_document)
    laid_out = pieces.table.take(pa.array(ids.reshape(-1)))
    return _cut(laid_out, last_pieces=2 * np.flatnonzero(ends_document) + 1)


def _document_ends(rng: np.random.Generator) -> np.ndarray:
    """Return bool[num_words], True on the last word of each document; document sizes are log-normal."""
    mean_words = MEAN_DOCUMENT_BYTES / _BYTES_PER_WORD
    location = np.log(mean_words) - _LOG_NORMAL_SIGMA**2 / 2
    sizes = rng.lognormal(location, _LOG_NORMAL_SIGMA, round(_WORDS_PER_CHUNK / mean_words))
    sizes = np.clip(sizes.astype(np.int64), 5, int(MAX_DOCUMENT_BYTES / _BYTES_PER_WORD))
    ends = np.zeros(int(sizes.sum()), bool)
    ends[np.cumsum(sizes) - 1] = True
    return ends


def _sentence_ends(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return bool[count], True on the last word of each sentence of 3 to 60 words."""
    lengths = np.clip(rng.lognormal(np.log(_SENTENCE_WORDS) - 0.15, 0.55, count // 3 + 1), 3, 60).astype(np.int64)
    last = np.cumsum(lengths) - 1
    ends = np.zeros(count, bool)
    ends[last[last < count]] = True
    return ends


def _words(pieces: _Pieces, rng: np.random.Generator, *, starts_sentence: np.ndarray) -> np.ndarray:
    """Return piece ids, int64[count]: words by frequency, capitalised as in English, and a few numbers."""
    count = len(starts_sentence)
    ids = np.minimum(np.searchsorted(pieces.cumulative, rng.random(count)), pieces.num_words - 1)
    ids += np.where(starts_sentence | pieces.is_name[ids], pieces.num_words, 0)
    numbers = 2 * pieces.num_words + rng.integers(0, pieces.num_numbers, count)
    return np.where(rng.random(count) < 0.015, numbers, ids)


def _separators(rng: np.random.Generator, *, ends_sentence: np.ndarray, ends_document: np.ndarray) -> np.ndarray:
    """Return indices into inside + between + last separators, int64[count]."""
    count = len(ends_sentence)
    inside = rng.choice(len(_INSIDE), count, p=_INSIDE_SHARES)
    between = len(_INSIDE) + rng.choice(len(_BETWEEN), count, p=_BETWEEN_SHARES)
    return np.where(ends_document, len(_INSIDE) + len(_BETWEEN), np.where(ends_sentence, between, inside))


def _cut(pieces: pa.LargeStringArray, *, last_pieces: np.ndarray) -> pa.StringArray:
    """Return one string per document: the bytes of `pieces`, cut after each of `last_pieces`."""
    _, offsets, data = pieces.buffers()
    ends = np.frombuffer(offsets, np.int64)[last_pieces + 1]
    starts_and_ends = np.concatenate([[0], ends]).astype(np.int32)
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(starts_and_ends), data)


def _first_bytes(text: pa.StringArray, *, limit: int) -> pa.StringArray:
    """Return the documents that fit into `limit` bytes, and the next one cut at a word to fill it."""
    ends = np.cumsum(pc.binary_length(text).to_numpy())
    whole = int(np.searchsorted(ends, limit, side="right"))
    if whole == len(text):
        return text
    room = limit - (int(ends[whole - 1]) if whole else 0)
    # A cut inside a character loses only that character: its word is dropped anyway.
    start = text[whole].as_py().encode()[:room].decode(errors="ignore").rpartition(" ")[0]
    texts = text.slice(0, whole).to_pylist()
    return pa.array([*texts, start] if start else texts, pa.string())
