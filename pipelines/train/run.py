"""The training loop: train, log, evaluate and save."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.train import backends, checkpoints, model_files, targets
from pipelines.train import setup as jobs
from pipelines.train.checkpoints import History
from pipelines.train.config import TrainConfig
from pipelines.train.device_backend import DeviceBackend, feed
from pipelines.train.errors import StoppedError, TrainingError
from pipelines.train.metrics import together
from pipelines.train.model_files import TrainedModel
from pipelines.train.models import BuiltModel
from pipelines.train.progress import TrainingProgress
from pipelines.train.setup import TrainingSetup
from pipelines.train.tasks import decoder_start
from tfrecord_io.errors import OutputError
from tfrecord_io.shown import duration, some

_NO_TOKENIZER = "warning: {} has no folder tokenizer/, which `train-tpu predict` and `export` need in --model-dir"


def train(config: TrainConfig, *, as_json: bool = False) -> dict[str, Any]:
    """Train until `config.steps`, starting from the last checkpoint in the model folder, if any.

    With a TPU or several CPU replicas, call this before anything else uses TensorFlow. `as_json`: print JSON lines.
    Return `steps`, `model` (the final model's path) and metrics, by name; {} in a process that writes no files. Raises:
    StoppedError after SIGTERM or SIGINT, with the state saved; another PrepError.
    """
    job = jobs.check(config)
    backend = backends.opened(job.target, job.config)
    lock = checkpoints.locked(config.model_dir) if backend.is_first else contextlib.nullcontext()
    with lock, _stoppable() as stop:
        return _Run(job, backend=backend, stop=stop, as_json=as_json).go()


def describe(job: TrainingSetup, *, built: BuiltModel, steps: int, metrics: Mapping[str, float]) -> TrainedModel:
    """Return the description of a model after `steps` steps, without its training data's paths and row ranges."""
    config, manifest = job.config, job.data.manifest
    kept = {name: manifest.source[name] for name in ("kind", "name", "revision") if name in manifest.source}
    return TrainedModel(
        task=config.task,
        model=config.model,
        pooling=built.pooling,
        backbone=built.description,
        num_outputs=job.task.num_outputs,
        regression=job.task.regression,
        mask_probability=config.mask_probability,
        beta=getattr(job.task, "beta", 1.0),
        decoder_start=decoder_start(config) if job.task.kind.backbone == "encoder-decoder" else None,
        precision=config.precision or "float32",
        steps=steps,
        eval_split=job.eval_split,
        metrics=dict(metrics),
        manifest=dataclasses.replace(manifest, splits={}, source=kept, options={}, engines={}),
    )


class _Run:
    def __init__(self, job: TrainingSetup, *, backend: DeviceBackend, stop: list[int], as_json: bool) -> None:
        config = job.config
        self._job = job
        self._config = config
        self._data = job.data
        self._backend = backend
        self._stop = stop
        self._learner = backend.learner(job)
        checkpoints.require_savable(self._learner.built.model, model_name=config.model)
        self._data_folder = jobs.datasets_of(job.data)[0].root
        if not model_files.has_tokenizer(self._data_folder):
            job = dataclasses.replace(job, warnings=(*job.warnings, _NO_TOKENIZER.format(self._data_folder)))
        folder = config.model_dir.rstrip("/")
        self._saves = backend.saves(self._learner, f"{folder}/{checkpoints.SAVES}", keep=config.keep_checkpoints)
        self._best_saves = backend.saves(self._learner, f"{folder}/{checkpoints.BEST}", keep=1)
        with checkpoints.usable(config.model_dir):
            self._progress = TrainingProgress(
                log_dir=f"{folder}/logs",
                total=config.total_steps,
                batch_size=config.global_batch_size,
                tokens_per_example=lambda step: self._data.tokens_per_example(config.train_split, step=step),
                as_json=as_json,
                peak_flops=backend.peak_flops,
                speaks=backend.is_first,
            )
        self._metric = config.best_metric or "loss"
        self._history = History(config.model_dir, metric=self._metric, writes=backend.is_first)
        self._saved_at = self._evaluated_at = -1
        self._metrics: Mapping[str, float] = {}
        for line in (
            *job.warnings,
            *self._learner.built.notes,
            f"replicas: {backend.replicas}, on {targets.place(job.target, backend.hardware)}",
        ):
            self._progress.note(line)
        if lengths := self._data.manifest.bucket_lengths:
            listing = ", ".join(map(str, lengths))
            self._progress.note(f"compiling a step for each of the row lengths {listing}")

    def go(self) -> dict[str, Any]:
        start = self._open()
        config = self._config
        if not self._backend.anywhere(bool(self._stop)) and not self._ends_early():
            self._began = time.monotonic()
            self._backend.train(
                self._learner,
                feed(self._job, self._backend, self._data, config.train_split, training=True, start_step=start),
                until=config.total_steps,
                steps_per_call=config.steps_per_call,
                after_call=self._after_call,
            )
        if self._learner.step < config.total_steps and not self._ends_early():
            self._save()
            self._saves.close()
            self._best_saves.close()
            self._progress.close()
            error = StoppedError(
                f"stopped by a signal after step {self._learner.step:,} of {config.total_steps:,}; the state is saved",
                remedy="run the same command again to continue with the next batch",
            )
            error.signal_number = self._stop[0] if self._stop else signal.SIGTERM  # another host got the signal
            raise error
        return self._finish()

    def _open(self) -> int:
        parts, folder = self._backend.input_parts, self._config.model_dir
        course = {"steps": self._config.total_steps, "warmup": self._config.warmup}
        kept = {checkpoints.PARTS: dataclasses.asdict(parts), checkpoints.COURSE: course}
        identity = checkpoints.claimed(
            folder,
            identity={**jobs.identity(self._config, self._data), **kept},
            writes=self._backend.is_first,
            may_change=self._config.allow_changes,
        )
        recorded = identity.get(checkpoints.PARTS, dataclasses.asdict(parts))
        self._backend.input_parts = parts.kept(recorded, order=self._config.order, model_dir=folder)
        start, total = self._saves.restore(note=self._progress.note), self._config.total_steps
        self._history.open(start)
        if not start:
            return start
        self._saved_at = start
        self._progress.note(
            f"continuing after step {start:,}"
            if start < total
            else f"nothing left to train after {some(start, 'step')}, since --steps is {total:,}; only evaluating"
        )
        if start < total:
            self._note_course(start, before=identity.get(checkpoints.COURSE, course))
        if self._config.keep_best and self._history.best == start not in self._best_saves.steps:
            self._best_saves.save()  # the earlier run was killed before this
        if start < total and self._ends_early():
            self._progress.note("nothing left to train, since --early-stopping ended the training run; only evaluating")
        return start

    def _note_course(self, start: int, *, before: Mapping[str, Any]) -> None:
        current = self._learner.optimizer
        earlier = dataclasses.replace(current, steps=int(before["steps"]), warmup=int(before["warmup"]))
        if earlier != current and current.schedule != "constant":
            old, new = (float(optimizer.learning_rate(start)) for optimizer in (earlier, current))
            self._progress.note(
                f"the {current.schedule} schedule is rescaled from {some(earlier.steps, 'step')} with a warm-up of "
                f"{earlier.warmup:,} to {current.steps:,} with a warm-up of {current.warmup:,}; the next learning rate "
                f"is {new:.3g} instead of {old:.3g}"
            )

    def _after_call(self, step: int, loss: float) -> bool:
        config = self._config
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss at step {step:,} is {loss}, expected a number",
                remedy="look for labels outside the classes, give a longer --warmup, or give a lower --learning-rate "
                "with --allow-changes to continue from the last checkpoint",
            )
        if step % config.log_every == 0 or step == config.total_steps:
            self._progress.training(
                step, loss=loss, learning_rate=self._learner.learning_rate, flops=self._learner.flops
            )
        if self._backend.anywhere(bool(self._stop)):  # all hosts must save the same step
            return False
        if config.eval_every and step % config.eval_every == 0 and step < config.total_steps:
            self._evaluate()
            self._start_clock(step)
            if self._ends_early():
                evaluations = some(self._history.since_best, "evaluation")
                self._progress.note(f"ended early: no better {self._metric} in {evaluations}")
                return False
        if config.save_every and step % config.save_every == 0:
            self._save()
            self._start_clock(step)
        if self._progress.since is None or step % config.log_every == 0:
            self._start_clock(step)  # excludes the first call, which compiles
        return True

    def _start_clock(self, step: int) -> None:
        if self._progress.since is None:
            seconds = time.monotonic() - self._began
            self._progress.note(f"first call: {duration(seconds)}, including compilation")
        self._progress.start_clock(step, flops=self._learner.flops)

    def _ends_early(self) -> bool:
        patience = self._config.early_stopping
        return patience is not None and self._history.since_best >= patience

    def _finish(self) -> dict[str, Any]:
        self._save()
        self._evaluate()
        self._saves.close()
        self._best_saves.close()
        steps, model_dir = self._learner.step, self._config.model_dir
        self._take_best()
        model, frozen, result = self._backend.current(self._learner), self._backend.frozen(self._learner), {}
        if self._backend.is_first:
            model_path, weights_path = checkpoints.save_model(model, model_dir, *model_files.FINAL)
            if frozen:
                for variable, value in zip(model.trainable_variables, frozen, strict=True):
                    variable.assign(value)
                checkpoints.save_model(model, model_dir, model_files.REFERENCE)
            if model_files.has_tokenizer(self._data_folder):
                with checkpoints.usable(model_dir):
                    model_files.copy_tokenizer(self._data_folder, f"{model_dir.rstrip('/')}/{model_files.TOKENIZER}")
            described = describe(self._job, built=self._learner.built, steps=steps, metrics=self._metrics)
            model_files.write(model_dir, described)
            self._progress.note(f"saved {model_path} and {weights_path}")
            result = {"steps": steps, "model": model_path, **self._metrics}
        self._progress.close()
        return result

    def _take_best(self) -> None:
        best = self._history.best
        if not self._config.keep_best or best is None or best == self._learner.step:
            return
        try:
            self._best_saves.load(best)
        except OutputError as error:
            self._progress.note(
                f"warning: the checkpoint of the best evaluation (step {best:,}) cannot be loaded, so the last one is "
                f"used ({error.cause})"
            )
            self._saves.restore(note=self._progress.note)
            return
        self._metrics = self._history.evaluations[best]
        self._progress.note(
            f"using the best evaluation, after step {best:,}: {self._metric} {self._metrics[self._metric]:.4f}"
        )

    def _save(self) -> None:
        if self._learner.step != self._saved_at:
            self._saves.save()
            self._saved_at = self._learner.step

    def _evaluate(self) -> None:
        split, step = self._job.eval_split, self._learner.step
        if split is None or step == self._evaluated_at:
            return
        self._metrics = self._measured(split)
        self._evaluated_at = step
        is_best = self._history.add(step, self._metrics)
        if is_best and self._config.keep_best:
            # A resumed run would forget a best evaluation that is later than the last checkpoint.
            self._save()
            self._saves.close()
            self._best_saves.save()

    def _measured(self, split: str) -> Mapping[str, float]:
        parts = jobs.evaluated(self._data, split)
        results = {}
        for name, data in parts.items():
            batches = feed(self._job, self._backend, data, split, training=False)
            results[name] = self._backend.evaluate(self._learner, batches)
        counts = {name: data.num_examples(split) for name, data in parts.items()}
        if len(results) > 1:
            results[split], counts[split] = together(list(results.values())), sum(counts.values())
        metrics: Mapping[str, float] = {}
        for name, result in results.items():
            if result.sums["weight"]:
                metrics = self._job.task.metrics(result)
                self._progress.evaluation(self._learner.step, split=name, metrics=metrics, examples=counts[name])
            else:
                metrics = {}
                self._progress.note(f"{name}: no metrics, since none of {some(counts[name], 'example')} has a label")
        return metrics


@contextlib.contextmanager
def _stoppable() -> Iterator[list[int]]:
    stop: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    previous: dict[int, Any] = {}

    def note(number: int, _: object) -> None:
        stop.append(number)
        signal.signal(number, previous[number])  # so a second signal has its usual effect

    for name in (signal.SIGTERM, signal.SIGINT):  # clouds send SIGTERM before preemption
        if signal.getsignal(name) != signal.SIG_IGN:  # as SIGINT is in a shell's background job
            previous[name] = signal.signal(name, note)
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
