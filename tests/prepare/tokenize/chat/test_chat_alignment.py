"""A token is learned if one of its characters is, with every method of alignment."""

import dataclasses
import functools
import itertools
import json
import operator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from pipelines.prepare.tokenize.chat.alignment import Aligner
from pipelines.prepare.tokenize.chat.template import Texts
from pipelines.prepare.tokenize.ragged import from_lists
from tests.prepare.tokenize.chat.chat_templates import chat_tokenizer
from tests.support.tokenizers_zoo import Zoo

DTYPE = np.dtype(np.int32)
KINDS = ["byte_bpe", "byte_bpe_roberta", "bpe_fallback", "unigram", "wordpiece_uncased", "wordpiece_cased"]
PIECES = [
    *("hello", " ", "  ", "\n", "\n\n", "naïve", "漢字", "👍🏽", "it's", "<|im_end|>", "<|im_start|>", "</s>", "\t"),
    *("\u00a0", "e\u0301", "ﬁ", "ÜBER", "3.", "\u2028", "\x00", "▁", "<0x41>"),
]
rendered = st.lists(st.lists(st.tuples(st.sampled_from(PIECES), st.booleans()), max_size=12), min_size=1, max_size=4)


class Rendering(NamedTuple):
    """A text and the learned characters [start, stop)."""

    text: str
    spans: list[tuple[int, int]]


@functools.cache
def aligners(zoo: Zoo, kind: str) -> tuple[Aligner, Tokenizer]:
    """The aligner under test, and the Rust tokenizer, which reports token offsets itself."""
    folder = chat_tokenizer(zoo, zoo.path(kind).with_name(f"{kind}-aligned"), template="chatml", kind=kind)
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    backend = Tokenizer.from_str(json.dumps({**content, "post_processor": None, "truncation": None, "padding": None}))
    return Aligner(AutoTokenizer.from_pretrained(folder), dtype=DTYPE), backend


def rendering_of(parts: list[tuple[str, bool]]) -> Rendering:
    text, spans = "", []
    for is_learned, group in itertools.groupby(parts, key=operator.itemgetter(1)):
        start, text = len(text), text + "".join(piece for piece, _ in group)
        if is_learned:
            spans.append((start, len(text)))
    return Rendering(text, spans)


def texts_of(renderings: list[Rendering]) -> Texts:
    places = [
        [len(rendering.text[:edge].encode()) for span in rendering.spans for edge in span] for rendering in renderings
    ]
    strings = pa.array([rendering.text for rendering in renderings], pa.large_string())
    return Texts.of(strings, pa.array(places, pa.large_list(pa.int64())))


def expected(backend: Tokenizer, rendering: Rendering) -> tuple[list[int], list[int]]:
    learned = {place for start, stop in rendering.spans for place in range(start, stop)}
    encoding = backend.encode(rendering.text, add_special_tokens=False)
    return encoding.ids, [
        int(bool(learned & set(range(start, max(stop, start + 1))))) for start, stop in encoding.offsets
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(rows=rendered)
def test_the_mask_is_that_of_the_places_that_the_tokenizer_reports(
    zoo: Zoo, kind: str, rows: list[list[tuple[str, bool]]]
) -> None:
    aligner, backend = aligners(zoo, kind)
    renderings = [rendering_of(parts) for parts in rows]
    wanted = [expected(backend, rendering) for rendering in renderings]
    runs, mask = aligner.align(from_lists([ids for ids, _ in wanted], dtype=DTYPE), texts_of(renderings))
    assert runs.ids.tolist() == [token for ids, _ in wanted for token in ids]
    assert mask.tolist() == [bit for _, learned in wanted for bit in learned]


def test_tokens_that_are_not_the_text_s_are_not_taken_for_its_own(zoo: Zoo) -> None:
    aligner, backend = aligners(zoo, "byte_bpe")
    rendering = Rendering("hello there", [(6, 11)])
    ids, mask = expected(backend, rendering)
    for wrong in (backend.encode("hello thera").ids, ids[:-1], [*ids, ids[-1]], [*ids[:-1], 10**6], []):
        runs, ours = aligner.align(from_lists([wrong], dtype=DTYPE), texts_of([rendering]))
        assert (runs.ids.tolist(), ours.tolist()) == (ids, mask)


def test_what_can_be_walked_is_not_tokenized_again(zoo: Zoo) -> None:
    aligner, backend = aligners(zoo, "byte_bpe")
    rendering = Rendering("<|im_start|>user\nnaïve 👍🏽<|im_end|>\n", [(17, 24)])
    ids, mask = expected(backend, rendering)
    texts = dataclasses.replace(texts_of([rendering]), strings=pa.array(["tokenized again"]))
    runs, learned = aligner.align(from_lists([ids], dtype=DTYPE), texts)
    assert (runs.ids.tolist(), learned.tolist()) == (ids, mask)


def test_spans_that_touch_across_texts_stay_in_their_own() -> None:
    texts = texts_of(
        [Rendering("é|a", [(2, 3)]), Rendering("b", [(0, 1)]), Rendering("", []), Rendering("c|ü", [(1, 3)])]
    )
    assert texts.data.tobytes().decode() == "é|abc|ü"
    assert texts.spans.tolist() == [[3, 4], [4, 5], [6, 9]]
    letters = [texts.learned_letters(row).tolist() for row in range(4)]
    assert letters == [[False, False, True], [True], [], [False, True, True]]
