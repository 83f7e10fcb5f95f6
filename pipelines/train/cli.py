"""The command line: `train-tpu`. Thin: options become a TrainConfig, errors become two lines.

TensorFlow is imported only when the options are in order. Exit status: 0 done, 1 an error with its cause and remedy,
2 a wrong option, 130 Ctrl-C. People read stderr, programs read stdout (--json).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

import tfrecord_io
from pipelines.terminal import tensorflow_start
from pipelines.terminal.console import errors
from pipelines.train import config as configs
from tfrecord_io.errors import ConfigError, PrepError

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
}
# Every field of TrainConfig, in the order of --help. Kinds and defaults are the fields'.
_HELP = {
    "data": "Folder that prep-tfrecords built, local or gs://. Repeat it to mix several.",
    "weights": "Of several --data, in their order, such as 0.7,0.3. Default: by size.",
    "temperature": "Of several --data: rates are sizes ** (1 / temperature).",
    "task": "What to learn: labels, labels of tokens, hidden or next tokens.",
    "model": "bert-SIZE or gpt2-SIZE from scratch (tiny to large), package.module:build, a KerasHub preset, "
    "hf://OWNER/NAME, or a folder.",
    "model_dir": "Checkpoints, logs, final model; local or gs://. Not needed with --preflight.",
    "tpu": "auto, local, none, a TPU's name, or grpc://IP:8470.",
    "zone": "Of the TPU, with its name.",
    "project": "Of the TPU, with its name.",
    "replicas": "GPUs to use, or parts to split the CPU into.",
    "train_split": "Split to train on.",
    "eval_split": "Split to evaluate on. Default: validation or test, if there is one.",
    "global_batch_size": "Rows in one step, on all replicas together.",
    "steps": "Steps in all, earlier runs included.",
    "steps_per_call": "Steps that run on the devices between looks of Python.",
    "log_every": "Steps between progress lines.",
    "eval_every": "Steps between evaluations; one more at the end. 0: only that.",
    "save_every": "Steps between checkpoints; one more at the end. 0: only that.",
    "keep_checkpoints": "How many to keep.",
    "learning_rate": "The highest, after the warm-up.",
    "warmup": "Steps in which the rate rises; then it falls as a cosine to 0.",
    "weight_decay": "Of AdamW; not for biases and norms.",
    "clip_norm": "Highest norm of all gradients together.",
    "label_smoothing": "Share of the target spread over all classes.",
    "dropout": "For models from scratch.",
    "mask_probability": "For mlm: share of tokens to predict.",
    "pooling": "For classify: what stands for a row.",
    "num_labels": "For classify and tokens, where the manifest names no labels.",
    "seed": "Decides weights, order, masks and dropout.",
    "order": "global: each batch follows from seed and step, on any devices, and can be traced to its rows.",
    "precision": "Of the computation.",
    "loop": "tf.range in a tf.function, or Keras fit.",
    "jit_compile": "Compile with XLA on CPU or GPU, as a TPU always does; each replica compiles anew.",
    "deterministic": "Slower ops that give the same bits every time, on GPUs too.",
}


def _config_options(command: Callable[..., None]) -> Callable[..., None]:
    """An option for each field of TrainConfig: `steps: int = 1000` becomes --steps."""
    kinds = get_type_hints(configs.TrainConfig)
    fields = {field.name: field for field in dataclasses.fields(configs.TrainConfig)}
    for name, text in reversed(_HELP.items()):
        flag, kind, default = "--" + name.replace("_", "-"), kinds[name], fields[name].default
        given: dict[str, Any] = {"help": text, "metavar": _METAVARS.get(name)}
        if kind is bool:
            given["is_flag"] = True
        else:
            given["type"] = _click_type(kind)
            given.update({"required": True} if default is dataclasses.MISSING else {"default": default})
            given["show_default"] = default != ""
            given["multiple"] = name == "data"
        command = click.option(flag, name, **given)(command)
    return command


def _click_type(kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(list(get_args(kind)))
    return next((each for each in get_args(kind) if each is not type(None)), kind)  # of `int | None`, int


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True})
@click.version_option(tfrecord_io.__version__, prog_name="train-tpu")
@_config_options
@click.option(
    "--preflight", metavar="SLICE", help="Train nothing: compile the step for a TPU such as v3-8, without it."
)
@click.option("--largest-batch/--no-largest-batch", default=True, help="With --preflight: look for what just fits.")
@click.option("--preflight-minutes", type=click.FloatRange(min=0, min_open=True), default=60.0, help="At most.")
@click.option("--json", "as_json", is_flag=True, help="Metrics as JSON lines on stdout.")
@click.option("--verbose", is_flag=True, help="Show TensorFlow's logs, and a traceback on errors.")
def main(
    as_json: bool, verbose: bool, preflight: str | None, largest_batch: bool, preflight_minutes: float, **options: Any
) -> None:
    """Train a model on a dataset of prep-tfrecords, on a TPU, on GPUs or on the CPU.

    Run again with the same options, it goes on where it stopped.
    """
    result = {"name": preflight, "look_for_largest": largest_batch, "minutes": preflight_minutes}
    with errors(verbose=verbose, interrupted=_INTERRUPTED):
        try:
            config = configs.TrainConfig(**options)
            if preflight is None:
                config.require_model_dir()  # before TensorFlow, which takes seconds to start
            trained = _train(config, as_json=as_json, verbose=verbose, result=result if preflight is not None else None)
        except PrepError as error:
            error.remedy = error.remedy or _usual_remedy(error)
            raise
    if as_json and trained is not None:
        click.echo(json.dumps({"steps": trained.steps, "model": trained.model_path, **trained.metrics}))


def _train(config: configs.TrainConfig, *, as_json: bool, verbose: bool, result: dict[str, Any] | None) -> Any:
    """What `run.train` gives, or None after a preflight."""
    os.environ["KERAS_BACKEND"] = "tensorflow"  # the only one that knows tf.distribute
    try:
        tensorflow_start.load(verbose=verbose)
        from pipelines.train import run
    except ImportError as error:
        raise ConfigError(
            f"training needs TensorFlow and Keras, which cannot be imported ({error})",
            remedy="run `pip install '.[train]'`",
        ) from error
    if not verbose:
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
    import tensorflow as tf

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
            f"--global-batch-size {config.global_batch_size} with --model {config.model}: out of memory ({said})",
            remedy="lower --global-batch-size, choose a smaller model, or --precision bfloat16",
        )
    folders = config.data_folders
    return PrepError(
        f"{' + '.join(folders)}: {said}",
        remedy=f"run `prep-tfrecords verify {folders[0]}`, which finds damaged data; --verbose shows more",
    )


def _usual_remedy(error: PrepError) -> str:
    if isinstance(error, ConfigError):
        return "`train-tpu --help` says what each option takes"
    return "--verbose shows where it comes from"


if __name__ == "__main__":
    sys.exit(main())
