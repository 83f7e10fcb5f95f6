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
import tensorflow as tf

from pipelines.train import devices, model_files, models
from pipelines.train import setup as jobs
from pipelines.train.best import History
from pipelines.train.checkpoints import Checkpoints, save_model, usable
from pipelines.train.config import TrainConfig
from pipelines.train.errors import StoppedError, TrainingError
from pipelines.train.progress import Progress
from pipelines.train.setup import TrainingSetup
from pipelines.train.steps import feeds, loops
from pipelines.train.steps.adamw import AdamW
from pipelines.train.steps.evaluating import Evaluator
from pipelines.train.steps.feeds import Feeds
from pipelines.train.steps.profiling import Profile
from pipelines.train.steps.train_step import ReplicaStep
from tfrecord_io.errors import ConfigError
from tfrecord_io.input_pipeline.input_functions import InputFunctions

__all__ = ["Trained", "make_replica_step", "train"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training left. `metrics` are those of the final model's evaluation, empty without evaluation split."""

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
    job = job.sized(strategy.num_replicas_in_sync)
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
        self._feeds = Feeds(config, task=job.task, strategy=strategy)
        self._evaluator = Evaluator(
            self._replica_step, strategy=strategy, feeds=self._feeds, task=job.task, progress=self._progress
        )
        self._history = History(config.model_dir, metric=config.best_metric or "loss")
        self._profile = Profile(config.profiled, log_dir=_log_dir(config))
        self._saved_at = self._evaluated_at = -1
        self._metrics: Mapping[str, float] = {}
        for line in (*job.warnings, *self._facts()):
            self._progress.note(line)

    def _facts(self) -> Iterator[str]:
        """Lines on what is about to run."""
        place = devices.place(self._job.target, self._strategy)
        yield f"replicas: {self._strategy.num_replicas_in_sync}, on {place}"
        if lengths := self._data.manifest.bucket_lengths:
            listing = ", ".join(map(str, lengths))
            yield f"rows of {len(lengths)} lengths ({listing}): {self._replica_step.traces} steps to compile"

    def go(self) -> Trained:
        start = self._open()
        config = self._config
        if (config.total_steps - start) % config.steps_per_call and config.loop == "keras":
            raise ConfigError(
                f"--steps-per-call {config.steps_per_call} with {config.total_steps - start} steps left, expected a "
                "divisor",
                remedy="choose one, or --loop custom, which can end with a shorter call",
            )
        loop = loops.fit if config.loop == "keras" else loops.custom
        if not self._stop.is_set() and not self._ends_early():
            self._profile.after(start)
            try:
                loop(
                    self._replica_step,
                    self._strategy,
                    feed=self._feeds.training(self._data, start_step=start),
                    span=loops.TrainingSpan(
                        until=config.total_steps, steps_per_call=config.steps_per_call, after_call=self._after_call
                    ),
                )
            finally:
                self._profile.close()
        if self._replica_step.step < config.total_steps and not self._ends_early():
            self._stopped()
        return self._finish(start)

    def _open(self) -> int:
        """Restores what an earlier run left. Returns the steps that it took."""
        start, total = self._checkpoints.open(), self._config.total_steps
        self._history.open(start)
        if not start:
            return start
        self._saved_at = start
        self._progress.note(
            f"going on after step {start:,}"
            if start < total
            else f"nothing left to train: {start:,} steps are taken, --steps is {total:,}; evaluating only"
        )
        if self._profile.missed(start):
            self._progress.note(f"no profile: step {start:,} is taken, --profile-steps is {self._config.profile_steps}")
        best = self._history.best
        if self._config.keep_best and best is not None and best.step == start != self._checkpoints.best_step:
            self._checkpoints.save_best()  # a kill came between the two checkpoints of this step
        if start < total and self._ends_early():
            self._progress.note("nothing left to train: it ended early; evaluating only (--early-stopping decides)")
        return start

    def _after_call(self, step: int, loss: float) -> bool:
        config = self._config
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss at step {step} is {loss}, expected a number",
                remedy="lower --learning-rate, lengthen --warmup, or look for labels outside the classes",
            )
        if (news := self._profile.after(step)) is not None:
            self._progress.note(news)
        if step % config.log_every == 0 or step == config.total_steps:
            self._progress.training(step, loss=loss, learning_rate=self._replica_step.learning_rate)
        if self._stop.is_set():
            return False
        if config.eval_every and step % config.eval_every == 0 and step < config.total_steps:
            self._evaluate()
            self._progress.start_clock(step)
            if self._ends_early():
                self._progress.note(
                    f"ended early: no better {config.best_metric or 'loss'} in {self._history.since_best} evaluations"
                )
                return False
        if config.save_every and step % config.save_every == 0:
            self._save()
            self._progress.start_clock(step)
        if not self._progress.running or step % config.log_every == 0:
            self._progress.start_clock(step)  # the first call compiled, which is no training
        return True

    def _ends_early(self) -> bool:
        patience = self._config.early_stopping
        return patience is not None and self._history.since_best >= patience

    def _finish(self, start: int) -> Trained:
        self._save()
        self._evaluate()
        steps = self._replica_step.step
        self._take_best()
        model_path, weights_path = save_model(self._replica_step.model, self._config.model_dir)
        self._describe()
        self._progress.note(f"saved {model_path} and {weights_path}")
        self._progress.close()
        return Trained(steps=steps, resumed_at=start, metrics=dict(self._metrics), model_path=model_path)

    def _take_best(self) -> None:
        """Goes back to the weights of the best evaluation, if that is asked for."""
        best = self._history.best
        if not self._config.keep_best or best is None or best.step == self._replica_step.step:
            return
        if self._checkpoints.best_step != best.step:
            self._progress.note(
                f"the checkpoint of the best evaluation, after step {best.step:,}, is gone: keeping the last"
            )
            return
        self._checkpoints.restore_best()
        self._metrics = best.metrics
        metric = self._config.best_metric or "loss"
        self._progress.note(
            f"back to the best evaluation, after step {best.step:,}: {metric} {best.metrics[metric]:.4f}"
        )

    def _describe(self) -> None:
        """Writes what `predict` and `export` need to know of the model."""
        config, job = self._config, self._job
        if not model_files.copy_tokenizer(config.data_folders[0], config.model_dir):
            self._progress.note(f"warning: {config.data_folders[0]} has no tokenizer/, so the model's folder has none")
        described = model_files.describe(
            config,
            self._data.manifest,
            job.task,
            built=self._replica_step.built,
            steps=self._replica_step.step,
            eval_split=job.eval_split,
            metrics=self._metrics,
        )
        model_files.write(config.model_dir, described)

    def _stopped(self) -> None:
        self._save()
        self._progress.close()
        error = StoppedError(
            f"stopped by a signal after step {self._replica_step.step:,} of {self._config.total_steps:,}, which is "
            "saved",
            remedy="run the same command again: it goes on with the next batch",
        )
        error.signal_number = self._stop.signal_number
        raise error

    def _save(self) -> None:
        if self._replica_step.step != self._saved_at:
            self._checkpoints.save()
            self._saved_at = self._replica_step.step

    def _evaluate(self) -> None:
        split, step = self._job.eval_split, self._replica_step.step
        if split is None or step == self._evaluated_at:
            return
        self._metrics = self._evaluator.evaluate(self._data, split)
        self._evaluated_at = step
        is_best = self._history.add(step, self._metrics)
        if is_best and self._config.keep_best:
            # The last checkpoint is never older than the best one, so that a resumed run still knows of it.
            self._save()
            self._checkpoints.save_best()


