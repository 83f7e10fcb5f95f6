"""Checkpoints (weights, optimizer state and step), with the identity of the run that wrote them.

    MODEL_DIR/run.json                 identity: the dataset's fingerprint, task, model, batch size, seed …
    MODEL_DIR/checkpoints/ckpt-120.*   after 120 steps, in the backend's own format (ckpt_120/ on JAX)
    MODEL_DIR/best/ckpt-80.*           the checkpoint of the best evaluation, with --keep-best
    MODEL_DIR/evaluations.json         [{"step": 10, "metrics": {"loss": 0.61, "accuracy": 0.70}}, ...]

With the same identity, batch 120 is the same on every run. Checkpoints are found by name, so one may be deleted by
hand. A training resumed at step S drops the evaluations after S and repeats them.
"""

import abc
import contextlib
import dataclasses
import fcntl
import functools
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import keras
import numpy as np
import tensorflow as tf

from pipelines.train.config import TUNED
from pipelines.train.errors import said
from pipelines.train.metrics import is_better
from tfrecord_io.errors import ConfigError, FingerprintMismatchError, OutputError, PrepError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import Count

SAVES, BEST = "checkpoints", "best"
_IDENTITY = "run.json"
# Key in run.json: see `device_backend.InputParts`.
PARTS = "input_parts"
# Key in run.json: the newest run's --steps and --warmup, which may change.
COURSE = "course"
# The last file of a checkpoint: TensorFlow's ckpt-120.index, or Orbax' folder ckpt_120/.
_CHECKPOINT = re.compile(r"ckpt(?:-(\d+)\.index|_(\d+)/?)\Z")
# Key in the identity: the weights of a mixture's later stages, by first step.
STAGES = "stages"
# Checked types of values in run.json.
_TYPES = {
    PARTS: Annotated[dict, functools.partial(json_fields.checked, needed=dict.fromkeys(("hosts", "parts"), Count))],
    COURSE: Annotated[dict, functools.partial(json_fields.checked, needed=dict.fromkeys(("steps", "warmup"), Count))],
    STAGES: dict[Annotated[str, lambda step: json_fields.count(int(json_fields.text(step)))], tuple[float, ...]],
}
_NAMED = {"data": "fingerprint of the data", STAGES: "weights from steps"}
# Text that TensorFlow adds around an error's message.
_WHERE = re.compile(r"\{\{.*?\}\} | \[Op:.*")
_MOST_BYTES = 1 << 20
_EVALUATIONS = "evaluations.json"
_MOST_EVALUATIONS_BYTES = 1 << 26


def claimed(
    model_dir: str, *, identity: Mapping[str, Any], writes: bool, may_change: bool = False
) -> Mapping[str, Any]:
    """Return the identity in the folder's run.json, or else `identity`, written there if `writes`.

    With `may_change`, the options in TUNED may differ from run.json. The course may always differ, as may stages of a
    mixture that begin after the last checkpoint. Then run.json is written again. Returns the earlier course.

    Raises: FingerprintMismatchError if the folder holds another training; OutputError if it cannot be used.
    """
    folder = model_dir.rstrip("/")
    with usable(folder):
        path = f"{folder}/{_IDENTITY}"
        if not tf.io.gfile.exists(path):
            if steps := steps_in(f"{folder}/{SAVES}"):
                raise OutputError(
                    f"--model-dir {folder} has a checkpoint of step {steps[-1]:,} but no {_IDENTITY}, which says of "
                    "which training it is",
                    remedy=f"copy {_IDENTITY} from where the training ran, or give another --model-dir",
                )
            if writes:
                write_json(folder, _IDENTITY, dict(identity))
            return identity
        with tf.io.gfile.GFile(path) as file:
            if file.size() > _MOST_BYTES:
                raise ValueError(f"{path} was not written by a training")
            try:
                found = json_fields.checked(json_fields.load(file.read()), {}, _TYPES)
            except json_fields.WRONG as error:
                raise ValueError(f"{path}: {error}") from error
    names = [name for name in {**identity, **found} if name not in (PARTS, COURSE)]
    pairs = {name: tuple(each.get(name) for each in (found, identity)) for name in names}
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    done = max(steps_in(f"{folder}/{SAVES}"), default=0)
    old, new = ({at: w for at, w in (each or {}).items() if int(at) < done} for each in pairs.get(STAGES, ({}, {})))
    allowed = {*(TUNED if may_change else ()), *([STAGES] if old == new else [])}
    if differing and differing.keys() <= allowed:
        found = {**identity, **{name: found[name] for name in (PARTS, COURSE) if name in found}}
    elif differing:
        listing = ", ".join(
            f"{_NAMED.get(name, name)} {old!r}, now {new!r}" for name, (old, new) in sorted(differing.items())
        )
        raise FingerprintMismatchError(
            f"--model-dir {folder} holds another training: {listing}",
            remedy="give another --model-dir, or the same data and options to go on with that training; data that rows "
            "were appended to is as before at DATA/manifest-0.json, manifest-1.json, …"
            if not differing.keys() <= set(TUNED)
            else "give another --model-dir, the same options, or --allow-changes to go on with the new ones",
        )
    current = {**found, **{name: identity[name] for name in (COURSE,) if name in identity}}
    if writes and (differing or current != found):
        write_json(folder, _IDENTITY, current)
    return found


