"""What a trainer would get from the collators of `transformers` is what our records hold, feature by feature."""

import numpy as np
import pytest
import tensorflow as tf
from transformers import DataCollatorWithFlattening

from tests import building
from tests.building import REVIEWS, built, read_rows
from tfrecord_io import objectives, reader

NONE = -100  # of these collators: no label here


@pytest.mark.slow
def test_packed_rows_are_those_of_the_flattening_collator() -> None:
    """It puts documents one after the other; ours does so in rows of one length, and pads."""
    root = built(REVIEWS, max_length=32, no_shuffle=True, split="train", layout="pack")
    rows = read_rows(root, "train")
    batch = next(iter(reader.open(root).dataset("train", global_batch_size=16, training=False)))
    inputs, labels, weights = objectives.causal_lm().bind(building.read_manifest(root))(
        batch, seed=tf.constant([0, 0], tf.int64)
    )
    for index in range(16):
        ids, segments = rows["input_ids"][index], rows["segment_ids"][index]
        documents = [ids[segments == segment].tolist() for segment in range(1, segments.max() + 1)]
        expected = DataCollatorWithFlattening(return_tensors="np")([{"input_ids": each} for each in documents])
        used = int((segments > 0).sum())
        np.testing.assert_array_equal(ids[:used], expected["input_ids"][0])
        np.testing.assert_array_equal(rows["positions"][index][:used], expected["position_ids"][0])
        # A label there is the token itself; here it is the next one, and none goes from a document to the next.
        learned = np.where(weights[index].numpy() == 1, labels[index].numpy(), NONE)
        np.testing.assert_array_equal(learned[: used - 1], expected["labels"][0][1:])
        assert (learned[used - 1 :] == NONE).all()
    assert set(inputs) >= {"input_ids", "segment_ids", "positions"}
