"""Objectives without random choices: stored labels, stored targets, and the next token."""

import functools
from typing import Any, Literal, get_args

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline import host_plan
from tfrecord_io.manifest import LabelRange, Manifest
from tfrecord_io.objectives import base
from tfrecord_io.schema import UNLABELLED, Role

DECODER_INPUTS, DECODER_MASK = "decoder_input_ids", "decoder_attention_mask"

StartToken = Literal["pad", "bos", "eos", "cls", "sep"]


def classification(*, num_labels: int | None = None) -> base.Objective:
    """Predict a row's label. Labels are int32 [B], or float32 [B] for regression; weights are float32 [B].

    A row without a label (class id -1) has weight 0, and label 0, which every loss accepts. If rows have several
    classes, labels are int32 [B, C], for a sigmoid cross-entropy.

    Args:
        num_labels: number of classes, if labels are integers without names; by default the largest label plus 1.

    Raises:
        ReaderError: from `bind`, if the labels do not fit.
    """
    return base.Unbound(functools.partial(_classification, num_labels=num_labels))


def token_classification() -> base.Objective:
    """Predict the classes of tokens, such as parts of speech. Labels are int32 [B, L], weights float32 [B, L].

    Weights are 0 on tokens without a label. The first token of a word has its label (BERT, arXiv:1810.04805, 5.3).
    """
    return base.Unbound(_token_classification)


def span_answers() -> base.Objective:
    """Predict the first and last token of an answer (BERT, arXiv:1810.04805, section 4.2).

    Labels are a dict of `start_positions` and `end_positions`, int32 [B], both 0 in a row without an answer (section
    4.3). The Keras model needs outputs of these names, logits [B, L]. Weights are float32 [B].
    """
    return base.Unbound(_span_answers)


def _classification(manifest: Manifest, tokens: base.TokenFeatures, *, num_labels: int | None) -> base.Apply:
    (name,) = base.required(
        manifest, "label", objective="classification", remedy="build the dataset with --label-column"
    )
    _require_class_ids(manifest, num_labels)
    has_classes = manifest.label_names is not None and not manifest.multi_hot_size
    return functools.partial(_label, tokens=tokens, name=name, has_classes=has_classes)


def _require_class_ids(manifest: Manifest, num_labels: int | None) -> None:
    ranges = [split.labels for split in manifest.splits.values() if split.labels is not None]
    if not ranges:  # the labels have names or are floats
        return
    labels = functools.reduce(LabelRange.joined, ranges)
    if num_labels is not None:
        fits = labels.smallest >= 0 and labels.largest < num_labels
    else:
        fits = labels.smallest == 0 and labels.distinct in (None, labels.largest + 1)
    if not fits:
        raise ReaderError(
            f"dataset {manifest.name!r}: labels have {labels.text}, classification expects 0 to "
            f"{(num_labels or labels.distinct or labels.largest + 1) - 1}",
            remedy="build the dataset with --label-classes, which makes each value a class"
            + f", or give num_labels={labels.largest + 1}" * (labels.smallest >= 0),
        )


def _label(
    features: base.Features, ops: Any, *, tokens: base.TokenFeatures, name: str, has_classes: bool
) -> base.Result:
    labels, weights_B = features[name], ops.floats(features[host_plan.WEIGHT])
    if has_classes:
        unlabelled_B = labels == UNLABELLED
        labels, weights_B = ops.where(unlabelled_B, 0, labels), ops.where(unlabelled_B, 0.0, weights_B)
    return tokens.select(features), labels, weights_B


def _token_classification(manifest: Manifest, tokens: base.TokenFeatures) -> base.Apply:
    roles: tuple[Role, ...] = ("token_labels", "token_label_mask")
    remedy = "build the dataset with --layout tokens"
    labels, mask = base.required(manifest, *roles, objective="token_classification", remedy=remedy)
    return functools.partial(_token_labels, tokens=tokens, labels=labels, mask=mask)


def _token_labels(
    features: base.Features, ops: Any, *, tokens: base.TokenFeatures, labels: str, mask: str
) -> base.Result:
    return tokens.select(features), features[labels], base.token_weights(features, features[mask], ops)


def _span_answers(manifest: Manifest, tokens: base.TokenFeatures) -> base.Apply:
    roles: tuple[Role, ...] = ("start_position", "end_position")
    start, end = base.required(manifest, *roles, objective="span_answers", remedy="build the dataset with --layout qa")
    return functools.partial(_answer, tokens=tokens, start=start, end=end)


def _answer(features: base.Features, ops: Any, *, tokens: base.TokenFeatures, start: str, end: str) -> base.Result:
    labels = {start: features[start], end: features[end]}
    return tokens.select(features), labels, ops.floats(features[host_plan.WEIGHT])


def causal_lm() -> base.Objective:
    """Predict the next token. Labels are [B, L], weights float32 [B, L].

    The weight is 0 at the end of a row, and if the next token is padding, in another segment, or has `loss_mask` 0. For
    packed rows, a model also needs `segment_attention_mask`, and must use the feature `positions`.
    """
    return base.Unbound(_causal_lm)


def _causal_lm(manifest: Manifest, tokens: base.TokenFeatures) -> base.Apply:
    return functools.partial(next_token, tokens=tokens, pad_id=manifest.tokenizer.pad_id)


