"""Training objectives: turn a batch of features into (inputs, labels, weights), as tensors or arrays.

`bind` checks an objective against a manifest and returns a function of a batch. Shapes are static. Weights are Keras'
sample weights, 0 on fill rows. On NumPy arrays of `random_access`, a batch or a row, objectives need no TensorFlow:

    inputs, labels, weights = masked_lm().bind(rows.manifest)(rows.batch(indices), rng=np.random.default_rng([0, step]))

    a batch of 1 row, L = 6         [CLS] a  b  c  [SEP] [PAD]

    classification   inputs         the row                           labels [B], weights [B]
    masked_lm        inputs         [CLS] a [MASK] c [SEP] [PAD]
                     labels         the row
                     weights          0   0  1  0    0     0          1 on tokens to predict
    gathered_…       inputs         as above, and masked_positions [2 4]
                     labels         [b [SEP]]                         the original tokens there
                     weights        [1 0]
    causal_lm        inputs         the row
                     labels           a   b  c [SEP] [PAD] [PAD]      the next token
                     weights          1   1  1  1    0     0          1 if this and the next are tokens
    token_class…     labels           0   4  0  7    0     0          the class of each token
                     weights          0   1  1  1    0     0          1 on tokens with a class
    span_answers     labels         {start_positions: 2, end_positions: 3}
    seq2seq          inputs         the row, and decoder inputs: a start token, then the target
                     labels         the target
    span_corruption  like seq2seq; the target is spans of the row, see `spans`
    preference       causal_lm on both answers to a prompt, see `preference`

Inputs are the dataset's features with roles token_ids, attention_mask, token_type_ids, segment_ids and positions.
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
