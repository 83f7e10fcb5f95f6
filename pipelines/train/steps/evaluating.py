"""A pass over an evaluation split: of one dataset, or of each one of a mixture and then of all together."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.train import datasets
from pipelines.train.engines import Engine, Learner
from pipelines.train.metrics.evaluation import Evaluated, together
from pipelines.train.progress import Progress
from pipelines.train.steps.feeds import Feeds
from pipelines.train.tasks import BoundTask
from tfrecord_io.input_pipeline.input_functions import InputFunctions

__all__ = ["Evaluator"]


class Evaluator:
    """Evaluates the present weights, and reports."""

    def __init__(
        self,
        engine: Engine,
        learner: Learner,
        *,
        feeds: Feeds,
        task: BoundTask,
        progress: Progress,
    ) -> None:
        self._engine = engine
        self._learner = learner
        self._feeds = feeds
        self._task = task
        self._progress = progress

    def evaluate(self, data: InputFunctions, split: str) -> Mapping[str, float]:
        """Metrics by name: of a mixture, those of all its datasets together."""
        parts = datasets.evaluated(data, split)
        found = {
            name: self._engine.evaluate(self._learner, self._feeds.evaluation(each, split))
            for name, each in parts.items()
        }
        metrics: Mapping[str, float] = {}
        for name, each in found.items():
            metrics = self._report(name, each, examples=parts[name].num_examples(split))
        if len(found) > 1:
            total = sum(each.num_examples(split) for each in parts.values())
            metrics = self._report(split, together(list(found.values())), examples=total)
        return metrics

    def _report(self, name: str, found: Evaluated, *, examples: int) -> Mapping[str, float]:
        if not found.sums["weight"]:
            self._progress.note(f"{name}: none of {examples:,} examples has a label, so there is nothing to measure")
            return {}
        metrics = self._task.metrics(found)
        self._progress.evaluation(self._learner.step, split=name, metrics=metrics, examples=examples)
        return metrics
