"""Span corruption: nothing is lost, counts are exact, and every choice is equally likely."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import objectives as cases
from tests.support.objectives import EOS, PAD, SEED, SENTINELS, assert_the_graph_gives_the_same, batch, manifest_of
from tests.tfrecord_io.conftest import make_manifest, tokenizer_facts
from tfrecord_io import objectives
from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives.spans import SpanCounts, draw_spans
from tfrecord_io.objectives.tensor_ops import TensorOps

NAN, INF = float("nan"), float("inf")


def text_batch(texts: list[list[int]], length: int, *, left: bool = False) -> dict[str, tf.Tensor]:
    ids, mask = np.full((len(texts), length), PAD), np.zeros((len(texts), length), np.int64)
    for row, text in enumerate(texts):
        place = slice(length - len(text), length) if left else slice(0, len(text))
        ids[row, place], mask[row, place] = text, 1
    return batch({"input_ids": ids, "attention_mask": mask})


def numbered(*lengths: int) -> list[list[int]]:
    return [list(range(10, 10 + length)) for length in lengths]


def corrupted(
    texts: list[list[int]], length: int, *, left: bool = False, seed: int = 0, **options: Any
) -> list[tuple[list[int], list[int]]]:
    """Of each text, inputs and targets without padding."""
    bound = objectives.span_corruption(**options).bind(manifest_of(length))
    inputs, labels, _ = bound(text_batch(texts, length, left=left), seed=tf.constant([seed, 7], tf.int64))
    masks = (inputs["attention_mask"], inputs["decoder_attention_mask"])
    assert all(np.all(np.diff(mask.numpy(), axis=1) <= 0) for mask in masks), "padding stands on the right"
    ids, mask = inputs["input_ids"].numpy(), inputs["attention_mask"].numpy()
    assert np.all(ids[mask == 0] == PAD)
    targets = [row[: row.tolist().index(EOS) + 1] for row in labels.numpy()]
    assert all(np.all(row[len(target) :] == PAD) for row, target in zip(labels.numpy(), targets, strict=True))
    return [(row[kept == 1].tolist(), target.tolist()) for row, kept, target in zip(ids, mask, targets, strict=True)]


def spans_of(target: list[int]) -> list[list[int]]:
    """The spans of a target, each without its sentinel; sentinels must come in order."""
    assert target[-1] == EOS
    spans: list[list[int]] = []
    for token in target[:-1]:
        if token in SENTINELS:
            assert token == SENTINELS[len(spans)]
            spans.append([])
        else:
            spans[-1].append(token)
    return spans


def restored(inputs: list[int], target: list[int]) -> list[int]:
    """The tokens of the row: each sentinel of the inputs replaced by the target's span."""
    spans = iter(spans_of(target))
    assert inputs[-1] == EOS
    tokens = [token for entry in inputs[:-1] for token in (next(spans) if entry in SENTINELS else [entry])]
    assert next(spans, None) is None, "each span has its place"
    return tokens


def expected_counts(n: int, *, density: float, mean_span: float) -> tuple[int, int]:
    """Tokens and spans that a text of n tokens loses, said once more; Python rounds halves to even, too."""
    if n < 2:
        return 0, 0
    noise = min(max(round(density * n), 1), n - 1)
    return noise, min(max(round(noise / mean_span), 1), n - noise + 1)


shapes = st.integers(2, 40).flatmap(
    lambda length: st.tuples(st.just(length), st.lists(st.integers(0, length), min_size=1, max_size=12))
)
densities = st.floats(0.02, 0.95)
means = st.floats(1.0, 8.0)


class TestEveryRow:
    @pytest.mark.slow
    @settings(max_examples=20)
    @given(shape=shapes, density=densities, mean_span=means, left=st.booleans(), seed=st.integers(0, 2**31))
    def test_texts_come_back_and_lose_so_many_tokens_in_so_many_spans(
        self, shape: tuple[int, list[int]], density: float, mean_span: float, left: bool, seed: int
    ) -> None:
        length, sizes = shape
        texts = numbered(*sizes)
        made = corrupted(texts, length, left=left, seed=seed, density=density, mean_span=mean_span)
        assert [restored(*pair) for pair in made] == texts
        spans_by_text = [spans_of(target) for _, target in made]
        assert all(span for spans in spans_by_text for span in spans), "no span is empty"
        assert [(sum(map(len, spans)), len(spans)) for spans in spans_by_text] == [
            expected_counts(n, density=density, mean_span=mean_span) for n in sizes
        ]

    @pytest.mark.slow
    @settings(max_examples=15)
    @given(length=st.integers(2, 40), density=densities, mean_span=means)
    def test_lengths_are_those_of_the_longest_row(self, length: int, density: float, mean_span: float) -> None:
        options: dict[str, Any] = {"density": density, "mean_span": mean_span}
        inputs, labels, weights = objectives.span_corruption(**options).bind(manifest_of(length))(
            text_batch(numbered(*range(length + 1)), length), seed=SEED
        )
        made = corrupted(numbered(*range(length + 1)), length, **options)
        assert inputs["input_ids"].shape[1] == inputs["attention_mask"].shape[1] == max(len(ids) for ids, _ in made)
        assert labels.shape[1] == weights.shape[1] == max(len(target) for _, target in made)
        assert inputs["decoder_input_ids"].shape == inputs["decoder_attention_mask"].shape == labels.shape


