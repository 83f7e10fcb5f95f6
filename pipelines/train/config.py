"""Options of training runs and predictions, as frozen dataclasses that validate themselves.

`steps`, `log_every`, `eval_every` and `save_every` must be multiples of `steps_per_call`, because Python runs only
between calls of a compiled function.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Literal

from pipelines.option_fields import check, option
from tfrecord_io.errors import ConfigError
from tfrecord_io.shown import some

Task = Literal["classify", "tokens", "span", "mlm", "clm", "seq2seq", "dpo", "reward"]
Backend = Literal["auto", "tensorflow", "jax"]
Precision = Literal["float32", "bfloat16"]
Order = Literal["hosts", "global"]
Pooling = Literal["auto", "first", "mean", "last"]
Schedule = Literal["cosine", "linear", "constant"]
DecoderStart = Literal["auto", "pad", "bos", "eos", "cls", "sep"]

GROUPS = ("Data", "Task and model", "Length and rate", "Evaluate and keep", "Where and how", "Preflight")
_data, _model, _length, _kept, _where, _preflight = (functools.partial(option, group=title) for title in GROUPS)

# Options that only --allow-changes may change in a resumed training run.
TUNED = ("learning_rate", "schedule", "weight_decay", "clip_norm", "dropout", "label_smoothing", "precision")
_SUFFIXES = (".parquet", ".jsonl")
PREDICT_GROUPS = ("What to predict", "Where and how")
_what, _place = (functools.partial(option, group=title) for title in PREDICT_GROUPS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Options of a training run. Raises: ConfigError if they are wrong or contradictory.

    `model_dir` may be empty for a preflight. With `epochs`, `steps` is None until `sized` computes the steps.
    """

    data: str | tuple[str, ...] = _data(
        "Folder of a dataset built by prep-tfrecords, local or gs://. Repeatable, for a mixture.", (), metavar="OUT"
    )
    weights: str | None = _data("Shares of the datasets, such as 0.7,0.3. Default: by size.", None, metavar="W,W")
    weights_from: tuple[str, ...] = _data(
        "Shares from a later step on, such as 1000:0.5,0.5. A share of 0 leaves a dataset out. Repeatable.",
        (),
        metavar="STEP:W,W",
    )
    temperature: float | None = _data(
        "Mix the datasets at rates of size ** (1 / temperature).", None, metavar="T", above=0
    )
    train_split: str = _data("Split to train on.", "train")
    eval_split: str | None = _data("Split to evaluate on. Default: validation or test, if present.", None)
    task: Task = _model(
        "What to learn: labels, labels of tokens, answers, hidden or next tokens, targets, or preferred answers."
    )
    model: str = _model(
        "bert-, gpt2-, t5- or bart-SIZE from scratch (tiny to xl), package.module:build, a KerasHub preset, "
        "hf://OWNER/NAME, or a folder.",
        metavar="MODEL",
    )
    from_scratch: bool = _model(
        "Use only a preset's architecture, with random weights and the dataset's vocabulary.", False
    )
    dropout: float = _model("Dropout rate, in models from scratch.", 0.1, least=0, below=1)
    pooling: Pooling = _model("For classify: how a row's states become one vector.", "auto")
    num_labels: int | None = _model("For classify and tokens: number of labels. Default: from the data.", None, least=1)
    mask_probability: float = _model("For mlm: share of tokens to predict.", 0.15, above=0, below=1)
    decoder_start: DecoderStart = _model(
        "For seq2seq: the decoder's start token. auto: eos for BART, else pad.", "auto"
    )
    beta: float = _model("For dpo: how strongly the model is kept near its reference.", 0.1, above=0)
    reference: str | None = _model(
        "For dpo: the reference model, named as for --model. Default: the initial weights of --model.",
        None,
        metavar="DIR",
    )
    label_smoothing: float = _model("Share of each target to spread over all classes.", 0.0, least=0, below=1)
    global_batch_size: int = _length("Rows per step over all replicas.", 32, least=1)
    accumulate: int = _length("Parts into which each replica cuts its rows of a step, to save memory.", 1, least=1)
    steps: int | None = _length("Total steps, including those of earlier runs. Default: 1000.", None, least=1)
    epochs: float | None = _length("Epochs, such as 3 or 0.5, instead of --steps.", None, metavar="N", above=0)
    learning_rate: float = _length("Highest learning rate, reached after the warm-up.", 1e-4, above=0)
    warmup: int = _length("Steps in which the learning rate rises.", 0, least=0)
    warmup_ratio: float | None = _length(
        "Instead of --warmup: warm-up as a share of all steps.", None, least=0, below=1
    )
    schedule: Schedule = _length(
        "Learning rate after the warm-up: falls to 0 as a cosine or a line, or stays.", "cosine"
    )
    weight_decay: float = _length("Weight decay of AdamW, except for biases and norms.", 0.01, least=0)
    clip_norm: float = _length("Highest global norm of the gradients.", 1.0, above=0)
    seed: int = _length("Seed of weights, order, masks and dropout.", 0, least=0)
    order: Order = _length(
        "global: batches depend only on seed and step, not on the hosts, and can be traced to rows.", "hosts"
    )
    model_dir: str = _kept("Folder for checkpoints, logs and the final model; local or gs://.", "", metavar="DIR")
    eval_every: int = _kept("Steps between evaluations. 0: only one at the end.", 0, least=0)
    save_every: int = _kept("Steps between checkpoints. 0: only one at the end.", 0, least=0)
    keep_checkpoints: int = _kept("Number of checkpoints to keep.", 3, least=1)
    early_stopping: int | None = _kept("Stop after this many evaluations without a better one.", None, least=1)
    keep_best: bool = _kept("Keep the best evaluation's checkpoint, and make it the final model.", False)
    best_metric: str | None = _kept("Metric that ranks evaluations. Default: loss.", None, metavar="NAME")
    allow_changes: bool = _kept("Continue in --model-dir with changed rates, dropout, smoothing or precision.", False)
    log_every: int = _kept("Steps between progress lines.", 10, least=1)
    tpu: str = _where("auto, local, none, a TPU's name, or grpc://IP:8470.", "auto", metavar="WHERE")
    zone: str | None = _where("Zone of the TPU that --tpu names.", None)
    project: str | None = _where("Project of the TPU that --tpu names.", None)
    backend: Backend = _where(
        "Framework. auto: JAX on a TPU VM (unless tensorflow-tpu is installed), else TensorFlow.", "auto"
    )
    shard_model: bool = _where("JAX: divide a model that is too large for one chip among the devices.", False)
    replicas: int | None = _where("GPUs to use, or parts to split the CPU into.", None, least=1)
    precision: Precision | None = _where(
        "Precision of the computation. Default: bfloat16 on a TPU, else float32.", None
    )
    steps_per_call: int = _where("Steps to run on the devices per call from Python.", 1, least=1)
    preflight: str | None = _preflight("Only compile the step, for a TPU such as v5e-8.", None, metavar="SLICE")
    largest_batch: bool = _preflight("Also find the largest batch that fits, with 2 to 4 more compilations.", False)
    preflight_minutes: float = _preflight("Time limit of a preflight.", 60.0, above=0)

    def __post_init__(self) -> None:
        check(self)
        for name, relative in (("steps", "epochs"), ("warmup", "warmup_ratio")):
            # --warmup 0 is the default.
            if getattr(self, name) not in (None, 0) and getattr(self, relative) is not None:
                raise ConfigError(
                    f"{_flag(name)} and {_flag(relative)} are given together, expected one of them",
                    remedy=f"leave {_flag(name)} or {_flag(relative)} out",
                )
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "steps", 1000)
        self._check_steps()
        self._check_best()
        self._check_mixture()

    def _check_steps(self) -> None:
        for name in ("steps", "log_every", "eval_every", "save_every"):
            if (getattr(self, name) or 0) % self.steps_per_call:
                raise ConfigError(
                    f"{_flag(name)} {getattr(self, name)} with --steps-per-call {self.steps_per_call}, expected a "
                    "multiple, since a call cannot be interrupted",
                    remedy=f"choose {_flag(name)} as a multiple of {self.steps_per_call}, or a lower --steps-per-call",
                )
        if self.steps is not None and self.warmup >= self.steps:
            raise ConfigError(
                f"--warmup {self.warmup}, expected fewer than the {some(self.steps, 'step')} of the training run",
                remedy="give a smaller --warmup or more --steps",
            )
        if self.replicas is not None:
            self.require_equal_parts(self.replicas)
        if (self.zone or self.project) and self.tpu in ("local", "none"):
            raise ConfigError(
                f"--zone or --project with --tpu {self.tpu}, expected these options only with a TPU's name",
                remedy="leave --zone and --project out, or give --tpu NAME",
            )

    def _check_best(self) -> None:
        wanted = [name for name in ("early_stopping", "keep_best") if getattr(self, name)]
        if wanted and not self.eval_every:
            raise ConfigError(
                f"{_flag(wanted[0])} needs --eval-every, because this option chooses among evaluations",
                remedy="give --eval-every STEPS",
            )
        if self.best_metric is not None and not wanted:
            raise ConfigError(
                f"--best-metric {self.best_metric} has no effect without --early-stopping or --keep-best",
                remedy="add --early-stopping N or --keep-best",
            )

    def _check_mixture(self) -> None:
        num_folders, stages = len(self.data_folders), self.data_stages
        options = " ".join([f"--weights {self.weights}", *(f"--weights-from {text}" for text in self.weights_from)])
        if not num_folders or not all(self.data_folders):
            raise ConfigError(
                "no --data, expected the folder of a dataset",
                remedy="give the folder that `prep-tfrecords build --output` wrote",
            )
        if num_folders == 1 and (stages or self.temperature is not None):
            raise ConfigError(
                "--weights or --temperature with one --data, expected several datasets",
                remedy="give --data once for each dataset",
            )
        if stages and self.temperature is not None:
            raise ConfigError(
                "--weights and --temperature are given together, expected one of them",
                remedy="leave --weights or --temperature out",
            )
        if list(stages) != sorted(stages) or 0 < len(stages) <= len(self.weights_from):
            raise ConfigError(f"{options}, expected ascending steps above 0", remedy="sort the --weights-from by step")
        least = math.ulp(0) if len(stages) == 1 else 0
        for weights in stages.values():
            if len(weights) != num_folders or not all(least <= weight < math.inf for weight in weights):
                raise ConfigError(
                    f"{options}, expected a number above 0 for each of the {num_folders} --data",
                    remedy="give the weights in the order of --data",
                )

    @property
    def data_folders(self) -> tuple[str, ...]:
        return (self.data,) if isinstance(self.data, str) else tuple(self.data)

    @property
    def data_stages(self) -> dict[int, tuple[float, ...]]:
        """Mixing weights of the datasets, by the first step that uses them; empty without --weights."""
        if self.weights_from and self.weights is None:
            raise ConfigError("--weights-from without --weights, expected both", remedy="give --weights for step 0")
        stages = {}
        for text in [] if self.weights is None else [f"0:{self.weights}", *self.weights_from]:
            step, _, weights = text.partition(":")
            try:
                stages[int(step)] = tuple(float(weight) for weight in weights.split(","))
            except ValueError as error:
                option = f"--weights-from {text!r}" if text in self.weights_from else f"--weights {weights!r}"
                raise ConfigError(
                    f"{option}, expected numbers such as 0.7,0.3 or 1000:0.5,0.5",
                    remedy="separate the shares by commas; --weights-from begins with a step and a colon",
                ) from error
        return stages

    @property
    def total_steps(self) -> int:
        """Steps of the whole training run. With `epochs`, call `sized` first."""
        assert self.steps is not None, "`sized` was called"
        return self.steps

    def sized(self, *, rows: int) -> TrainConfig:
        """Return the config with `epochs` and `warmup_ratio` converted to steps. An epoch has `rows` rows.

        The steps of epochs are rounded up to a multiple of `steps_per_call`. Raises: ConfigError.
        """
        steps = self.steps
        if steps is None:
            assert self.epochs is not None, "steps or epochs are given"
            calls = math.ceil(self.epochs * rows / self.global_batch_size / self.steps_per_call - 1e-9)
            steps = max(1, calls) * self.steps_per_call
        warmup = self.warmup if self.warmup_ratio is None else math.floor(self.warmup_ratio * steps)
        return dataclasses.replace(self, steps=steps, epochs=None, warmup=warmup, warmup_ratio=None)

    def require_equal_parts(self, replicas: int, *, place: str = "") -> None:
        """Check that `replicas * accumulate` divides the batch. `place`: such as v3-8. Raises: ConfigError."""
        accumulate = f" with --accumulate {self.accumulate}" if self.accumulate > 1 else ""
        devices = f"{some(replicas, 'replica')}{place and f' of {place}'}{accumulate}"
        _require_multiple("--global-batch-size", self.global_batch_size, replicas * self.accumulate, devices=devices)

    def require_model_dir(self) -> None:
        if not self.model_dir:
            raise ConfigError(
                "no --model-dir, expected a folder for checkpoints, logs and the final model",
                remedy="give --model-dir DIR, local or gs:// (only --preflight works without it)",
            )

    def identity(self) -> dict[str, Any]:
        """Return the options, by name, that identify a training run."""
        names = ("task", "model", "global_batch_size", "seed", "train_split", "mask_probability", "pooling")
        more = ("decoder_start", "from_scratch", "order")
        return {name: getattr(self, name) for name in (*names, *more, *TUNED)}


