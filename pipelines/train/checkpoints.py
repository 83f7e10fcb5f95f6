"""Write and read checkpoints (weights, optimizer state and step), and record the training run of a model folder.

docs/reference/training.md lists the files of a model folder. Runs with the same identity in run.json have the same
batches. Checkpoints are found by their names, so users may delete them.
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
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import keras
import tensorflow as tf

from pipelines.train.config import TUNED
from pipelines.train.errors import said
from pipelines.train.metrics import LOWER_IS_BETTER
from tfrecord_io.errors import ConfigError, FingerprintMismatchError, OutputError, PrepError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import Count

SAVES, BEST = "checkpoints", "best"
_IDENTITY = "run.json"
# Key in run.json, see `device_backend.InputParts`.
PARTS = "input_parts"
# Key in run.json for the newest run's --steps and --warmup.
COURSE = "course"
# The last file of a checkpoint: TensorFlow's ckpt-120.index, or Orbax' folder ckpt_120/.
_CHECKPOINT = re.compile(r"ckpt(?:-(\d+)\.index|_(\d+)/?)\Z")
# Key in the identity for the mixing weights of later stages, by each stage's first step.
STAGES = "stages"
_TYPES = {
    PARTS: Annotated[dict, functools.partial(json_fields.checked, needed=dict.fromkeys(("hosts", "parts"), Count))],
    COURSE: Annotated[dict, functools.partial(json_fields.checked, needed=dict.fromkeys(("steps", "warmup"), Count))],
    STAGES: dict[Annotated[str, lambda step: json_fields.count(int(json_fields.text(step)))], tuple[float, ...]],
}
_NAMED = {"data": "fingerprint of the data", STAGES: "weights from steps"}
# Text that TensorFlow adds around an error's message.
_WHERE = re.compile(r"\{\{.*?\}\} | \[Op:.*")
_MOST_BYTES = 64 << 20  # of a JSON file; model.json has all label names
_EVALUATIONS = "evaluations.json"


def claimed(
    model_dir: str, *, identity: Mapping[str, Any], writes: bool, may_change: bool = False
) -> Mapping[str, Any]:
    """Check that a model folder belongs to a training run, and return the identity that its run.json recorded.

    `identity`: entries that identify the training run, by name. If there is no run.json, return `identity` and, if
    `writes`, record it. Some entries may differ from the recorded ones: COURSE, the STAGES of a mixture after the last
    checkpoint and, with `may_change`, the options in TUNED. Then run.json is replaced (if `writes`), but the returned
    identity has the earlier COURSE. Raises: FingerprintMismatchError if the folder contains another training run;
    OutputError.
    """
    folder = model_dir.rstrip("/")
    with usable(folder):
        path = f"{folder}/{_IDENTITY}"
        if not tf.io.gfile.exists(path):
            if steps := steps_in(f"{folder}/{SAVES}"):
                raise OutputError(
                    f"--model-dir {folder} has a checkpoint of step {steps[-1]:,} but no {_IDENTITY} to identify the "
                    "training run",
                    remedy=f"copy {_IDENTITY} from the training run's original folder, or give another --model-dir",
                )
            if writes:
                write_json(folder, _IDENTITY, dict(identity))
            return identity
        try:
            recorded = json_fields.checked(read_json(path), {}, _TYPES)
        except json_fields.WRONG as error:
            raise ValueError(f"{path}: {error}") from error
    names = [name for name in {**identity, **recorded} if name not in (PARTS, COURSE)]
    pairs = {name: (recorded.get(name), identity.get(name)) for name in names}
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    done = max(steps_in(f"{folder}/{SAVES}"), default=0)
    old, new = ({at: w for at, w in (stages or {}).items() if int(at) < done} for stages in pairs.get(STAGES, ({}, {})))
    allowed = {*(TUNED if may_change else ()), *([STAGES] if old == new else [])}
    if differing and differing.keys() <= allowed:
        recorded = {**identity, **{name: recorded[name] for name in (PARTS, COURSE) if name in recorded}}
    elif differing:
        listing = ", ".join(
            f"{_NAMED.get(name, name)} {old!r}, now {new!r}" for name, (old, new) in sorted(differing.items())
        )
        raise FingerprintMismatchError(
            f"--model-dir {folder} contains another training run: {listing}",
            remedy="give another --model-dir, or continue that training run with the same data and options; the data "
            "before an append is at DATA/manifest-0.json, manifest-1.json, …"
            if not differing.keys() <= set(TUNED)
            else "give another --model-dir, or the same options, or --allow-changes to continue with the new options",
        )
    current = {**recorded, **{name: identity[name] for name in (COURSE,) if name in identity}}
    if writes and (differing or current != recorded):
        write_json(folder, _IDENTITY, current)
    return recorded


@contextlib.contextmanager
def locked(model_dir: str) -> Iterator[None]:
    """Lock a local model folder during the `with` statement. Raises: OutputError if another run has the lock."""
    with contextlib.ExitStack() as stack:
        if "://" not in model_dir:
            with usable(model_dir):
                tf.io.gfile.makedirs(model_dir)
            folder = os.open(model_dir, os.O_RDONLY)  # even a killed process releases the lock
            stack.callback(os.close, folder)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OutputError(
                    f"--model-dir {model_dir}: another training run is using this folder",
                    remedy="wait until that training run ends, or give another --model-dir",
                ) from error
            except OSError:  # a file system without locks
                pass
        yield


def steps_in(folder: str) -> list[int]:
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    return sorted(int(match[1] or match[2]) for name in names if (match := _CHECKPOINT.match(name)))


class Saves(abc.ABC):
    """A folder, local or gs://, with the newest checkpoints of a learner (a model in training)."""

    @property
    @abc.abstractmethod
    def steps(self) -> list[int]:
        """Steps of all complete checkpoints, ascending."""

    @abc.abstractmethod
    def save(self) -> None:
        """Write a checkpoint of the learner's step; delete others of this and later steps. Raises: OutputError."""

    @abc.abstractmethod
    def load(self, step: int) -> None:
        """Load the checkpoint of a step. Raises: OutputError if it is damaged or of another model."""

    def close(self) -> None:  # noqa: B027 - `save` may wait
        """Wait until all checkpoints are written."""

    def restore(self, *, note: Callable[[str], None]) -> int:
        """Load the newest readable checkpoint and return its step, or 0 if there is none.

        `note` is called with a warning for each damaged one. Raises: OutputError if all are damaged.
        """
        oldest, *later = self.steps or [0]
        for step in reversed(later):
            try:
                self.load(step)
                return step
            except OutputError as error:  # noqa: PERF203 - loading takes longer
                note(f"warning: {error.cause}; trying the previous checkpoint")
        if oldest:
            self.load(oldest)
        return oldest