def next_token(features: base.Features, ops: Any, *, tokens: base.TokenFeatures, pad_id: int) -> base.Result:
    """Return (inputs, labels, weights) of `causal_lm` for the token features `tokens`."""
    mask_BL = features[tokens.mask]
    # The current position must be a token, too: it may be padding on the left.
    counts_BL = (mask_BL > 0) & (base.shifted_left(mask_BL, 0, ops) > 0)
    if tokens.segments is not None:
        segment_BL = features[tokens.segments]
        counts_BL &= segment_BL == base.shifted_left(segment_BL, 0, ops)
    if tokens.learned:
        counts_BL &= base.shifted_left(features[tokens.learned], 0, ops) > 0
    labels_BL = base.shifted_left(features[tokens.ids], pad_id, ops)
    return tokens.select(features), labels_BL, base.token_weights(features, counts_BL, ops)


def seq2seq(*, decoder_start_id: StartToken | int = "pad") -> base.Objective:
    """Predict the target text. Labels are int32 [B, T], weights float32 [B, T], 1 on tokens of the target.

    Inputs include `decoder_input_ids` and `decoder_attention_mask`, int32 [B, T]: a start token, then the target.

    Args:
        decoder_start_id: the start token, as an id or by name: "pad" as in T5 (arXiv:1910.10683), "eos" as in BART
            (arXiv:1910.13461), "cls" as in models that start from BERT's weights.

    Raises:
        ReaderError: from `bind`, if the target or the start token is missing, or a feature has a decoder input's name.
    """
    return base.Unbound(functools.partial(_seq2seq, decoder_start_id=decoder_start_id))


def decoder_features(target_ids_BT: Any, target_mask_BT: Any, *, start: int, ops: Any) -> dict[str, Any]:
    """Return the decoder's inputs by name, [B, T]: padding, if it is on the left, token `start`, and the target."""
    before_BT, shifted_BT = base.shifted(target_mask_BT, 0, ops), base.shifted(target_ids_BT, 0, ops)
    first_BT = (target_mask_BT > before_BT) | (ops.arange(0, target_ids_BT.shape[1]) == 0)
    return {
        DECODER_INPUTS: ops.where(first_BT, start, shifted_BT),
        DECODER_MASK: ops.maximum(target_mask_BT, before_BT),
    }


def _seq2seq(manifest: Manifest, tokens: base.TokenFeatures, *, decoder_start_id: StartToken | int) -> base.Apply:
    roles: tuple[Role, ...] = ("target_ids", "target_mask")
    target, mask = base.required(
        manifest, *roles, objective="seq2seq", remedy="build the dataset with --layout seq2seq"
    )
    base.check_free(manifest, DECODER_INPUTS, DECODER_MASK, objective="seq2seq")
    start = start_id(manifest, decoder_start_id)
    return functools.partial(_target, tokens=tokens, target=target, mask=mask, start=start)


def _target(
    features: base.Features, ops: Any, *, tokens: base.TokenFeatures, target: str, mask: str, start: int
) -> base.Result:
    labels_BT, mask_BT = features[target], features[mask]
    inputs = {**tokens.select(features), **decoder_features(labels_BT, mask_BT, start=start, ops=ops)}
    return inputs, labels_BT, base.token_weights(features, mask_BT, ops)


def start_id(manifest: Manifest, token: StartToken | int) -> int:
    """Return the id of a decoder's start token, given as an id or by name. Raises: ReaderError if there is none."""
    facts = manifest.tokenizer
    if not isinstance(token, str):
        if isinstance(token, bool) or not 0 <= token < facts.vocab_size:
            last = facts.vocab_size - 1
            raise ReaderError(f"decoder_start_id is {token}, expected an id from 0 to {last}")
        return token
    if token not in get_args(StartToken):
        raise ReaderError(f"decoder_start_id is {token!r}, expected an id, or one of {list(get_args(StartToken))}")
    special: int | None = getattr(facts, f"{token}_id")
    if special is None:
        raise ReaderError(
            f"dataset {manifest.name!r}: tokenizer {facts.name!r} has no {token.upper()} token to start the decoder",
            remedy="give the decoder_start_id of the model's configuration",
        )
    return special


def segment_attention_mask(segment_ids_BL: Any, *, causal: bool) -> Any:
    """Return the attention mask of packed rows, bool [B, L, L]: [row, query token, key token].

    The mask hides other segments and, with `causal`, later tokens (arXiv:2107.02027).

        segment_ids  1 1 2 0      causal=True   1 0 0 0
                                                1 1 0 0
                                                0 0 1 0
                                                0 0 0 0

    If the query is padding, all values are False, so mask the scores with a large negative number instead of infinity.

    Args:
        segment_ids_BL: integers [B, L] of TensorFlow, JAX or NumPy: 1, 2, ... on the tokens of each segment, 0 on
            padding.
    """
    seen_BLL = segment_ids_BL[:, :, None] == segment_ids_BL[:, None, :]
    mask_BLL = seen_BLL & (segment_ids_BL > 0)[:, None, :]
    if not causal:
        return mask_BLL
    place_L = np.arange(segment_ids_BL.shape[1])
    return mask_BLL & (place_L[:, None] >= place_L)