@contextlib.contextmanager
def locked(model_dir: str) -> Iterator[None]:
    """Hold the lock of a local model folder. Raises: OutputError if another training holds it."""
    with contextlib.ExitStack() as stack:
        if "://" not in model_dir:
            with usable(model_dir):
                tf.io.gfile.makedirs(model_dir)
            folder = os.open(model_dir, os.O_RDONLY)  # also a kill releases its lock
            stack.callback(os.close, folder)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OutputError(
                    f"--model-dir {model_dir}: another training is at work in it",
                    remedy="wait until it ends, or give another --model-dir",
                ) from error
            except OSError:  # a file system without locks
                pass
        yield


def steps_in(folder: str) -> list[int]:
    """Return the steps of the checkpoints in a folder, ascending."""
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    return sorted(int(found[1] or found[2]) for name in names if (found := _CHECKPOINT.match(name)))


class Saves(abc.ABC):
    """Checkpoints of a learner in a folder, local or gs://, of which only the newest are kept."""

    @property
    @abc.abstractmethod
    def steps(self) -> list[int]:
        """Steps of all complete checkpoints, ascending."""

    @abc.abstractmethod
    def save(self) -> None:
        """Write a checkpoint of the current step, replacing those of this and later steps. Raises: OutputError."""

    @abc.abstractmethod
    def load(self, step: int) -> None:
        """Load the checkpoint of a step into the learner. Raises: OutputError if it is damaged."""

    @abc.abstractmethod
    def close(self) -> None:
        """Wait until all checkpoints are written."""

    def restore(self, *, note: Callable[[str], None]) -> int:
        """Load the newest checkpoint that can be read; return its step, or 0.

        `note` gets a warning for each damaged one. Raises: OutputError if all are damaged.
        """
        oldest, *later = self.steps or [0]
        for step in reversed(later):
            try:
                self.load(step)
                return step
            except OutputError as error:  # noqa: PERF203 - loading takes longer
                note(f"warning: {error.cause}: taking the one before")
        if oldest:
            self.load(oldest)
        return oldest


def unwritten(folder: str, error: BaseException) -> OutputError:
    """Return the error for an unwritten checkpoint."""
    return OutputError(
        f"--model-dir {folder}: a checkpoint cannot be written ({_first_line(error)})",
        remedy="make room or give the right to write, and run the same command again",
    )


def damaged(path: str, error: BaseException) -> OutputError:
    """Return the error for an unreadable checkpoint."""
    return OutputError(
        f"{path}: it does not fit this model or is damaged ({_first_line(error)})",
        remedy="delete it if it is damaged; else give the version of the model that wrote it, or another --model-dir",
    )


def write_json(folder: str, name: str, document: Any) -> None:
    """Write a JSON file atomically. Raises: OutputError if it cannot be written."""
    with usable(folder):
        tf.io.gfile.makedirs(folder)
        path = f"{folder.rstrip('/')}/{name}"
        with tf.io.gfile.GFile(f"{path}.new", "w") as file:
            file.write(json.dumps(document, indent=2, sort_keys=True) + "\n")
        tf.io.gfile.rename(f"{path}.new", path, overwrite=True)


