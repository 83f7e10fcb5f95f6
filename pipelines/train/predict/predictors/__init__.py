"""What each task's model predicts, as columns of the output; one file for each. `base` says what a predictor is.

A new task is a file with its `Predictor`, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelines.train.config import Task
from pipelines.train.model_files import TrainedModel
from pipelines.train.predict.config import PredictConfig
from pipelines.train.predict.predictors.base import Predictor
from pipelines.train.predict.predictors.causal import CausalPredictor
from pipelines.train.predict.predictors.classify import ClassPredictor
from pipelines.train.predict.predictors.seq2seq import TargetPredictor
from pipelines.train.predict.predictors.span import SpanPredictor
from pipelines.train.predict.predictors.tokens import TokenPredictor
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Manifest

__all__ = ["Predictor", "open_predictor"]

_PREDICTORS: dict[Task, Callable[..., Predictor]] = {
    "classify": ClassPredictor,
    "tokens": TokenPredictor,
    "clm": CausalPredictor,
    "span": SpanPredictor,
    "seq2seq": TargetPredictor,
}


def open_predictor(
    config: PredictConfig, trained: TrainedModel, manifest: Manifest, *, load_tokenizer: Callable[[], Any]
) -> Predictor:
    """The predictor for a model and the manifest of the data. Raises: ConfigError if its task has none."""
    if trained.task == "mlm":
        raise ConfigError(
            f"--model {config.model_dir}: trained for mlm, which predicts masked words and nothing for a row",
            remedy='give --fill-mask "a text with a [MASK]" instead of --data',
        )
    if config.generate and trained.task != "clm":
        raise ConfigError(f"--generate with a model of task {trained.task}, expected one of clm")
    if config.beams > 1 and trained.task != "seq2seq" and not config.generate:
        raise ConfigError(f"--beams {config.beams} with a model of task {trained.task}, expected --generate N with it")
    return _PREDICTORS[trained.task](config=config, trained=trained, manifest=manifest, load_tokenizer=load_tokenizer)