def unwritten(folder: str, error: BaseException) -> OutputError:
    return OutputError(
        f"--model-dir {folder}: a checkpoint cannot be written ({_first_line(error)})",
        remedy="free disk space or grant write permission, and run the same command again",
    )


def damaged(path: str, error: BaseException) -> OutputError:
    return OutputError(
        f"{path}: the checkpoint does not fit this model or is damaged ({_first_line(error)})",
        remedy="delete a damaged checkpoint; otherwise give the --model that wrote it, or another --model-dir",
    )


def read_json(path: str) -> Any:
    """Read a JSON file of at most 64 MiB. Raises: ValueError if it is larger or damaged; TensorFlow's OpError."""
    with tf.io.gfile.GFile(path, "rb") as file:
        if file.size() > _MOST_BYTES:
            raise ValueError(f"{file.size():,} bytes, expected at most {_MOST_BYTES:,}")
        return json_fields.load(file.read())


def write_json(folder: str, name: str, document: Any) -> None:
    """Write a JSON file atomically to a new or existing folder. Raises: OutputError."""
    with usable(folder):
        tf.io.gfile.makedirs(folder)
        path = f"{folder.rstrip('/')}/{name}"
        with tf.io.gfile.GFile(f"{path}.new", "w") as file:
            file.write(json.dumps(document, indent=2, sort_keys=True) + "\n")
        tf.io.gfile.rename(f"{path}.new", path, overwrite=True)