def as_json(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return metrics as JSON values: null for NaN and infinity."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def require_savable(model: keras.Model, *, model_name: str) -> None:
    """Check that Keras can write the model's layers. Raises: ConfigError if not."""
    try:
        json.dumps(keras.saving.serialize_keras_object(model))
    except Exception as error:  # from get_config of any layer
        raise ConfigError(
            f"--model {model_name}: cannot be saved at the end of the training ({said(error)})",
            remedy="give each layer a get_config with the arguments of its constructor",
        ) from error


def save_model(model: Any, model_dir: str) -> tuple[str, str]:
    """Write the model as .keras and its weights as .weights.h5; return both paths. Raises: OutputError."""
    names = ("model.keras", "model.weights.h5")
    targets = [f"{model_dir.rstrip('/')}/{name}" for name in names]
    with tempfile.TemporaryDirectory() as folder:
        # Keras writes local files only, because h5 and zip need to seek.
        made = [os.path.join(folder, name) for name in names]
        model.save(made[0])
        model.save_weights(made[1])
        try:
            for local, target in zip(made, targets, strict=True):
                put(local, target)
        except tf.errors.OpError as error:
            raise OutputError(f"{model_dir}: the final model cannot be written ({_first_line(error)})") from error
    return targets[0], targets[1]


def save_weights(model: Any, weights: Sequence[np.ndarray], path: str) -> None:
    """Write other weights of the model as .weights.h5; the model keeps its own. Raises: OutputError."""
    own = [np.array(variable.value) for variable in model.trainable_variables]
    with tempfile.TemporaryDirectory() as folder, usable(os.path.dirname(path)):
        for values in (weights, own):
            for variable, value in zip(model.trainable_variables, values, strict=True):
                variable.assign(value)
            if values is weights:
                model.save_weights(local := os.path.join(folder, "reference.weights.h5"))
        put(local, path)


def put(local: str, path: str) -> None:
    """Copy a local file atomically to any file system. Raises: TensorFlow's OpError."""
    if "://" in path:  # uploads are atomic
        tf.io.gfile.copy(local, path, overwrite=True)
        return
    tf.io.gfile.makedirs(os.path.dirname(os.path.abspath(path)))
    tf.io.gfile.copy(local, f"{path}.part", overwrite=True)
    tf.io.gfile.rename(f"{path}.part", path, overwrite=True)


@contextlib.contextmanager
def usable(folder: str) -> Iterator[None]:
    """Turn TensorFlow's file errors into an OutputError about the model folder."""
    try:
        yield
    except (tf.errors.OpError, ValueError, OSError) as error:
        raise OutputError(
            f"--model-dir {folder}: it cannot be used ({_first_line(error)})",
            remedy="give a folder that can be written, or an empty one",
        ) from error


def _first_line(error: BaseException) -> str:
    return _WHERE.sub("", str(error).strip().partition("\n")[0])[:200]


@dataclasses.dataclass
class History:
    """Evaluations in a folder, by step and ranked by one metric. `writes`: whether this process saves them."""

    model_dir: str
    metric: str
    writes: bool = True
    evaluations: dict[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def open(self, start: int) -> None:
        """Load the earlier evaluations, up to step `start`. Raises: OutputError if they cannot be read."""
        path = f"{self.model_dir.rstrip('/')}/{_EVALUATIONS}"
        if not start or not tf.io.gfile.exists(path):
            return
        try:
            with tf.io.gfile.GFile(path) as file:
                if file.size() > _MOST_EVALUATIONS_BYTES:
                    raise ValueError("too large")
                found = json_fields.load(file.read())
            for each in found:
                values = {name: math.nan if value is None else float(value) for name, value in each["metrics"].items()}
                if int(each["step"]) <= start:
                    self.evaluations[int(each["step"])] = values
        except (tf.errors.OpError, PrepError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise OutputError(
                f"{path}: cannot be read ({type(error).__name__}), expected the evaluations of this training",
                remedy="delete it: the best evaluation is then looked for among those to come",
            ) from error

    def add(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Add and save an evaluation; return whether it is the best so far. Raises: OutputError."""
        self.evaluations.pop(step, None)
        self.evaluations[step] = dict(metrics)
        if self.writes:
            pairs = [(each, as_json(values)) for each, values in self.evaluations.items()]
            write_json(self.model_dir, _EVALUATIONS, [{"step": each, "metrics": values} for each, values in pairs])
        return self.best == step

    @property
    def best(self) -> int | None:
        """Step of the best evaluation, the first of equal ones, if any has the metric."""
        best: int | None = None
        for step, metrics in self.evaluations.items():
            than = None if best is None else self.evaluations[best][self.metric]
            if is_better(self.metric, metrics.get(self.metric, math.nan), than):
                best = step
        return best

    @property
    def since_best(self) -> int:
        """Number of evaluations after the best one, or of all if none is best."""
        best = self.best
        return sum(best is None or each > best for each in self.evaluations)
