"""The command line: `train-tpu`, and its commands `predict` and `export`. Thin: options become a TrainConfig, errors
become two lines.

TensorFlow is imported only when the options are in order. Exit status: 0 done, 1 an error with its cause and remedy,
2 a wrong option, 130 Ctrl-C. People read stderr, programs read stdout (--json).
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import cloup

import tfrecord_io
from pipelines.terminal.console import TwoLineErrors, errors
from pipelines.train import config as configs
from pipelines.train import targets, tensorflow_ready
from pipelines.train.errors import usual_remedies
from pipelines.train.export.command import export
from pipelines.train.predict.command import predict
from tfrecord_io.errors import PrepError

__all__ = ["main"]

_INTERRUPTED = ("interrupted", "run the same command again; it goes on from the last checkpoint in --model-dir")

_METAVARS = {
    "data": "OUT",
    "weights": "W,W",
    "temperature": "T",
    "model": "MODEL",
    "model_dir": "DIR",
    "tpu": "WHERE",
    "replicas": "N",
    "num_labels": "N",
    "steps": "N",
    "epochs": "N",
    "global_batch_size": "N",
    "replica_batch_size": "N",
    "accumulate": "N",
    "warmup_ratio": "SHARE",
    "early_stopping": "N",
    "best_metric": "NAME",
    "profile_steps": "A:B",
}
# Every field of TrainConfig by group, in the order of --help. Kinds and defaults are the fields'.
_HELP = {
    "Data": {
        "data": "Folder that prep-tfrecords built, local or gs://. Repeat it to mix several.",
        "weights": "Shares of several --data, in their order, such as 0.7,0.3. Default: by size.",
        "temperature": "Mix several --data at rates of size ** (1 / temperature).",
        "train_split": "Split to train on.",
        "eval_split": "Split to evaluate on. Default: validation or test, if there is one.",
    },
    "Task and model": {
        "task": "What to learn: labels, labels of tokens, answers, hidden or next tokens, or targets.",
        "model": "bert-, gpt2-, t5- or bart-SIZE from scratch (tiny to large), package.module:build, a KerasHub "
        "preset, hf://OWNER/NAME, or a folder.",
        "from_scratch": "Take only a preset's architecture, with random weights and the data's vocabulary.",
        "freeze_backbone": "Train only the head.",
        "dropout": "Share of values to drop, in models from scratch.",
        "pooling": "What stands for a row, for classify.",
        "num_labels": "Number of labels, for classify and tokens. Default: what the data show.",
        "mask_probability": "Share of tokens to predict, for mlm.",
        "decoder_start": "What targets begin with, for seq2seq. auto: eos for BART, else pad.",
        "label_smoothing": "Share of the target that is spread over all classes.",
    },
    "Length and rate": {
        "global_batch_size": "Rows in one step, on all replicas together. Default: 32.",
        "replica_batch_size": "Rows in one step on each replica, instead of --global-batch-size.",
        "accumulate": "Parts into which each replica cuts its rows of a step, to need less memory.",
        "steps": "Steps in all, earlier runs included. Default: 1000.",
        "epochs": "How often to read every row, such as 3 or 0.5, instead of --steps.",
        "learning_rate": "Highest learning rate, which is reached after the warm-up.",
        "warmup": "Steps in which the rate rises.",
        "warmup_ratio": "Share of all steps in which the rate rises, instead of --warmup.",
        "schedule": "How the rate goes on after that: fall to 0 as a cosine or a line, or stay.",
        "weight_decay": "Weight decay of AdamW; biases and norms have none.",
        "clip_norm": "Highest norm of all gradients together.",
        "seed": "Seed of weights, order, masks and dropout.",
        "order": "global: each batch follows from seed and step, on any devices, and can be traced to its rows.",
    },
    "Evaluate and keep": {
        "model_dir": "Folder for checkpoints, logs and the final model; local or gs://. Not needed with --preflight.",
        "eval_every": "Steps between evaluations; there is one more at the end. 0: only that.",
        "save_every": "Steps between checkpoints; there is one more at the end. 0: only that.",
        "keep_checkpoints": "Number of checkpoints to keep.",
        "early_stopping": "End after so many evaluations in a row without a better one.",
        "keep_best": "Keep a checkpoint of the best evaluation; the final model is that one.",
        "best_metric": "Metric by which an evaluation is better. Default: loss.",
        "log_every": "Steps between progress lines.",
        "profile_steps": "Steps to profile for TensorBoard, such as 11:20.",
    },
    "Where and how": {
        "tpu": "auto, local, none, a TPU's name, or grpc://IP:8470.",
        "zone": "Zone of the TPU that --tpu names.",
        "project": "Project of the TPU that --tpu names.",
        "backend": "What drives the devices. auto: JAX on a TPU VM (unless tensorflow-tpu is there), else TensorFlow.",
        "shard_model": "Divide weights and optimizer state among the devices, for a model beyond one chip; JAX.",
        "replicas": "GPUs to use, or parts to split the CPU into.",
        "precision": "Number format of the computation.",
        "steps_per_call": "Steps that run on the devices before Python gets control again.",
        "jit_compile": "Compile with XLA on CPU or GPU, as a TPU and JAX always do; each replica compiles anew.",
        "deterministic": "Use slower operations that give the same bits every time, on GPUs too.",
    },
}


def _config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command an option for each field of TrainConfig: `steps: int = 1000` becomes --steps."""
    for title, texts in reversed(_HELP.items()):
        command = cloup.option_group(title, *(_config_option(name, text) for name, text in texts.items()))(command)
    return command


