"""A whole training, put together: devices, data, task, model, then the loop with all that happens between its calls."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipelines.train import datasets, devices, loops, models
from pipelines.train import setup as jobs
from pipelines.train.adamw import AdamW
from pipelines.train.checkpoints import Checkpoints, save_model, usable
from pipelines.train.config import TrainConfig
from pipelines.train.errors import StoppedError, TrainingError
from pipelines.train.progress import Progress
from pipelines.train.setup import TrainingSetup
from pipelines.train.train_step import ReplicaStep
from tfrecord_io.errors import ConfigError
from tfrecord_io.input_pipeline.input_functions import InputFunctions
from tfrecord_io.reader import Data

__all__ = ["Trained", "make_replica_step", "train"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training left. `metrics` are those of the last evaluation, empty without evaluation split."""

    steps: int
    resumed_at: int
    metrics: Mapping[str, float]
    model_path: str


def train(config: TrainConfig, *, as_json: bool = False) -> Trained:
    """Trains until `config.steps`, going on where an earlier run with the same model folder stopped.

    Must be the first to use TensorFlow in a process, where a TPU or several CPU replicas are asked for.

    Raises: PrepError of the kind that says what is wrong; StoppedError after SIGTERM, with the state saved.
    """
    job = jobs.check(config)
    strategy = devices.connect(job.target, replicas=config.replicas, zone=config.zone, project=config.project)
    for line in devices.missed_tpu(job.target, strategy):  # at once: the model may take minutes to load
        print(line, file=sys.stderr, flush=True)
    with _stoppable() as stop:
        return _Run(job, strategy=strategy, stop=stop, as_json=as_json).go()


class _Run:
    """The parts of one training, and what happens after each call."""

    def __init__(
        self,
        job: TrainingSetup,
        *,
        strategy: tf.distribute.Strategy,
        stop: _Stop,
        as_json: bool,
    ) -> None:
        config = job.config
        config.require_equal_parts(strategy.num_replicas_in_sync)
        self._job = job
        self._config = config
        self._data = job.data
        self._strategy = strategy
        self._stop = stop
        self._replica_step = make_replica_step(job, strategy=strategy)
        self._checkpoints = Checkpoints(
            config.model_dir, self._replica_step, identity=job.identity, keep=config.keep_checkpoints
        )
        self._progress = _progress(config, self._data, as_json=as_json)
        self._saved_at = -1
        self._metrics: Mapping[str, float] = {}
        self._num_hosts = 1
        for line in (
            *job.warnings,
            f"replicas: {strategy.num_replicas_in_sync}, on {devices.place(job.target, strategy)}",
        ):
            self._progress.note(line)

    def go(self) -> Trained:
        config = self._config
        start = self._checkpoints.open()
        if start:
            self._progress.note(
                f"going on after step {start:,}"
                if start < config.steps
                else f"nothing left to train: {start:,} steps are taken, --steps is {config.steps:,}; evaluating only"
            )
            self._saved_at = start
        if (config.steps - start) % config.steps_per_call and config.loop == "keras":
            raise ConfigError(
                f"--steps-per-call {config.steps_per_call} with {config.steps - start} steps left, expected a divisor",
                remedy="choose one, or --loop custom, which can end with a shorter call",
            )
        loop = loops.fit if config.loop == "keras" else loops.custom
        if not self._stop.is_set():
            loop(
                self._replica_step,
                self._strategy,
                batches=self._batches(self._data, config.train_split, start_step=start),
                span=loops.TrainingSpan(
                    until=config.steps, steps_per_call=config.steps_per_call, after_call=self._after_call
                ),
            )
        if self._replica_step.step < config.steps:
            self._stopped()
        return self._finish(start)

    def _after_call(self, step: int, loss: float) -> bool:
        config = self._config
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss at step {step} is {loss}, expected a number",
                remedy="lower --learning-rate, lengthen --warmup, or look for labels outside the classes",
            )
        if step % config.log_every == 0 or step == config.steps:
            self._progress.training(step, loss=loss, learning_rate=self._replica_step.learning_rate)
        if self._stop.is_set():
            return False
        if config.eval_every and step % config.eval_every == 0 and step < config.steps:
            self._evaluate()
            self._progress.start_clock(step)
        if config.save_every and step % config.save_every == 0:
            self._save()
            self._progress.start_clock(step)
        if not self._progress.running or step % config.log_every == 0:
            self._progress.start_clock(step)  # the first call compiled, which is no training
        return True

    def _finish(self, start: int) -> Trained:
        self._save()
        self._evaluate()
        model_path, weights_path = save_model(self._replica_step.model, self._config.model_dir)
        self._progress.note(f"saved {model_path} and {weights_path}")
        self._progress.close()
        return Trained(
            steps=self._replica_step.step, resumed_at=start, metrics=dict(self._metrics), model_path=model_path
        )

    def _stopped(self) -> None:
        self._save()
        self._progress.close()
        error = StoppedError(
            f"stopped by a signal after step {self._replica_step.step:,} of {self._config.steps:,}, which is saved",
            remedy="run the same command again: it goes on with the next batch",
        )
        error.signal_number = self._stop.signal_number
        raise error

    def _save(self) -> None:
        if self._replica_step.step != self._saved_at:
            self._checkpoints.save()
            self._saved_at = self._replica_step.step

    def _evaluate(self) -> None:
        split = self._job.eval_split
        if split is None:
            return
        found = datasets.evaluated(self._data, split)
        sums = {name: self._sums(data, split) for name, data in found.items()}
        for name, data in found.items():
            self._report(name, sums[name], examples=data.num_examples(split))
        if len(found) > 1:
            total = np.sum(list(sums.values()), axis=0)
            self._report(split, total, examples=sum(data.num_examples(split) for data in found.values()))

    def _sums(self, data: Data, split: str) -> np.ndarray:
        """float64 [3]: loss, hits and weight of all examples."""
        batches = self._batches(data, split, training=False)
        steps = data.evaluation_steps(
            split,
            global_batch_size=self._config.global_batch_size,
            num_hosts=self._num_hosts,
            order=self._config.order,
        )
        return loops.evaluate(self._replica_step, self._strategy, batches, steps=steps, steps_per_call=min(steps, 100))

    def _report(self, name: str, sums: np.ndarray, *, examples: int) -> None:
        """The last one of an evaluation is what the training is known by."""
        loss_sum, hit_sum, weight_sum = sums.tolist()
        self._metrics = self._job.task.metrics(loss_sum=loss_sum, hit_sum=hit_sum, weight_sum=weight_sum)
        self._progress.evaluation(self._replica_step.step, split=name, metrics=self._metrics, examples=examples)

    def _batches(self, data: InputFunctions, split: str, *, start_step: int = 0, training: bool = True) -> Any:
        input_fn = data.input_fn(
            split,
            global_batch_size=self._config.global_batch_size,
            seed=self._config.seed,
            objective=self._job.task.objective,
            training=training,
            order=self._config.order,
            start_step=start_step,
        )

        def counted(context: tf.distribute.InputContext) -> tf.data.Dataset:
            self._num_hosts = context.num_input_pipelines
            return input_fn(context)

        return self._strategy.distribute_datasets_from_function(counted)


