"""Beam search against one by hand, in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.train.predict import decoding

VOCAB, LENGTH, EOS = 4, 7, 3


def chances_after(ids: tuple[int, ...]) -> np.ndarray:
    """float64 [V]: log probabilities of the next token, which depend on all that precedes it."""
    rng = np.random.default_rng([len(ids), *ids])
    logits = rng.normal(scale=2.0, size=VOCAB)
    return logits - np.log(np.exp(logits).sum())


def next_logits(ids_NL: tf.Tensor, lengths_N: tf.Tensor) -> tf.Tensor:
    def look_up(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        rows = [chances_after(tuple(row[:count].tolist())) for row, count in zip(ids, lengths, strict=True)]
        return np.array(rows, np.float32)

    logits = tf.numpy_function(look_up, [ids_NL, lengths_N], tf.float32)
    return tf.ensure_shape(logits, [ids_NL.shape[0], VOCAB])


def prompts() -> tuple[tf.Tensor, tf.Tensor]:
    ids = np.zeros((4, LENGTH), np.int32)
    ids[0, :2], ids[1, :1], ids[2, :6] = [1, 2], [2], [1, 0, 2, 2, 1, 0]
    return tf.constant(ids), tf.constant([2, 1, 6, 0])


def rows_of(decoded: tuple[tf.Tensor, tf.Tensor]) -> list[tuple[int, ...]]:
    ids, lengths = decoded
    pairs = zip(ids.numpy(), lengths.numpy(), strict=True)
    return [tuple(row[:count].tolist()) for row, count in pairs]


def beam_by_hand(prompt: tuple[int, ...], *, steps: int, beams: int, eos_id: int | None) -> tuple[int, ...]:
    held = [(0.0, prompt)]
    for _ in range(steps):
        grown = []
        for total, sequence in held:
            if len(sequence) == LENGTH or (len(sequence) > len(prompt) and sequence[-1] == eos_id):
                grown.append((total, sequence))
                continue
            chances = chances_after(sequence)
            grown += [(total + chances[token], (*sequence, token)) for token in range(VOCAB)]
        held = sorted(grown, reverse=True)[:beams]
    return max(held, key=lambda beam: beam[0] / ((5 + len(beam[1]) - len(prompt)) / 6) ** 0.6)[1]


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 2, 3, VOCAB**3])
@pytest.mark.parametrize("eos_id", [EOS, None])
def test_the_likeliest_of_each_step_are_kept_and_the_best_is_given(beams: int, eos_id: int | None) -> None:
    arguments = (next_logits, *prompts())
    decoded = tf.function(decoding.beam_search)(*arguments, steps=4, beams=beams, eos_id=eos_id)
    for row, prompt in enumerate([(1, 2), (2,), (1, 0, 2, 2, 1, 0)]):
        assert rows_of(decoded)[row] == beam_by_hand(prompt, steps=4, beams=beams, eos_id=eos_id)


def test_what_lies_behind_a_row_is_padding_still_and_an_empty_row_stays_empty() -> None:
    decoded = decoding.beam_search(next_logits, *prompts(), steps=2, beams=1, eos_id=EOS)
    inside = np.arange(LENGTH) < decoded[1].numpy()[:, np.newaxis]
    assert not decoded[0].numpy()[~inside].any()
    assert rows_of(decoded)[3] == ()


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 2])
def test_a_search_compiles_for_a_device(beams: int) -> None:
    table = tf.random.stateless_normal([VOCAB, VOCAB], seed=[1, 2])

    def bigrams(ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        return tf.gather(table, tf.gather(ids, tf.maximum(lengths - 1, 0), batch_dims=1))

    arguments = (bigrams, *prompts())
    searches = (tf.function(decoding.beam_search, jit_compile=jit) for jit in (False, True))
    decoded = [search(*arguments, steps=3, beams=beams, eos_id=EOS) for search in searches]
    np.testing.assert_array_equal(decoded[0][0], decoded[1][0])
    assert decoded[0][0].shape == (4, LENGTH)
