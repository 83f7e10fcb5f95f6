"""The evaluations of a training, which of them was the best, and whether it has been long ago.

    MODEL_DIR/evaluations.json     [{"step": 10, "metrics": {"loss": 0.61, "accuracy": 0.70}}, ...]

A training that goes on after step S forgets the evaluations after S, which will be made again; so the best one, and the
count of those since, are what an uninterrupted run would have.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import tensorflow as tf

from pipelines.train.checkpoints import write_json
from pipelines.train.metrics.evaluation import is_better
from tfrecord_io.errors import OutputError, PrepError
from tfrecord_io.format import json_fields

__all__ = ["Evaluation", "History"]

_FILE = "evaluations.json"
_MOST_BYTES = 1 << 26


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One pass over the evaluation split, after so many steps."""

    step: int
    metrics: Mapping[str, float]


class History:
    """The evaluations in a folder, local or gs://, judged by one metric. `writes`: whether this process keeps them."""

    def __init__(self, model_dir: str, *, metric: str, writes: bool = True) -> None:
        self._writes = writes
        self._folder = model_dir.rstrip("/")
        self._metric = metric
        self._evaluations: list[Evaluation] = []

    def open(self, start: int) -> None:
        """Read what an earlier run left, up to step `start`. Raises: OutputError if it cannot be read."""
        path = f"{self._folder}/{_FILE}"
        if not start or not tf.io.gfile.exists(path):
            return
        try:
            with tf.io.gfile.GFile(path) as file:
                if file.size() > _MOST_BYTES:
                    raise ValueError("too large")
                found = json_fields.load(file.read())
            for each in found:
                values = {name: math.nan if value is None else float(value) for name, value in each["metrics"].items()}
                if int(each["step"]) <= start:
                    self._evaluations.append(Evaluation(step=int(each["step"]), metrics=values))
        except (tf.errors.OpError, PrepError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise OutputError(
                f"{path}: cannot be read ({type(error).__name__}), expected the evaluations of this training",
                remedy="delete it: the best evaluation is then looked for among those to come",
            ) from error

    def add(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Note an evaluation, in the file too. Returns whether it is the best so far.

        Raises: OutputError if it cannot be written.
        """
        before = [each for each in self._evaluations if each.step != step]
        self._evaluations = [*before, Evaluation(step=step, metrics=dict(metrics))]
        if self._writes:
            numbers = [
                {name: value if math.isfinite(value) else None for name, value in each.metrics.items()}
                for each in self._evaluations
            ]
            pairs = zip(self._evaluations, numbers, strict=True)
            write_json(self._folder, _FILE, [{"step": each.step, "metrics": values} for each, values in pairs])
        best = self.best
        return best is not None and best.step == step

    @property
    def best(self) -> Evaluation | None:
        """The first of those that no other beats; None if none has the metric."""
        best: Evaluation | None = None
        for each in self._evaluations:
            than = None if best is None else best.metrics[self._metric]
            if is_better(self._metric, each.metrics.get(self._metric, math.nan), than):
                best = each
        return best

    @property
    def since_best(self) -> int:
        """Evaluations after the best one, or all if there is no best."""
        best = self.best
        return sum(best is None or each.step > best.step for each in self._evaluations)