def test_the_defaults_are_t5s_lengths() -> None:
    # 15 % of 512 are 77 tokens in 26 spans: 512 - 77 + 26 + 1 and 77 + 26 + 1. T5 pretrains on 568 raw tokens that
    # become 512 and 114.
    for length, expected in ((512, (462, 104)), (568, (512, 114))):
        counts = SpanCounts.of(length, density=0.15, mean_span=3.0)
        assert (counts.input_length, counts.target_length) == expected


class TestEnds:
    def test_an_eos_that_ends_a_row_is_the_end_of_its_inputs(self) -> None:
        text = numbered(9)[0]
        [(inputs, target)] = corrupted([[*text, EOS]], 12)
        assert (inputs.count(EOS), target.count(EOS)) == (1, 1)
        assert restored(inputs, target) == text

    def test_an_eos_within_a_row_is_a_token_like_others(self) -> None:
        text = [10, 11, EOS, 13, 14, EOS, EOS]
        bound = objectives.span_corruption(density=0.1).bind(manifest_of(8))
        inputs, _, _ = bound(text_batch([text], 8), seed=SEED)
        assert np.sum(inputs["input_ids"].numpy() == EOS) >= 2

    @pytest.mark.slow
    def test_weights_count_the_target_and_its_end(self) -> None:
        texts = numbered(20, 12, 2)
        bound = objectives.span_corruption().bind(manifest_of(20))
        assert_the_graph_gives_the_same(bound, text_batch(texts, 20))
        _, _, weights = bound({**text_batch(texts, 20), "example_weight": tf.constant([1.0, 0.5, 0.0])}, seed=SEED)
        sizes = [len(target) for _, target in corrupted(texts, 20)]
        expected = (np.arange(weights.shape[1]) < np.array(sizes)[:, None]) * np.array([[1], [0.5], [0]])
        np.testing.assert_array_equal(weights, expected)

    def test_a_row_that_is_too_short_to_lose_a_token_has_no_weight(self) -> None:
        bound = objectives.span_corruption().bind(manifest_of(8))
        _, _, weights = bound(text_batch(numbered(0, 1, 2), 8), seed=SEED)
        assert (weights.numpy().sum(axis=1) > 0).tolist() == [False, False, True]


class TestChance:
    @pytest.mark.slow
    def test_every_possibility_is_equally_likely(self) -> None:
        # 7 tokens lose 3 in 2 spans: 2 ways to cut 3, and 10 ways to place two spans among 4 others.
        counts = SpanCounts.of(7, density=0.43, mean_span=1.5)
        assert (counts.noise[7], counts.spans[7]) == (3, 2)
        _, hidden = draw_spans(tf.fill([40_000], 7), counts, TensorOps(SEED))
        counted = Counter(map(tuple, hidden.numpy().tolist()))
        # Each of 20 comes 2,000 times; four and a half standard deviations are 196.
        assert len(counted) == 20
        assert max(abs(times - 2000) for times in counted.values()) < 196


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "value"), [*(("density", value) for value in (0.0, 1.0, NAN)), ("mean_span", 0.9), ("mean_span", INF)]
    )
    def test_numbers_out_of_range(self, name: str, value: Any) -> None:
        with pytest.raises(ReaderError, match="expected"):
            objectives.span_corruption(**{name: value})

    @pytest.mark.parametrize(
        ("manifest", "options", "words"),
        [
            (
                make_manifest(tokenizer=tokenizer_facts(eos_id=EOS)),
                {},
                "up to 1 span, but .*'tiny' has 0 .*sentinel_ids",
            ),
            (
                manifest_of(40),
                {"density": 0.3, "sentinel_ids": [999, 998]},
                "40 tokens lose up to 4 spans, but .* has 2 ",
            ),
            (manifest_of(8), {"sentinel_ids": [999, 999]}, "expected distinct ids"),
            (manifest_of(8), {"sentinel_ids": [999, -1]}, "expected distinct ids"),
            (make_manifest(tokenizer=tokenizer_facts(sentinel_ids=SENTINELS)), {}, "no EOS token.*give eos_id"),
            (make_manifest(cases.PACK_SCHEMA, tokenizer=cases.TOKENIZER), {}, "several documents.*--layout concat"),
            (manifest_of(1), {}, "rows have 1 token.*--max-length"),
        ],
    )
    def test_what_a_dataset_does_not_allow(self, manifest: Manifest, options: dict[str, Any], words: str) -> None:
        with pytest.raises(ReaderError, match=words):
            objectives.span_corruption(**options).bind(manifest)
