"""Tasks on pairs of answers: DPO (arXiv:2305.18290) and reward models (arXiv:2203.02155), with the losses of TRL 1.16.

    score     for dpo: the answer's log-probability by the model, minus its log-probability by the reference model
              for reward: the model's output at the answer's last token
    loss      -log sigmoid(beta (chosen - rejected) - margin)       for reward, beta is 1; the margin is optional
    reward    beta score                                            in metrics and predictions

With label smoothing E, the loss is (1 - E) times the above plus E times the loss of the swapped pair. The chosen and
rejected answers of pair i are rows 2i and 2i + 1 of one call of the model, so that both stay on one device.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from keras import ops

from pipelines.train.metrics import Evaluated
from pipelines.train.predict.predictors import Arrays, Call, Predictor
from pipelines.train.tasks.kinds import Batch, BoundTask, TaskKind, loss_sums, weighted_sum
from tfrecord_io import objectives
from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives.base import Apply, Features, Result, TokenFeatures, Unbound
from tfrecord_io.schema import ANSWERS

_TOKENS = TokenFeatures(ids="token_ids", mask="padding_mask", segments=None, inputs=("token_ids", "padding_mask"))
MARGIN = "margin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairTask(BoundTask):
    """Training on pairs. `aligned` returns the scores of both answers, float32 [B, 2]."""

    beta: float = 1.0

    metric_names = ("loss", "accuracy", "chosen_reward", "rejected_reward", "margin")

    def tokens(self, _: Manifest) -> TokenFeatures:
        return _TOKENS

    def features(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return rows_of_both(inputs)

    def aligned(self, logits: Any, batch: Batch, *, taken: Mapping[str, Any]) -> Any:
        del taken
        return scores(logits, *batch[1:])

    def weights(self, labels: Any, weights: Any) -> Any:
        del labels  # the weights are 0 on fill rows
        return ops.max(ops.concatenate([weights[side] for side in ANSWERS], axis=1), axis=1)

    def losses(self, logits: Any, labels: Any, *, smoothing: bool) -> Any:
        gain_B = ops.subtract(self.beta * (logits[:, 0] - logits[:, 1]), labels.get(MARGIN, 0.0))
        share = self.label_smoothing if smoothing else 0.0
        return (1.0 - share) * ops.softplus(-gain_B) + share * ops.softplus(gain_B)

    def sums(self, logits: Any, labels: Any, weights: Any) -> dict[str, Any]:
        rewards_B2 = self.beta * logits
        return {
            **loss_sums(self.losses(logits, labels, smoothing=False), weights),
            "accuracy": weighted_sum(ops.cast(logits[:, 0] > logits[:, 1], "float32"), weights),
            **{f"{side}_reward": weighted_sum(rewards_B2[:, at], weights) for at, side in enumerate(ANSWERS)},
        }

    def metrics(self, evaluated: Evaluated) -> dict[str, float]:
        means = {name: evaluated.mean(name) for name in self.metric_names[:-1]}
        return {**means, "margin": means["chosen_reward"] - means["rejected_reward"]}


def rows_of_both(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return features [2B, L] with the rows of chosen and rejected answers, [B, L] each, in turn."""
    pairs = {name: ops.stack([inputs[f"{side}_{name}"] for side in ANSWERS], axis=1) for name in _TOKENS.inputs}
    return {name: ops.reshape(values, (-1, values.shape[-1])) for name, values in pairs.items()}


def scores(logits: Any, labels: Mapping[str, Any], weights: Mapping[str, Any]) -> Any:
    """Return the scores of B pairs of answers, float32 [B, 2]. `logits`: [2B, L, V] for dpo, [2B, 1] for reward."""
    logits = ops.cast(logits, "float32")
    if len(logits.shape) == 2:
        return ops.reshape(logits, (-1, 2))
    both = [ops.stack([values[side] for side in ANSWERS], axis=1) for values in (labels, weights)]
    labels_BL, weights_BL = (ops.reshape(values, logits.shape[:2]) for values in both)
    losses_BL = ops.sparse_categorical_crossentropy(labels_BL, logits, from_logits=True)
    return ops.reshape(-ops.sum(ops.where(weights_BL > 0, ops.multiply(losses_BL, weights_BL), 0.0), axis=1), (-1, 2))


def _with_margin(manifest: Manifest, tokens: TokenFeatures) -> Apply:
    del tokens
    pairs = objectives.preference().bind(manifest)
    if MARGIN not in manifest.schema.names:
        return pairs.apply
    if (feature := manifest.schema[MARGIN]).dtype not in ("float32", "int64") or feature.shape:
        raise ReaderError(
            f"dataset {manifest.name!r}: feature {MARGIN!r} is {feature.dtype} {list(feature.shape)}, expected one "
            "number per pair",
            remedy="build the dataset without this column, or with a column of numbers",
        )

    def apply(features: Features, operations: Any) -> Result:
        inputs, labels, weights = pairs.apply(features, operations)
        return inputs, {**labels, MARGIN: operations.floats(features[MARGIN])}, weights

    return apply


class PairPredictor(Predictor):
    """For dpo and reward: predicts the rewards of the chosen and rejected answers."""

    def device_features(self, features: Arrays) -> dict[str, np.ndarray]:
        inputs, labels, weights = self.applied(objectives.preference(), features)
        flat = {f"labels/{side}": values for side, values in labels.items()}
        flat |= {f"weights/{side}": values for side, values in weights.items()}
        return {**inputs, **flat}

    def outputs(self, call: Call, features: Mapping[str, Any]) -> dict[str, Any]:
        labels, weights = (
            {str(side): features[f"{kind}/{side}"] for side in ANSWERS} for kind in ("labels", "weights")
        )
        logits = call(rows_of_both(features))
        return {"scores": scores(logits, labels, weights)}

    def columns(self, outputs: Arrays, features: Arrays) -> dict[str, pa.Array]:
        rewards_N2 = self.trained.beta * outputs["scores"]
        return {f"{side}_reward": pa.array(rewards_N2[:, at], pa.float32()) for at, side in enumerate(ANSWERS)}


DPO = TaskKind(
    objective=lambda _: objectives.preference(),
    bound=PairTask,
    settings=lambda config: {"beta": config.beta},
    predictor=PairPredictor,
    head="vocabulary",
    backbone="decoder",
    side="chosen",
    reference=True,
    auto_class="CausalLM",
    hub_task="text-generation",
)
REWARD = TaskKind(
    objective=lambda _: Unbound(_with_margin, side="chosen"),
    bound=PairTask,
    predictor=PairPredictor,
    head="rows",
    backbone="decoder",
    side="chosen",
    num_outputs=1,
    auto_class="SequenceClassification",
    hub_task="text-classification",
    hub_head="score",
)
