"""What a training is asked to do: one frozen dataclass that checks itself, without TensorFlow.

Three counts of steps divide each other, since Python regains control only between calls of a compiled function:

    steps_per_call   steps that one call runs on the devices without Python          (how often Python looks)
    log_every        a progress line and TensorBoard scalars
    eval_every       a whole pass over the evaluation split
    save_every       a checkpoint
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, get_args

from tfrecord_io.errors import ConfigError

__all__ = ["Loop", "Order", "Pooling", "Precision", "Task", "TrainConfig"]

Task = Literal["classify", "tokens", "mlm", "clm"]
Loop = Literal["custom", "keras"]
Precision = Literal["float32", "bfloat16"]
Order = Literal["hosts", "global"]
Pooling = Literal["auto", "first", "mean", "last"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All options of a training. Raises: ConfigError if one is wrong or two contradict each other.

    `model_dir` is empty where nothing is to be written, as in a preflight.
    """

    data: str | tuple[str, ...]
    task: Task
    model: str
    model_dir: str = ""
    global_batch_size: int = 32
    steps: int = 1000
    weights: str | None = None
    temperature: float | None = None
    train_split: str = "train"
    eval_split: str | None = None
    tpu: str = "auto"
    zone: str | None = None
    project: str | None = None
    replicas: int | None = None
    learning_rate: float = 1e-4
    warmup: int = 0
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    label_smoothing: float = 0.0
    dropout: float = 0.1
    mask_probability: float = 0.15
    pooling: Pooling = "auto"
    num_labels: int | None = None
    seed: int = 0
    order: Order = "hosts"
    precision: Precision = "float32"
    loop: Loop = "custom"
    jit_compile: bool = False
    deterministic: bool = False
    steps_per_call: int = 1
    log_every: int = 10
    eval_every: int = 0
    save_every: int = 0
    keep_checkpoints: int = 3

    def __post_init__(self) -> None:
        choices = {"task": Task, "loop": Loop, "order": Order, "precision": Precision, "pooling": Pooling}
        for name, allowed in choices.items():
            if getattr(self, name) not in get_args(allowed):
                raise ConfigError(f"{_flag(name)} {getattr(self, name)!r}, expected one of {get_args(allowed)}")
        for name in ("global_batch_size", "steps", "steps_per_call", "log_every", "keep_checkpoints"):
            _check_whole(name, getattr(self, name), least=1)
        for name in ("warmup", "eval_every", "save_every", "seed"):
            _check_whole(name, getattr(self, name), least=0)
        for name in ("replicas", "num_labels"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), least=1)
        _check_range("learning_rate", self.learning_rate, above=0.0)
        _check_range("clip_norm", self.clip_norm, above=0.0)
        _check_range("weight_decay", self.weight_decay, least=0.0)
        _check_range("label_smoothing", self.label_smoothing, least=0.0, below=1.0)
        _check_range("dropout", self.dropout, least=0.0, below=1.0)
        _check_range("mask_probability", self.mask_probability, above=0.0, below=1.0)
        self._check_counts()
        self._check_together()
        self._check_mixture()

    def _check_counts(self) -> None:
        for name in ("steps", "log_every", "eval_every", "save_every"):
            if getattr(self, name) % self.steps_per_call:
                raise ConfigError(
                    f"{_flag(name)} {getattr(self, name)} with --steps-per-call {self.steps_per_call}, "
                    "expected a multiple: nothing can be done in the middle of a call",
                    remedy=f"choose {_flag(name)} as a multiple of {self.steps_per_call}, or fewer steps a call",
                )

    def _check_together(self) -> None:
        if self.warmup >= self.steps:
            raise ConfigError(f"--warmup {self.warmup}, expected fewer steps than --steps {self.steps}")
        if self.replicas is not None:
            self.require_equal_parts(self.replicas)
        if (self.zone or self.project) and self.tpu in ("local", "none"):
            raise ConfigError(
                f"--zone and --project with --tpu {self.tpu}, expected them only with the name of a TPU",
                remedy="leave them out, or give --tpu NAME",
            )

    def _check_mixture(self) -> None:
        num_folders, weights = len(self.data_folders), self.data_weights
        if not num_folders or not all(self.data_folders):
            raise ConfigError(
                "no --data, expected the folder of a dataset",
                remedy="give the folder that `prep-tfrecords build --output` wrote",
            )
        if num_folders == 1 and (self.weights is not None or self.temperature is not None):
            raise ConfigError(
                "--weights or --temperature with one --data, expected several to be mixed",
                remedy="repeat --data for each of them",
            )
        if weights is not None and (len(weights) != num_folders or not all(0 < each < math.inf for each in weights)):
            raise ConfigError(
                f"--weights {self.weights}, expected a number above 0 for each of the {num_folders} --data, in order",
            )
        if weights is not None and self.temperature is not None:
            raise ConfigError("--weights and --temperature, expected one of them")
        if self.temperature is not None:
            _check_range("temperature", self.temperature, above=0.0)

    @property
    def data_folders(self) -> tuple[str, ...]:
        """The folder of each dataset."""
        return (self.data,) if isinstance(self.data, str) else tuple(self.data)

    @property
    def data_weights(self) -> tuple[float, ...] | None:
        """A number for each dataset."""
        if self.weights is None:
            return None
        try:
            return tuple(float(each) for each in self.weights.split(","))
        except ValueError as error:
            raise ConfigError(f"--weights {self.weights!r}, expected numbers with commas, such as 0.7,0.3") from error

    def require_equal_parts(self, replicas: int, *, place: str = "") -> None:
        """Raises: ConfigError if so many replicas cannot share a batch. `place` is what has them, such as v3-8."""
        if rest := self.global_batch_size % replicas:
            lower, upper = self.global_batch_size - rest, self.global_batch_size - rest + replicas
            raise ConfigError(
                f"--global-batch-size {self.global_batch_size} on {replicas} replicas{place and f' of {place}'}, "
                f"expected a multiple of {replicas}: every replica gets equally many rows",
                remedy=f"give --global-batch-size {f'{lower} or ' if lower else ''}{upper}",
            )

    def require_model_dir(self) -> None:
        """Raises: ConfigError if there is no folder to write to."""
        if not self.model_dir:
            raise ConfigError(
                "no --model-dir, expected a folder for checkpoints, logs and the final model",
                remedy="give --model-dir DIR, local or gs://; only --preflight, which writes nothing, needs none",
            )

    def identity(self) -> dict[str, Any]:
        """What decides which batch a step sees and what it is for: what a resumed training must have in common."""
        names = ("task", "model", "global_batch_size", "seed", "train_split", "mask_probability", "pooling", "order")
        return {name: getattr(self, name) for name in names}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_whole(name: str, value: Any, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{_flag(name)} {value!r}, expected a whole number of at least {least}")


def _check_range(
    name: str, value: float, *, above: float = -math.inf, least: float = -math.inf, below: float = math.inf
) -> None:
    if not (above < value < below and value >= least):
        low = f"more than {above}" if above > -math.inf else f"at least {least}"
        high = f" and less than {below}" if below < math.inf else ""
        raise ConfigError(f"{_flag(name)} {value!r}, expected {low}{high}")
