"""`objectives` without TensorFlow: from rows of `random_access` to (inputs, labels, weights), as NumPy arrays.

    rows = random_access.open(root)["train"]
    objective = numpy_objectives.masked_lm().bind(rows.manifest)
    inputs, labels, weights = objective(rows.batch(indices), rng=np.random.default_rng([seed, step]))

    grain    grain.MapDataset.range(len(rows)).shuffle(seed=0).batch(64).map(rows.batch).random_map(objective.with_rng)
    PyTorch  DataLoader(rows, collate_fn=...)      see the documents

They are those of `objectives`, where the examples are: the same arguments, inputs, labels and weights. What is
deterministic is equal value by value; what is left to chance has the same distribution, with draws of `rng`. Arrays
keep the dtype of the features that they are made from (int64 as stored; give int32 for int32), weights are float32.

Features may be of a batch, [B, ...], or of one row, without B: then so is the result. `example_weight` [B] is taken
into the weights where it is there.
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
