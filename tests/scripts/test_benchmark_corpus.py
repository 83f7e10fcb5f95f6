"""The benchmark's corpus is reproducible, has the size that was asked for, and is shaped like English text."""

from __future__ import annotations

import hashlib
import pathlib
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scripts.benchmarks import corpus
from tests.support.speed import slow_but

NUM_BYTES = 200_000


def _texts(num_bytes: int, *, seed: int = 0) -> list[str]:
    return [text for table in corpus.documents(num_bytes=num_bytes, seed=seed) for text in table["text"].to_pylist()]


def _digest(texts: list[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _num_bytes(texts: list[str]) -> int:
    return sum(len(text.encode()) for text in texts)


@pytest.fixture(scope="module")
def sample() -> list[str]:
    """About 3 MB, half a million words: enough for the statistics to be those of the generator."""
    return _texts(3_000_000)


@pytest.fixture(scope="module")
def words(sample: list[str]) -> list[str]:
    return re.findall(r"[^\W\d_]+(?:'[a-z]+)?", " ".join(sample).lower())


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes() -> None:
    assert _digest(_texts(NUM_BYTES)) == _digest(_texts(NUM_BYTES))


@pytest.mark.slow
def test_another_seed_gives_other_text() -> None:
    assert _digest(_texts(NUM_BYTES)) != _digest(_texts(NUM_BYTES, seed=1))


@pytest.mark.slow
def test_a_smaller_corpus_is_the_beginning_of_a_larger_one() -> None:
    small, large = _texts(NUM_BYTES), _texts(2 * NUM_BYTES)
    assert small[:-1] == large[: len(small) - 1]
    assert large[len(small) - 1].startswith(small[-1])


@pytest.mark.parametrize("num_bytes", slow_but([1_000, 50_000, NUM_BYTES, 7_000_000], 1_000))
def test_sizes_are_within_two_percent(num_bytes: int) -> None:
    assert 0.98 * num_bytes <= _num_bytes(_texts(num_bytes)) <= num_bytes


@pytest.mark.slow
def test_words_are_as_long_as_in_english(words: list[str]) -> None:
    assert 4.4 <= float(np.mean([len(word) for word in words])) <= 5.0


def test_the_vocabulary_grows_with_the_text_as_in_english(words: list[str]) -> None:
    # Half a million words of English prose have some 20,000 to 40,000 distinct forms, and half of 10,000 words recur.
    assert 20_000 <= len(set(words[:450_000])) <= 42_000
    assert 2_000 <= len(set(words[:10_000])) <= 5_000


def test_function_words_are_the_most_frequent(words: list[str]) -> None:
    counts = Counter(words).most_common(5)
    assert {word for word, _ in counts} == {"the", "of", "and", "to", "a"}
    assert 0.03 <= counts[0][1] / len(words) <= 0.08


def test_documents_are_log_normal_with_a_long_tail(sample: list[str]) -> None:
    sizes = np.array([len(text.encode()) for text in sample])
    assert 0.85 * corpus.MEAN_DOCUMENT_BYTES <= sizes.mean() <= 1.15 * corpus.MEAN_DOCUMENT_BYTES
    assert np.median(sizes) < 0.8 * sizes.mean()
    assert 10_000 < sizes.max() < 60_000


def test_documents_are_sentences_with_capitals_numbers_and_punctuation(sample: list[str]) -> None:
    for text in sample[:-1]:
        assert text[0].isupper() or text[0].isdigit() or text[0] == "$"
        assert text.endswith(".")
    joined = " ".join(sample[:200])
    assert re.search(r"[a-z], [a-z]", joined)
    assert re.search(r"[a-z]\. [A-Z]", joined)
    assert re.search(r" \d", joined)


@pytest.mark.slow
def test_parquet_files_hold_the_stream_in_order(tmp_path: pathlib.Path) -> None:
    folder = corpus.parquet(tmp_path, num_bytes=14_000_000, part_bytes=7_000_000)
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    assert len(tables) == 2
    assert tables[0].schema.equals(pa.schema({"text": pa.string(), "label": pa.int64()}))
    assert _digest(pa.concat_tables(tables)["text"].to_pylist()) == _digest(_texts(14_000_000))


def test_both_classes_are_equally_likely(tmp_path: pathlib.Path) -> None:
    folder = corpus.parquet(tmp_path, num_bytes=1_000_000, part_bytes=1_000_000)
    labels = pq.read_table(folder)["label"].to_numpy()
    assert set(labels) == {0, 1}
    assert 0.4 <= labels.mean() <= 0.6


def test_a_corpus_is_made_once(tmp_path: pathlib.Path) -> None:
    first = corpus.parquet(tmp_path, num_bytes=NUM_BYTES, part_bytes=NUM_BYTES)
    stamp = (first / "part-00000.parquet").stat().st_mtime_ns
    again = corpus.parquet(tmp_path, num_bytes=NUM_BYTES, part_bytes=NUM_BYTES)
    assert again == first
    assert (again / "part-00000.parquet").stat().st_mtime_ns == stamp
