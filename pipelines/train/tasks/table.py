"""Table of tasks, and their binding to a dataset.

A new task also needs a name in `config.Task`, and a class with its loss and metrics.
"""

import contextlib
from collections.abc import Mapping
from typing import get_args

from pipelines.train.config import Task, TrainConfig
from pipelines.train.predict import predictors
from pipelines.train.tasks import pairs
from pipelines.train.tasks.kinds import BoundTask, NumberTask, SeveralClassesTask, SpanTask, TaskKind, answers
from tfrecord_io import objectives
from tfrecord_io.errors import ConfigError, ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import Objective
from tfrecord_io.objectives.base import Unbound
from tfrecord_io.objectives.labelled import StartToken
from tfrecord_io.schema import Role
from tfrecord_io.shown import some


def decoder_start(config: TrainConfig) -> StartToken:
    """Return the decoder's start token. For --decoder-start auto: EOS if --model contains "bart", otherwise padding."""
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


def bind(config: TrainConfig, manifest: Manifest) -> BoundTask:
    """Bind the task of --task to a dataset. Raises: ConfigError if dataset, task and options do not fit each other."""
    kind = TASKS[config.task]
    _check_decoder_start(config, manifest)
    objective = kind.objective(config)
    _require_fit(objective, config, manifest)
    regression, num_outputs = False, kind.num_outputs or manifest.tokenizer.vocab_size
    if kind.labels is not None:
        regression, num_outputs = _label_kind(config, manifest, role=kind.labels)
    several = kind.labels == "label" and manifest.multi_hot_size
    task = (NumberTask if regression else SeveralClassesTask if several else kind.bound)(
        name=config.task,
        kind=kind,
        num_outputs=num_outputs,
        label_smoothing=config.label_smoothing,
        objective=objective,
        **kind.settings(config),
    )
    if config.reference is not None and not kind.reference:
        raise ConfigError(f"--reference with --task {config.task}, expected --task dpo", remedy="leave --reference out")
    if config.label_smoothing and isinstance(task, (NumberTask, SpanTask)):
        raise ConfigError(
            f"--label-smoothing {config.label_smoothing} with --task {config.task}, expected labels that are classes",
            remedy="leave --label-smoothing out",
        )
    if config.best_metric is not None and config.best_metric not in task.metric_names:
        raise ConfigError(
            f"--best-metric {config.best_metric}, expected a metric of --task {config.task} on this dataset: "
            f"{' or '.join(task.metric_names)}",
            remedy="choose one of these metrics",
        )
    return task


def _check_decoder_start(config: TrainConfig, manifest: Manifest) -> None:
    start = decoder_start(config)
    if TASKS[config.task].backbone == "encoder-decoder" and getattr(manifest.tokenizer, f"{start}_id") is None:
        has = [name for name in get_args(StartToken) if getattr(manifest.tokenizer, f"{name}_id") is not None]
        raise ConfigError(
            f"--decoder-start {start}: tokenizer {manifest.tokenizer.name!r} of dataset {manifest.name!r} has no "
            f"{start} token",
            remedy=f"give --decoder-start {' or '.join(has)}",
        )


def _require_fit(objective: Objective, config: TrainConfig, manifest: Manifest) -> None:
    try:
        objective.bind(manifest)
    except ReaderError as error:
        fitting = []
        for task, kind in TASKS.items():
            with contextlib.suppress(ReaderError):
                kind.objective(config).bind(manifest)
                fitting.append(task)
        allowed = f"; this dataset supports --task {', '.join(fitting)}" if fitting else ""
        raise ConfigError(f"--task {config.task}: {error.cause}", remedy=error.remedy + allowed) from error


def _label_kind(config: TrainConfig, manifest: Manifest, *, role: Role) -> tuple[bool, int]:
    label, names = manifest.schema.with_role(role), manifest.label_names
    if label is not None and label.dtype == "float32":
        return True, 1
    known = manifest.multi_hot_size if role == "label" else 0
    known = known or len(names or ())
    if not known:
        if config.num_labels is None and label is not None:
            raise ConfigError(
                f"dataset {manifest.name!r}: labels have no names, so their number is unknown",
                remedy="give --num-labels N for labels from 0 to N - 1",
            )
        return False, config.num_labels or 1
    if config.num_labels not in (None, known):
        raise ConfigError(
            f"--num-labels {config.num_labels}, but dataset {manifest.name!r} has {some(known, 'label')}"
            f"{f': {list(names)}' if names else ''}",
            remedy="leave --num-labels out",
        )
    return False, known