def make_replica_step(job: TrainingSetup, *, strategy: tf.distribute.Strategy) -> ReplicaStep:
    """The model with its optimizer and its task, as `train` and the preflight run it. Sets Keras up as asked."""
    config, data, task = job.config, job.data, job.task
    keras.utils.set_random_seed(config.seed % 2**32)
    keras.mixed_precision.set_global_policy("mixed_bfloat16" if config.precision == "bfloat16" else "float32")
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    specs = feeds.element_specs(data, config, task, replicas=strategy.num_replicas_in_sync)
    with strategy.scope():
        built = models.build(config, data.manifest, task)
        if not built.model.trainable_variables:
            raise ConfigError(f"--model {config.model}: it has no weights to train")
        return ReplicaStep(
            built,
            task=task,
            optimizer=_optimizer(config),
            seed=config.seed,
            batch_specs=specs,
            # A TPU's programs are compiled by XLA anyway, and refuse to be told so again.
            jit_compile=config.jit_compile and not job.target.is_tpu,
            accumulate=config.accumulate,
        )


def _optimizer(config: TrainConfig) -> AdamW:
    return AdamW(
        rate=config.learning_rate,
        warmup=config.warmup,
        steps=config.total_steps,
        decay=config.weight_decay,
        clip_norm=config.clip_norm,
        schedule=config.schedule,
    )


def _progress(config: TrainConfig, data: InputFunctions, *, as_json: bool) -> Progress:
    with usable(config.model_dir):
        return Progress(
            log_dir=_log_dir(config),
            total=config.total_steps,
            batch_size=config.batch_rows,
            tokens_per_example=data.tokens_per_example(config.train_split),
            as_json=as_json,
        )


def _log_dir(config: TrainConfig) -> str:
    return f"{config.model_dir.rstrip('/')}/logs"


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