def as_json(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return the metrics with None in place of NaN and infinity."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def require_savable(model: keras.Model, *, model_name: str) -> None:
    """Check that Keras can save a model's layers. `model_name`: value of --model. Raises: ConfigError."""
    try:
        json.dumps(keras.saving.serialize_keras_object(model))
    except Exception as error:  # from get_config of any layer
        raise ConfigError(
            f"--model {model_name}: Keras could not save this model at the end of the training run ({said(error)})",
            remedy="give each layer a get_config that returns the arguments of its constructor",
        ) from error


def save_model(model: Any, model_dir: str, *names: str) -> list[str]:
    """Write files with a model to its folder, and return their paths. Raises: OutputError.

    `names`: of the files; FILE.keras has the model's layers and weights, FILE.weights.h5 only its weights.
    """
    paths = [f"{model_dir.rstrip('/')}/{name}" for name in names]
    with tempfile.TemporaryDirectory() as folder:
        copies = [os.path.join(folder, name) for name in names]  # Keras writes only local files
        for copy in copies:
            (model.save if copy.endswith(".keras") else model.save_weights)(copy)
        with usable(model_dir):
            for copy, path in zip(copies, paths, strict=True):
                put(copy, path)
    return paths


def put(local: str, path: str) -> None:
    """Copy a local file atomically to `path`, local or gs://. Raises: TensorFlow's OpError."""
    if "://" in path:  # uploads are atomic
        tf.io.gfile.copy(local, path, overwrite=True)
        return
    tf.io.gfile.makedirs(os.path.dirname(os.path.abspath(path)))
    tf.io.gfile.copy(local, f"{path}.part", overwrite=True)
    tf.io.gfile.rename(f"{path}.part", path, overwrite=True)


@contextlib.contextmanager
def usable(folder: str) -> Iterator[None]:
    try:
        yield
    except (tf.errors.OpError, ValueError, OSError) as error:
        raise OutputError(
            f"--model-dir {folder}: the folder cannot be used ({_first_line(error)})",
            remedy="give a new folder or this training run's folder, free disk space, or grant write permission",
        ) from error


def _first_line(error: BaseException) -> str:
    return _WHERE.sub("", str(error).strip().partition("\n")[0])[:200]


@dataclasses.dataclass
class History:
    """Evaluations of a training run by step, with their file in the model folder.

    `metric`: the metric that ranks them. `writes`: whether this process writes the file.
    """

    model_dir: str
    metric: str
    writes: bool = True
    evaluations: dict[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def open(self, start: int) -> None:
        """Load the evaluations up to step `start`, if any, from the file. Raises: OutputError if it is damaged."""
        path = f"{self.model_dir.rstrip('/')}/{_EVALUATIONS}"
        if not start or not tf.io.gfile.exists(path):
            return
        try:
            for entry in read_json(path):
                values = {name: math.nan if value is None else float(value) for name, value in entry["metrics"].items()}
                if int(entry["step"]) <= start:
                    self.evaluations[int(entry["step"])] = values
        except (tf.errors.OpError, PrepError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise OutputError(
                f"{path}: cannot be read ({type(error).__name__}), expected the evaluations of this training run",
                remedy="delete this file; the best evaluation is then chosen from the later ones",
            ) from error

    def add(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Add an evaluation to the file, and return whether it is the best so far. Raises: OutputError."""
        self.evaluations.pop(step, None)
        self.evaluations[step] = dict(metrics)
        if self.writes:
            entries = [{"step": at, "metrics": as_json(values)} for at, values in self.evaluations.items()]
            write_json(self.model_dir, _EVALUATIONS, entries)
        return self.best == step

    @property
    def best(self) -> int | None:
        """Step of the best evaluation (the earliest of equal ones); None if the metric is nowhere a number."""
        values = {step: metrics.get(self.metric, math.nan) for step, metrics in self.evaluations.items()}
        steps = [step for step, value in values.items() if not math.isnan(value)]
        choose = min if self.metric in LOWER_IS_BETTER else max
        return choose(steps, key=lambda step: values[step], default=None)

    @property
    def since_best(self) -> int:
        """Number of evaluations after the best one; of all evaluations if `best` is None."""
        best = self.best
        return sum(best is None or step > best for step in self.evaluations)
