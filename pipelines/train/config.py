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
import re
from typing import Any, Literal, get_args

from tfrecord_io.errors import ConfigError

__all__ = ["Backend", "DecoderStart", "Order", "Pooling", "Precision", "Schedule", "Task", "TrainConfig"]

Task = Literal["classify", "tokens", "span", "mlm", "clm", "seq2seq"]
Backend = Literal["auto", "tensorflow", "jax"]
Precision = Literal["float32", "bfloat16"]
Order = Literal["hosts", "global"]
Pooling = Literal["auto", "first", "mean", "last"]
Schedule = Literal["cosine", "linear", "constant"]
DecoderStart = Literal["auto", "pad", "bos", "eos", "cls", "sep"]

_STEPS, _BATCH_ROWS = 1000, 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All options of a training. Raises: ConfigError if one is wrong or two contradict each other.

    `model_dir` is empty where nothing is to be written, as in a preflight. Steps that are given as `epochs`, and a
    batch that is given as `replica_batch_size`, are numbers once `sized` knows rows and replicas; until then `steps`
    and `global_batch_size` are None.
    """

    data: str | tuple[str, ...]
    task: Task
    model: str
    model_dir: str = ""
    global_batch_size: int | None = None
    replica_batch_size: int | None = None
    accumulate: int = 1
    steps: int | None = None
    epochs: float | None = None
    weights: str | None = None
    temperature: float | None = None
    train_split: str = "train"
    eval_split: str | None = None
    tpu: str = "auto"
    zone: str | None = None
    project: str | None = None
    backend: Backend = "auto"
    shard_model: bool = False
    replicas: int | None = None
    learning_rate: float = 1e-4
    warmup: int = 0
    warmup_ratio: float | None = None
    schedule: Schedule = "cosine"
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    label_smoothing: float = 0.0
    dropout: float = 0.1
    mask_probability: float = 0.15
    pooling: Pooling = "auto"
    decoder_start: DecoderStart = "auto"
    from_scratch: bool = False
    freeze_backbone: bool = False
    num_labels: int | None = None
    seed: int = 0
    order: Order = "hosts"
    precision: Precision = "float32"
    jit_compile: bool = False
    deterministic: bool = False
    steps_per_call: int = 1
    log_every: int = 10
    eval_every: int = 0
    save_every: int = 0
    keep_checkpoints: int = 3
    early_stopping: int | None = None
    keep_best: bool = False
    best_metric: str | None = None
    profile_steps: str | None = None

    def __post_init__(self) -> None:
        self._check_kinds()
        self._check_numbers()
        self._check_alternatives()
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", _STEPS)
        if self.global_batch_size is None and self.replica_batch_size is None:
            object.__setattr__(self, "global_batch_size", _BATCH_ROWS)
        self._check_counts()
        self._check_together()
        self._check_best()
        self._check_mixture()

    def _check_kinds(self) -> None:
        kinds = {
            "task": Task,
            "backend": Backend,
            "order": Order,
            "precision": Precision,
            "pooling": Pooling,
            "schedule": Schedule,
            "decoder_start": DecoderStart,
        }
        for name, allowed in kinds.items():
            if getattr(self, name) not in get_args(allowed):
                raise ConfigError(f"{_flag(name)} {getattr(self, name)!r}, expected one of {get_args(allowed)}")

    def _check_numbers(self) -> None:
        for name in ("accumulate", "steps_per_call", "log_every", "keep_checkpoints"):
            _check_whole(name, getattr(self, name), least=1)
        for name in ("warmup", "eval_every", "save_every", "seed"):
            _check_whole(name, getattr(self, name), least=0)
        for name in (
            *("steps", "global_batch_size", "replica_batch_size"),
            *("replicas", "num_labels", "early_stopping"),
        ):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), least=1)
        if self.epochs is not None:
            _check_range("epochs", self.epochs, above=0.0, below=math.inf)
        if self.warmup_ratio is not None:
            _check_range("warmup_ratio", self.warmup_ratio, least=0.0, below=1.0)
        _check_range("learning_rate", self.learning_rate, above=0.0)
        _check_range("clip_norm", self.clip_norm, above=0.0)
        _check_range("weight_decay", self.weight_decay, least=0.0)
        _check_range("label_smoothing", self.label_smoothing, least=0.0, below=1.0)
        _check_range("dropout", self.dropout, least=0.0, below=1.0)
        _check_range("mask_probability", self.mask_probability, above=0.0, below=1.0)

    def _check_alternatives(self) -> None:
        for one, other in (
            ("steps", "epochs"),
            ("global_batch_size", "replica_batch_size"),
            ("warmup", "warmup_ratio"),
        ):
            # No warm-up at all is the default of one, and agrees with any share.
            if getattr(self, one) not in (None, 0) and getattr(self, other) is not None:
                raise ConfigError(f"{_flag(one)} and {_flag(other)} together, expected one of them")

    def _check_counts(self) -> None:
        for name in ("steps", "log_every", "eval_every", "save_every"):
            if (getattr(self, name) or 0) % self.steps_per_call:
                raise ConfigError(
                    f"{_flag(name)} {getattr(self, name)} with --steps-per-call {self.steps_per_call}, "
                    "expected a multiple: nothing can be done in the middle of a call",
                    remedy=f"choose {_flag(name)} as a multiple of {self.steps_per_call}, or fewer steps a call",
                )
        if (span := self.profiled) is not None and (
            (span[0] - 1) % self.steps_per_call or span[1] % self.steps_per_call
        ):
            raise ConfigError(
                f"--profile-steps {self.profile_steps} with --steps-per-call {self.steps_per_call}, expected whole "
                "calls: a profile begins and ends between two",
                remedy=f"choose for example --profile-steps {self.steps_per_call + 1}:{2 * self.steps_per_call}",
            )

    def _check_together(self) -> None:
        if self.steps is not None and self.warmup >= self.steps:
            raise ConfigError(f"--warmup {self.warmup}, expected fewer steps than the {self.steps} of the training")
        if self.replica_batch_size is not None or self.replicas is not None:
            self.require_equal_parts(self.replicas or 1)
        if (self.zone or self.project) and self.tpu in ("local", "none"):
            raise ConfigError(
                f"--zone and --project with --tpu {self.tpu}, expected them only with the name of a TPU",
                remedy="leave them out, or give --tpu NAME",
            )

    def _check_best(self) -> None:
        wanted = [name for name in ("early_stopping", "keep_best") if getattr(self, name)]
        if wanted and not self.eval_every:
            raise ConfigError(
                f"{_flag(wanted[0])} without --eval-every, expected evaluations to choose from",
                remedy="give --eval-every STEPS",
            )
        if self.best_metric is not None and not wanted:
            raise ConfigError(
                f"--best-metric {self.best_metric} by itself, expected something that is decided by it",
                remedy="add --early-stopping N, or --keep-best",
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

    @property
    def total_steps(self) -> int:
        """Steps in all, once they are known."""
        assert self.steps is not None, "`sized` was called"
        return self.steps

    @property
    def batch_rows(self) -> int:
        """Rows of a global batch, once they are known."""
        assert self.global_batch_size is not None, "`sized` was called"
        return self.global_batch_size

    @property
    def profiled(self) -> tuple[int, int] | None:
        """The first and the last step of a profile."""
        if self.profile_steps is None:
            return None
        match = re.fullmatch(r"([0-9]{1,15}):([0-9]{1,15})", self.profile_steps)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(f"--profile-steps {self.profile_steps!r}, expected two steps such as 11:20")
        return int(match[1]), int(match[2])

    def sized(self, *, rows: int, replicas: int) -> TrainConfig:
        """The same training in numbers of steps and rows, on so many replicas, of a split with `rows` rows.

        An epoch is as many steps as it takes to read that many rows; a part of a step counts as a whole one, and a part
        of a call as a whole call.

        Raises: ConfigError if the numbers that come out contradict another option.
        """
        batch = self.global_batch_size or self.replica_batch_size * replicas  # type: ignore[operator]
        steps = self.steps
        if steps is None:
            assert self.epochs is not None, "one of the two is given"
            calls = math.ceil(self.epochs * rows / batch / self.steps_per_call - 1e-9)
            steps = max(1, calls) * self.steps_per_call
        warmup = self.warmup if self.warmup_ratio is None else math.floor(self.warmup_ratio * steps)
        return dataclasses.replace(
            self,
            global_batch_size=batch,
            replica_batch_size=None,
            steps=steps,
            epochs=None,
            warmup=warmup,
            warmup_ratio=None,
        )

    def require_equal_parts(self, replicas: int, *, place: str = "") -> None:
        """Raises: ConfigError if so many replicas cannot share a batch, or cut their share into `accumulate` parts.
        `place` is what has them, such as v3-8.
        """
        if self.global_batch_size is None:
            self._require_parts("replica_batch_size", 1, "", "every part of it has equally many rows")
        else:
            where = f" on {replicas} replicas{place and f' of {place}'}"
            self._require_parts("global_batch_size", replicas, where, "every replica gets equally many rows")

    def _require_parts(self, name: str, replicas: int, where: str, why: str) -> None:
        size, parts = getattr(self, name), replicas * self.accumulate
        if rest := size % parts:
            lower, upper = size - rest, size - rest + parts
            cut = f" with --accumulate {self.accumulate}" if self.accumulate > 1 else ""
            raise ConfigError(
                f"{_flag(name)} {size}{where}{cut}, expected a multiple of {parts}: {why}",
                remedy=f"give {_flag(name)} {f'{lower} or ' if lower else ''}{upper}",
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
        names = ("task", "model", "global_batch_size", "seed", "train_split", "mask_probability", "pooling")
        # Younger options: only where they are used, so that older trainings go on.
        younger = {"decoder_start": "auto", "from_scratch": False, "freeze_backbone": False, "order": "hosts"}
        used = [name for name, default in younger.items() if getattr(self, name) != default]
        return {name: getattr(self, name) for name in (*names, *used)}


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
