"""Objectives without TensorFlow: from rows of `random_access` to (inputs, labels, weights), as NumPy arrays.

    rows = random_access.open(root)["train"]
    objective = numpy_objectives.masked_lm().bind(rows.manifest)
    inputs, labels, weights = objective(rows.batch(indices), rng=np.random.default_rng([seed, step]))

    grain    grain.MapDataset.range(len(rows)).shuffle(seed=0).batch(64).map(rows.batch).random_map(objective.with_rng)
    PyTorch  DataLoader(rows, collate_fn=...)      see the documents

Arguments, inputs, labels and weights are the same as in `objectives`, which has the examples. Deterministic values are
equal; random ones have the same distribution, and are drawn from `rng`. Arrays keep the dtype of the features that they
are made from (int64 as stored; give int32 for int32), weights are float32.

Features may be a batch, [B, ...], or one row without B, whose result is without B too. If there is an `example_weight`
[B], weights include it.
"""

from tfrecord_io.objectives import (
    DECODER_INPUTS,
    DECODER_MASK,
    BoundObjective,
    Objective,
    causal_lm,
    masked_lm,
    segment_attention_mask,
    seq2seq,
    span_corruption,
)

__all__ = [
    "DECODER_INPUTS",
    "DECODER_MASK",
    "BoundObjective",
    "Objective",
    "causal_lm",
    "masked_lm",
    "segment_attention_mask",
    "seq2seq",
    "span_corruption",
]
