"""The benchmark's corpus is reproducible, has the size that was asked for, and is shaped like English text."""

from __future__ import annotations

import pathlib
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scripts.benchmarks import corpus

NUM_BYTES = 200_000


def _texts(num_bytes: int, *, seed: int = 0) -> list[str]:
    return [text for table in corpus.documents(num_bytes=num_bytes, seed=seed) for text in table["text"].to_pylist()]


def test_a_smaller_corpus_is_the_beginning_of_a_larger_one_of_the_same_seed() -> None:
    small, large = _texts(NUM_BYTES), _texts(2 * NUM_BYTES)
    assert 0.98 * NUM_BYTES <= sum(len(text.encode()) for text in small) <= NUM_BYTES
    assert small[:-1] == large[: len(small) - 1]
    assert large[len(small) - 1].startswith(small[-1])
    assert small != _texts(NUM_BYTES, seed=1)


def test_words_are_those_of_english_and_documents_have_a_long_tail() -> None:
    sample = _texts(3_000_000)
    words = re.findall(r"[^\W\d_]+(?:'[a-z]+)?", " ".join(sample).lower())
    # Half a million words of English prose have some 20,000 to 40,000 distinct forms, and half of 10,000 words recur.
    assert 20_000 <= len(set(words[:450_000])) <= 42_000
    assert {word for word, _ in Counter(words).most_common(5)} == {"the", "of", "and", "to", "a"}
    assert 4.4 <= float(np.mean([len(word) for word in words])) <= 5.0
    sizes = np.array([len(text.encode()) for text in sample])
    assert 0.85 * corpus.MEAN_DOCUMENT_BYTES <= sizes.mean() <= 1.15 * corpus.MEAN_DOCUMENT_BYTES
    assert np.median(sizes) < 0.8 * sizes.mean()


@pytest.mark.slow
def test_parquet_files_hold_the_stream_in_order_and_are_made_once(tmp_path: pathlib.Path) -> None:
    folder = corpus.parquet(tmp_path, num_bytes=14_000_000, part_bytes=7_000_000)
    parts = sorted(folder.glob("*.parquet"))
    tables = [pq.read_table(path) for path in parts]
    assert len(tables) == 2
    assert tables[0].schema.equals(pa.schema({"text": pa.string(), "label": pa.int64()}))
    assert pa.concat_tables(tables)["text"].to_pylist() == _texts(14_000_000)
    stamps = [path.stat().st_mtime_ns for path in parts]
    assert corpus.parquet(tmp_path, num_bytes=14_000_000, part_bytes=7_000_000) == folder
    assert [path.stat().st_mtime_ns for path in parts] == stamps
