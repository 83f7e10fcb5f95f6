"""Counting words: what normalizer and pre-tokenizer make of texts, each distinct word with its number.

    texts ──► chunks ──► words ──► a file for each task, its words divided by hash ──► sums, one division at a time
           (see `chunks`)             count-00003.arrow: batches 0 to 15

A word is in the same division in every file, so that the sums need memory for the distinct words and one division. Of
more than `MOST_WORDS` distinct words the rarest are left out, the same ones in whatever order the files were written.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare import storage
from pipelines.prepare.tokenize.engines.base import utf8_of
from pipelines.prepare.tokenizer_training import chunk_kernels as kernels
from pipelines.prepare.tokenizer_training.chunks import ChunkCounter
from tfrecord_io.codec.kernels import frozen
from tfrecord_io.errors import OutputError

__all__ = ["MOST_WORDS", "WordCounter", "WordCounts", "read_sums", "words_of", "write_divided"]

# To learn BPE from six million words of nine letters took 2.3 GB (measured), so these take about 1.6 GB.
MOST_WORDS = 4_000_000
_DIVISIONS = 16
# Chunks and words held as such before they are put together with those before.
_MOST_CHUNKS = 1 << 21
_MOST_CHUNK_BYTES = 1 << 26
_MOST_HELD_WORDS = 1 << 19
# Files whose counts are put together at once.
_FILES_AT_ONCE = 16
# Chunks that are Python strings at once.
_CHUNKS_AT_ONCE = 1 << 16

_SCHEMA = pa.schema([("word", pa.large_string()), ("count", pa.int64())])


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordCounts:
    """Distinct `words`, large_string [W], and their `counts`, int64 [W].

    `total`: words in the texts. `left_out`: distinct words, besides, that were too rare to be kept.
    """

    words: pa.Array
    counts: np.ndarray
    total: int
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.counts)

    def in_order(self) -> WordCounts:
        """Return the words by their counts, the most frequent first, equal ones by code point."""
        table = pa.table({"word": self.words, "count": self.counts})
        order = pc.sort_indices(table, sort_keys=[("count", "descending"), ("word", "ascending")])
        return dataclasses.replace(self, words=self.words.take(order), counts=self.counts[order.to_numpy()])

    def first_of(self, most_characters: int) -> WordCounts:
        """Return as many of the first words as have `most_characters` together, at least one."""
        ends = np.cumsum(pc.utf8_length(self.words).to_numpy(zero_copy_only=False).astype(np.int64))
        kept = max(1, int(np.searchsorted(ends, most_characters, "right")))
        return dataclasses.replace(self, words=self.words.slice(0, kept), counts=self.counts[:kept])


def words_of(backend: Any, text: str) -> list[str]:
    """Return the words that a `tokenizers.Tokenizer` makes of a text, before its model sees them."""
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


class WordCounter:
    """Counts the words of texts with a tokenizer's normalizer and pre-tokenizer."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._chunks = ChunkCounter()
        self._words: dict[str, int] = {}
        self._table = _SCHEMA.empty_table()

    def add(self, texts: pa.Array) -> None:
        """Count the words of texts in valid UTF-8, without nulls."""
        self._chunks.add(texts)
        if len(self._chunks) > _MOST_CHUNKS or self._chunks.num_bytes > _MOST_CHUNK_BYTES:
            self._count_words()

    def result(self) -> pa.Table:
        """Return the words and counts, with the columns `word` and `count`, in no particular order."""
        self._count_words()
        self._put_together()
        return self._table

    def _count_words(self) -> None:
        chunks, counts = self._chunks.drain()
        words = self._words
        for first in range(0, len(chunks), _CHUNKS_AT_ONCE):
            strings = chunks.slice(first, _CHUNKS_AT_ONCE).to_pylist()
            for text, count in zip(strings, counts[first : first + len(strings)].tolist(), strict=True):
                for word in words_of(self._backend, text):
                    words[word] = words.get(word, 0) + count
            if len(words) > _MOST_HELD_WORDS:
                self._put_together()

    def _put_together(self) -> None:
        held = pa.table({"word": list(self._words), "count": list(self._words.values())}, schema=_SCHEMA)
        self._words.clear()
        self._table = _summed([self._table, held]) if len(self._table) else held


