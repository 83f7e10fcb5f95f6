"""Training objectives: turn a batch of features into (inputs, labels, weights), as tensors or arrays.

`bind` checks an objective against a manifest and returns a deterministic function of a batch: random choices come from
its stateless seed, or from a generator for NumPy arrays. Shapes are static. The weights are Keras' sample weights, 0 in
rows that only fill up a batch (`example_weight` 0).

On the NumPy arrays of `random_access`, a batch or one row without B, objectives need no TensorFlow:

    inputs, labels, weights = masked_lm().bind(rows.manifest)(rows.batch(indices), rng=np.random.default_rng([0, step]))

Arrays keep the dtype of their features; weights are float32.

    a batch of 1 row, L = 6         [CLS] a  b  c  [SEP] [PAD]        (special tokens in brackets)

    classification   inputs         [CLS] a  b  c  [SEP] [PAD]        labels [B], weights [B]
    masked_lm        inputs         [CLS] a [MASK] c [SEP] [PAD]
                     labels         [CLS] a  b  c  [SEP] [PAD]        the original tokens
                     weights          0   0  1  0    0     0          1 on tokens to predict
    gathered_…       inputs         as above, and masked_positions [2 4]
                     labels         [b [SEP]]                         the original tokens there
                     weights        [1 0]
    causal_lm        inputs         [CLS] a  b  c  [SEP] [PAD]
                     labels           a   b  c [SEP] [PAD] [PAD]      the next token
                     weights          1   1  1  1    0     0          1 where both are tokens
    token_class…     labels           0   4  0  7    0     0          the class of each token
                     weights          0   1  1  1    0     0          1 on tokens with a class
    span_answers     labels         {start_positions: 2, end_positions: 3}
    seq2seq          inputs         the row, and decoder inputs: the target shifted right, after a start token
                     labels         the target
    span_corruption  the same, from one row: spans of it are the target, see `spans`
    preference       the inputs, labels and weights of causal_lm for both answers to a prompt, see `preference`

The inputs are the features with roles token_ids, attention_mask, token_type_ids, segment_ids and positions that the
dataset has, under their own names.
"""

from tfrecord_io.objectives.base import BoundObjective, Objective
from tfrecord_io.objectives.keras_arguments import compile_args
from tfrecord_io.objectives.labelled import (
    DECODER_INPUTS,
    DECODER_MASK,
    causal_lm,
    classification,
    segment_attention_mask,
    seq2seq,
    span_answers,
    token_classification,
)
from tfrecord_io.objectives.masked import MASKED_POSITIONS, gathered_masked_lm, masked_lm
from tfrecord_io.objectives.preference import preference
from tfrecord_io.objectives.spans import span_corruption

__all__ = [
    "DECODER_INPUTS",
    "DECODER_MASK",
    "MASKED_POSITIONS",
    "BoundObjective",
    "Objective",
    "causal_lm",
    "classification",
    "compile_args",
    "gathered_masked_lm",
    "masked_lm",
    "preference",
    "segment_attention_mask",
    "seq2seq",
    "span_answers",
    "span_corruption",
    "token_classification",
]