def make_replica_step(job: TrainingSetup, *, strategy: tf.distribute.Strategy) -> ReplicaStep:
    """The model with its optimizer and its task, as `train` and the preflight run it. Sets Keras up as asked."""
    config, data, task = job.config, job.data, job.task
    keras.utils.set_random_seed(config.seed % 2**32)
    keras.mixed_precision.set_global_policy("mixed_bfloat16" if config.precision == "bfloat16" else "float32")
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    context = tf.distribute.InputContext(num_replicas_in_sync=strategy.num_replicas_in_sync)
    input_fn = data.input_fn(
        config.train_split, global_batch_size=config.global_batch_size, objective=task.objective, training=True
    )
    with strategy.scope():
        model = models.build(config, data.manifest, task)
        # A TPU's programs are compiled by XLA anyway, and refuse to be told so again.
        jit_compile = config.jit_compile and not job.target.is_tpu
        spec = input_fn(context).element_spec
        return ReplicaStep(
            model, task=task, optimizer=_optimizer(config), seed=config.seed, batch_spec=spec, jit_compile=jit_compile
        )


def _optimizer(config: TrainConfig) -> AdamW:
    return AdamW(
        rate=config.learning_rate,
        warmup=config.warmup,
        steps=config.steps,
        decay=config.weight_decay,
        clip_norm=config.clip_norm,
    )


def _progress(config: TrainConfig, data: InputFunctions, *, as_json: bool) -> Progress:
    with usable(config.model_dir):
        return Progress(
            log_dir=f"{config.model_dir.rstrip('/')}/logs",
            total=config.steps,
            batch_size=config.global_batch_size,
            tokens_per_example=data.tokens_per_example(config.train_split),
            as_json=as_json,
        )


class _Stop(threading.Event):
    """Set by a signal, which it knows."""

    signal_number = 0


@contextlib.contextmanager
def _stoppable() -> Iterator[_Stop]:
    """An event that SIGTERM (preemption) and SIGINT set; a second one ends the process as usual."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    previous: dict[int, Any] = {}

    def note(number: int, _: object) -> None:
        stop.signal_number = number
        stop.set()
        signal.signal(number, previous[number])

    for name in (signal.SIGTERM, signal.SIGINT):
        previous[name] = signal.signal(name, note)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