def _summed(tables: Sequence[pa.Table]) -> pa.Table:
    sums = pa.concat_tables(tables).group_by("word", use_threads=False).aggregate([("count", "sum")])
    return pa.table({"word": sums["word"], "count": sums["count_sum"]}, schema=_SCHEMA).combine_chunks()


def write_divided(path: str, counts: pa.Table, *, inside: str | None = None) -> None:
    """Write words and counts, divided by the words' hashes. Raises: OutputError."""
    words = counts["word"].combine_chunks() if len(counts) else pa.array([], pa.large_string())
    words = words.chunk(0) if isinstance(words, pa.ChunkedArray) else words
    data, edges = utf8_of(words)
    division = np.zeros(len(words), np.int64)
    kernels.partitions(frozen(data), edges, _DIVISIONS, division)
    order = np.argsort(division, kind="stable")
    sizes = np.bincount(division, minlength=_DIVISIONS)
    ordered = counts.take(pa.array(order))
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        first = 0
        for size in sizes.tolist():
            columns = [_whole(ordered[name].slice(first, size)) for name in _SCHEMA.names]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
            first += size
    storage.write_bytes(path, sink.getvalue(), inside=inside)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        return whole.chunk(0) if whole.num_chunks else pa.array([], column.type)
    return whole


def read_sums(paths: Sequence[str], *, most_words: int = MOST_WORDS) -> WordCounts:
    """Sum the counts of the files of all tasks.

    If there are more than `most_words` distinct words, the rarest are left out: all below a count.

    Raises: OutputError if a file is missing or damaged.
    """
    kept: list[pa.Table] = []
    least, total, left_out = 1, 0, 0
    for division in range(_DIVISIONS):
        sums = _sum_of(paths, division)
        total += pc.sum(sums["count"]).as_py() or 0
        kept.append(sums)
        least = _least_count(kept, most_words, least)
        before = sum(map(len, kept))
        if least > 1:
            kept = [table.filter(pc.greater_equal(table["count"], least)) for table in kept]
        left_out += before - sum(map(len, kept))
    whole = pa.concat_tables(kept).combine_chunks()
    return WordCounts(
        words=_whole(whole["word"]),
        counts=_whole(whole["count"]).to_numpy(zero_copy_only=False).copy(),
        total=total,
        left_out=left_out,
    )


def _least_count(tables: Iterable[pa.Table], most: int, least: int) -> int:
    """Return the smallest count, `least` or more, that at most `most` words have or exceed."""
    counts = np.concatenate([np.asarray(table["count"]) for table in tables])
    if len(counts) <= most:
        return least
    return max(least, int(np.partition(counts, len(counts) - most - 1)[len(counts) - most - 1]) + 1)


def _sum_of(paths: Sequence[str], division: int) -> pa.Table:
    """Return the sums of one division, a few files at a time."""
    sums = _SCHEMA.empty_table()
    for first in range(0, len(paths), _FILES_AT_ONCE):
        parts = [_division(path, division) for path in paths[first : first + _FILES_AT_ONCE]]
        sums = _summed([sums, *parts])
    return sums


def _division(path: str, division: int) -> pa.Table:
    try:
        with _stream(path) as stream:
            return pa.Table.from_batches([pa.ipc.open_file(stream).get_batch(division)])
    except (OSError, pa.ArrowInvalid) as error:
        raise OutputError(
            f"{path}: the counted words of a task are missing or damaged, though the task is done",
            remedy="if workers are on other machines, choose an --output that all can reach, such as gs://; else run "
            "the same command again",
        ) from error


def _stream(path: str) -> Any:
    local = storage.local_path(path)
    if local is not None:
        return pa.OSFile(local)
    files, inner = storage.file_system(path)
    return files.open(inner, "rb")