def _require_multiple(option: str, size: int, parts: int, *, devices: str) -> None:
    if rest := size % parts:
        lower, upper = size - rest, size - rest + parts
        raise ConfigError(
            f"{option} {size} on {devices}, expected a multiple of {parts}, so that all replicas get the same number "
            "of rows",
            remedy=f"give {option} {f'{lower} or ' if lower else ''}{upper}",
        )


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Options of a prediction. Raises: ConfigError if they are wrong or contradictory."""

    model_dir: str = _what("The --model-dir of a training run.", flags="--model", metavar="MODEL_DIR")
    data: str = _what("Folder of a dataset built by prep-tfrecords, local or gs://.", "", metavar="OUT")
    split: str = _what("Split to predict.", "test")
    output: str = _what("FILE.parquet or FILE.jsonl, local or gs://.", "", metavar="FILE")
    overwrite: bool = _what("Replace FILE if it exists.", False)
    generate: int = _what("For clm: tokens to generate after each row.", 0, least=0)
    beams: int = _what("For seq2seq and --generate: beams of the search; 1 is greedy.", 1, least=1)
    build: str | None = _what("Your own function that built the model, if any.", None, metavar="MODULE:FUNCTION")
    tpu: str = _place("auto, local, none, a TPU's name, or grpc://IP:8470.", "auto", metavar="WHERE")
    backend: Backend = _place("Framework, as for a training run.", "auto")
    zone: str | None = _place("Zone of the TPU that --tpu names.", None)
    project: str | None = _place("Project of the TPU that --tpu names.", None)
    replicas: int | None = _place("GPUs to use, or parts to split the CPU into.", None, least=1)
    batch_size: int = _place("Rows per batch over all replicas.", 32, least=1)

    def __post_init__(self) -> None:
        check(self)
        if not self.data or not self.output:
            raise ConfigError(
                f"no {'--output' if self.data else '--data'}, expected the folder of a dataset and a file to write",
                remedy="give --data OUT --output FILE.parquet, or a text with --fill-mask",
            )
        if not self.output.endswith(_SUFFIXES):
            raise ConfigError(
                f"--output {self.output}, expected a name that ends in {' or '.join(_SUFFIXES)}",
                remedy="give --output FILE.parquet or FILE.jsonl",
            )

    def require_equal_parts(self, replicas: int) -> None:
        _require_multiple("--batch-size", self.batch_size, replicas, devices=some(replicas, "replica"))
