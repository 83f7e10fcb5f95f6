"""Table of tasks. A new task also needs a name in `config.Task`, and a class with its loss and metrics."""

from collections.abc import Mapping

from pipelines.train.config import Task, TrainConfig
from pipelines.train.predict import predictors
from pipelines.train.tasks import pairs
from pipelines.train.tasks.kinds import BoundTask, SpanTask, TaskKind, answers
from tfrecord_io import objectives
from tfrecord_io.objectives.base import Unbound
from tfrecord_io.objectives.labelled import StartToken


def decoder_start(config: TrainConfig) -> StartToken:
    """Return the start token of targets, unknown to datasets and tokenizers: EOS for BART, padding for T5."""
    if config.decoder_start != "auto":
        return config.decoder_start
    return "eos" if "bart" in config.model.lower() else "pad"


TASKS: Mapping[Task, TaskKind] = {
    "classify": TaskKind(
        objective=lambda config: objectives.classification(num_labels=config.num_labels),
        bound=BoundTask,
        predictor=predictors.ClassPredictor,
        head="rows",
        labels="label",
        auto_class="SequenceClassification",
        hub_task="text-classification",
        hub_head="classifier",
    ),
    "tokens": TaskKind(
        objective=lambda _: objectives.token_classification(),
        bound=BoundTask,
        predictor=predictors.TokenPredictor,
        head="tokens",
        labels="token_labels",
        auto_class="TokenClassification",
        hub_task="token-classification",
        hub_head="classifier",
    ),
    "span": TaskKind(
        objective=lambda _: Unbound(answers),
        bound=SpanTask,
        predictor=predictors.SpanPredictor,
        head="tokens",
        num_outputs=2,
        auto_class="QuestionAnswering",
        hub_task="question-answering",
        hub_head="qa_outputs",
    ),
    "mlm": TaskKind(
        objective=lambda config: objectives.gathered_masked_lm(config.mask_probability),
        bound=BoundTask,
        predictor=None,
        head="masked",
        backbone="encoder",
        auto_class="MaskedLM",
        hub_task="fill-mask",
    ),
    "clm": TaskKind(
        objective=lambda _: objectives.causal_lm(),
        bound=BoundTask,
        predictor=predictors.CausalPredictor,
        head="vocabulary",
        backbone="decoder",
        auto_class="CausalLM",
        hub_task="text-generation",
    ),
    "seq2seq": TaskKind(
        objective=lambda config: objectives.seq2seq(decoder_start_id=decoder_start(config)),
        bound=BoundTask,
        predictor=predictors.TargetPredictor,
        head="vocabulary",
        backbone="encoder-decoder",
    ),
    "dpo": pairs.DPO,
    "reward": pairs.REWARD,
}
