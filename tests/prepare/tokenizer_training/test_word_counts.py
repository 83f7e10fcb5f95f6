"""Counting words by chunks: the words of whole texts, from any number of files, within a limit."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import cast

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from pipelines.prepare.options.tokenizer_options import STYLES_OF, Kind, Style
from pipelines.prepare.tokenizer_training import word_counts
from pipelines.prepare.tokenizer_training.chunks import ChunkCounter
from pipelines.prepare.tokenizer_training.styles import StyleOptions, template_of
from pipelines.prepare.tokenizer_training.word_counts import WordCounter, words_of
from tests.prepare.tokenizer_training.texts import reviews
from tests.support.texts import MULTI_SCRIPT
from tfrecord_io.errors import OutputError

COMBINATIONS = [(kind, style) for kind, styles in STYLES_OF.items() for style in styles]
# Spaces of all kinds, characters that normalizers turn into some, marks, quotes, endings, numbers, and letters.
STRANGE = (
    " " * 12 + "\t\n\r\u00a0\u3000\u200b\u2028\u0085\u00a8\u00af\u0301\ufeff▁`'\"" + "aZé漢ж1２.,!s\ufb01\U0001d4b3\x00"
)
texts_of = st.lists(st.text(STRANGE, max_size=30), max_size=6)


def counted(texts: list[str], kind: Kind, style: Style, lowercase: bool | None = None) -> dict[str, int]:
    counter = WordCounter(template_of(style, kind, StyleOptions(lowercase=lowercase)).splitter())
    counter.add(pa.array(texts, pa.large_string()))
    table = counter.result()
    return dict(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True))


def expected(texts: list[str], kind: Kind, style: Style, lowercase: bool | None = None) -> dict[str, int]:
    backend = template_of(style, kind, StyleOptions(lowercase=lowercase)).splitter()
    return dict(collections.Counter(word for text in texts for word in words_of(backend, text)))


@pytest.mark.parametrize(("kind", "style"), COMBINATIONS)
def test_chunks_have_the_words_of_whole_texts(kind: Kind, style: Style) -> None:
    @hypothesis.given(texts=texts_of)
    @hypothesis.settings(deadline=None)
    def check(texts: list[str]) -> None:
        assert counted(texts, kind, style) == expected(texts, kind, style)

    check()
    real = [*reviews(), *MULTI_SCRIPT]
    assert counted(real, kind, style) == expected(real, kind, style)


@pytest.mark.parametrize(("kind", "style"), [("wordpiece", "bert"), ("unigram", "albert")])
def test_cased_chunks_have_the_words_of_whole_texts(kind: str, style: str) -> None:
    @hypothesis.given(texts=texts_of)
    @hypothesis.settings(deadline=None)
    def check(texts: list[str]) -> None:
        chosen = cast(Kind, kind), cast(Style, style)
        assert counted(texts, *chosen, lowercase=False) == expected(texts, *chosen, lowercase=False)

    check()


@hypothesis.given(texts=texts_of)
@hypothesis.settings(deadline=None)
def test_chunks_put_together_are_the_texts(texts: list[str]) -> None:
    counter = ChunkCounter()
    counter.add(pa.array(texts, pa.string()))
    chunks, counts = counter.drain()
    found = sum(len(chunk) * count for chunk, count in zip(chunks.to_pylist(), counts.tolist(), strict=True))
    assert found == sum(map(len, texts))
    assert len(counter) == 0


def test_sliced_texts_count_what_is_in_the_slice() -> None:
    counter = ChunkCounter()
    counter.add(pa.array(["not this", "a b", "a b c", "nor this"]).slice(1, 2))
    chunks, counts = counter.drain()
    assert dict(zip(chunks.to_pylist(), counts.tolist(), strict=True)) == {"a": 2, " b": 2, " c": 1}


def write(folder: Path, *counts: dict[str, int]) -> list[str]:
    paths = []
    for number, each in enumerate(counts):
        paths.append(str(folder / f"count-{number}.arrow"))
        schema = pa.schema([("word", pa.large_string()), ("count", pa.int64())])
        table = pa.table({"word": list(each), "count": list(each.values())}, schema=schema)
        word_counts.write_divided(paths[-1], table)
    return paths


def test_files_are_summed(tmp_path: Path) -> None:
    sums = word_counts.read_sums(write(tmp_path, {"a": 1, "b": 2}, {}, {"b": 3, "é": 2**40}))
    assert dict(zip(sums.words.to_pylist(), sums.counts.tolist(), strict=True)) == {"a": 1, "b": 5, "é": 2**40}
    assert (sums.total, sums.left_out) == (6 + 2**40, 0)


def test_beyond_the_limit_the_rarest_words_are_left_out_whatever_the_order_of_files(tmp_path: Path) -> None:
    parts = [{f"w{number}": 1 + number % 50 for number in range(first, 2000, 3)} for first in range(3)]
    paths = write(tmp_path, *parts)
    one, other = (word_counts.read_sums(each, most_words=300).in_order() for each in (paths, paths[::-1]))
    assert one.words.equals(other.words)
    assert 200 < len(one) <= 300
    assert one.counts.min() == 51 - len(one) // 40
    assert len(one) + one.left_out == 2000


@pytest.mark.parametrize("content", [None, b"", b"ARROW1 and nothing else"])
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    (path,) = write(tmp_path, {"a": 1})
    if content is None:
        Path(path).unlink()
    else:
        Path(path).write_bytes(content)
    with pytest.raises(OutputError, match=r"count-0.arrow: the counted words .* missing or damaged"):
        word_counts.read_sums([path])


def test_words_are_ordered_by_count_then_by_code_point(tmp_path: Path) -> None:
    sums = word_counts.read_sums(write(tmp_path, {"b": 2, "a": 2, "z": 9, "é": 1})).in_order()
    assert sums.words.to_pylist() == ["z", "a", "b", "é"]
    assert sums.first_of(2).words.to_pylist() == ["z", "a"]
    assert sums.first_of(0).words.to_pylist() == ["z"]
