"""Inputs under other names: the same values, and refusals of names that cannot be."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import input_functions

FEATURES: dict[str, object] = {
    "input_ids": [5, 6],
    "attention_mask": [1, 0],
    "token_type_ids": [0, 0],
    "example_weight": 1.0,
}


def elements(columns: dict[str, object], *more: object) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((columns, *more) if more else columns)


def test_keras_hub_gets_its_names_and_nothing_else() -> None:
    ((inputs, label),) = input_functions.renamed(elements({**FEATURES, "masked_positions": [1]}, 3), "keras-hub")
    assert set(inputs) == {"token_ids", "padding_mask", "segment_ids", "mask_positions"}
    np.testing.assert_array_equal(inputs["token_ids"], [5, 6])
    np.testing.assert_array_equal(inputs["mask_positions"], [1])
    assert int(label) == 3


def test_an_encoder_and_a_decoder_are_told_apart() -> None:
    given: dict[str, object] = {
        "input_ids": [5],
        "attention_mask": [1],
        "decoder_input_ids": [0],
        "decoder_attention_mask": [1],
    }
    ((inputs, _),) = input_functions.renamed(elements(given, 3), "keras-hub")
    assert {name: int(value[0]) for name, value in inputs.items()} == {
        "encoder_token_ids": 5,
        "encoder_padding_mask": 1,
        "decoder_token_ids": 0,
        "decoder_padding_mask": 1,
    }


def test_a_mapping_leaves_the_other_names() -> None:
    (found,) = input_functions.renamed(elements(FEATURES), {"attention_mask": "input_mask"})
    assert set(found) == {"input_ids", "input_mask", "token_type_ids", "example_weight"}


def test_without_names_nothing_is_added_to_the_graph() -> None:
    dataset = elements(FEATURES)
    assert input_functions.renamed(dataset, None) is dataset


@pytest.mark.parametrize(
    ("columns", "names", "cause"),
    [
        (FEATURES, {"ids": "x"}, "no input 'ids'"),
        (FEATURES, {"attention_mask": "input_ids"}, "two inputs would have one name"),
        ({**FEATURES, "segment_ids": [1, 1]}, "keras-hub", "packed rows"),
    ],
)
def test_names_that_cannot_be_are_refused(columns: dict[str, object], names: input_functions.Names, cause: str) -> None:
    with pytest.raises(ReaderError, match=cause):
        input_functions.renamed(elements(columns), names)