def _config_option(name: str, text: str) -> Callable[[Any], Any]:
    kind = get_type_hints(configs.TrainConfig)[name]
    default = {field.name: field.default for field in dataclasses.fields(configs.TrainConfig)}[name]
    given: dict[str, Any] = {"help": text, "metavar": _METAVARS.get(name)}
    if kind is bool:
        given["is_flag"] = True
    else:
        given["type"] = _click_type(kind)
        given.update({"required": True} if default is dataclasses.MISSING else {"default": default})
        given["show_default"] = default != ""
        given["multiple"] = name == "data"
    return click.option("--" + name.replace("_", "-"), name, **given)


def _click_type(kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(list(get_args(kind)))
    return next((each for each in get_args(kind) if each is not type(None)), kind)  # of `int | None`, int


# Shown below the options; \b keeps its lines as they are.
_EXAMPLES = """\b
Examples:
  train-tpu --data out/imdb --task classify --model bert-base \\
      --model-dir out/model --global-batch-size 64 --steps 2000
  train-tpu --data gs://BUCKET/wiki --task mlm --model bert-base \\
      --model-dir gs://BUCKET/bert --tpu local --precision bfloat16"""


class _Program(TwoLineErrors, cloup.Group):
    """Trains without the name of a command; the training's required options are then asked for, and only then."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            ctx.fail(f"no command {args[0]!r}, expected options, or one of {', '.join(self.list_commands(ctx))}")
        completing = ctx.resilient_parsing  # the shell asks for what fits, and nothing is required yet
        ctx.resilient_parsing = completing or (bool(args) and args[0] in self.commands)
        rest = super().parse_args(ctx, args)
        ctx.resilient_parsing = completing
        return rest


@click.group(
    cls=_Program,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND …]",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True},
    epilog=_EXAMPLES,
)
@click.version_option(tfrecord_io.__version__, prog_name="train-tpu")
@_config_options
@cloup.option_group(
    "Preflight",
    click.option(
        "--preflight", metavar="SLICE", help="Train nothing: compile the step for a TPU such as v5e-8, without it."
    ),
    click.option("--largest-batch/--no-largest-batch", default=True, help="Look for the largest batch that fits."),
    click.option(
        "--preflight-minutes",
        type=click.FloatRange(min=0, min_open=True),
        default=60.0,
        help="Longest time that it may take.",
    ),
    click.option(
        "--price-per-chip-hour",
        type=click.FloatRange(min=0),
        metavar="PRICE",
        help="What a chip costs in an hour, in any currency, to say what all steps cost at least.",
    ),
)
@cloup.option_group(
    "Messages",
    click.option("--json", "as_json", is_flag=True, help="Write metrics as JSON lines on stdout."),
    click.option("--verbose", "-v", is_flag=True, help="Show TensorFlow's logs, and a traceback on errors."),
)
@click.pass_context
def main(
    ctx: click.Context,
    /,
    as_json: bool,
    verbose: bool,
    preflight: str | None,
    largest_batch: bool,
    preflight_minutes: float,
    price_per_chip_hour: float | None,
    **options: Any,
) -> None:
    """Train a model on a dataset of prep-tfrecords, on a TPU, on GPUs or on the CPU.

    Run again with the same options, it goes on where it stopped. A COMMAND does something with a trained model.
    """
    if ctx.invoked_subcommand is not None:
        return
    result = {"name": preflight, "look_for_largest": largest_batch, "minutes": preflight_minutes}
    result["price_per_chip_hour"] = price_per_chip_hour
    with errors(verbose=verbose, interrupted=_INTERRUPTED), usual_remedies("train-tpu"):
        config = configs.TrainConfig(**options)
        if preflight is None:
            config.require_model_dir()  # before TensorFlow, which takes seconds to start
        trained = _train(config, as_json=as_json, verbose=verbose, result=result if preflight is not None else None)
    if as_json and trained is not None and trained.model_path:  # which one process of several writes
        click.echo(json.dumps({"steps": trained.steps, "model": trained.model_path, **trained.metrics}))


def _train(config: configs.TrainConfig, *, as_json: bool, verbose: bool, result: dict[str, Any] | None) -> Any:
    """What `run.train` gives, or None after a preflight."""
    if config.order == "global" and any(folder.startswith("gs://") for folder in config.data_folders):
        tensorflow_ready.ask_for_exact_ranges()
    target = targets.choose(config.tpu, environment=os.environ, chips_here=targets.has_tpu_chips())
    backend = targets.backend(config.backend, target) if result is None else "tensorflow"
    tensorflow_ready.load(verbose=verbose, backend=backend)
    import tensorflow as tf

    from pipelines.train import run

    try:
        if result is not None:
            from pipelines.train.preflight import command

            return command.run_preflight(config, as_json=as_json, **result)
        return run.train(config, as_json=as_json)
    except tf.errors.OpError as error:  # what the graph meets while it reads, such as a damaged record
        raise _explained(error, config) from error


def _explained(error: Any, config: configs.TrainConfig) -> PrepError:
    """What an error of TensorFlow's graph means for the user."""
    import tensorflow as tf

    said = f"{type(error).__name__}: {str(error.message).partition(chr(10))[0][:300]}"
    # A full disk is of this kind too.
    if isinstance(error, tf.errors.ResourceExhaustedError) and "No space left" not in said:
        return PrepError(
            f"{_batch_option(config)} with --model {config.model}: out of memory ({said})",
            remedy="give --accumulate, lower the batch size, choose a smaller model, or --precision bfloat16",
        )
    folders = config.data_folders
    return PrepError(
        f"{' + '.join(folders)}: {said}",
        remedy=f"run `prep-tfrecords verify {folders[0]}`, which finds damaged data; --verbose shows more",
    )


def _batch_option(config: configs.TrainConfig) -> str:
    if config.global_batch_size is None:
        return f"--replica-batch-size {config.replica_batch_size}"
    return f"--global-batch-size {config.global_batch_size}"


main.add_command(predict)
main.add_command(export)

if __name__ == "__main__":
    sys.exit(main())
