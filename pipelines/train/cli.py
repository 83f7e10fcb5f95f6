"""The command line: `train-tpu`. Thin: options become a TrainConfig, errors become two lines.

TensorFlow is imported only when the options are in order. Exit status: 0 done, 1 an error with its cause and remedy,
2 a wrong option. People read stderr, programs read stdout (--json).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any, get_args

import click

import tfrecord_io
from pipelines.train import config as configs
from tfrecord_io.errors import ConfigError, PrepError

__all__ = ["main"]


def _choice(kind: Any) -> click.Choice:
    return click.Choice(list(get_args(kind)))


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True})
@click.version_option(tfrecord_io.__version__, prog_name="train-tpu")
@click.option("--data", required=True, metavar="OUT", help="Folder that prep-tfrecords built, local or gs://.")
@click.option("--task", required=True, type=_choice(configs.Task), help="What to learn: labels, hidden or next tokens.")
@click.option(
    "--model",
    required=True,
    metavar="MODEL",
    help="bert-SIZE or gpt2-SIZE from scratch (tiny to large), package.module:build, a KerasHub preset, "
    "hf://OWNER/NAME, or a folder.",
)
@click.option("--model-dir", required=True, metavar="DIR", help="Checkpoints, logs, final model; local or gs://.")
@click.option("--tpu", default="auto", metavar="WHERE", help="auto, local, none, a TPU's name, or grpc://IP:8470.")
@click.option("--zone", help="Of the TPU, with its name.")
@click.option("--project", help="Of the TPU, with its name.")
@click.option("--replicas", type=int, metavar="N", help="GPUs to use, or parts to split the CPU into.")
@click.option("--train-split", default="train", help="Split to train on.")
@click.option("--eval-split", help="Split to evaluate on. Default: validation or test, if there is one.")
@click.option("--global-batch-size", type=int, default=32, help="Rows in one step, on all replicas together.")
@click.option("--steps", type=int, default=1000, help="Steps in all, earlier runs included.")
@click.option("--steps-per-call", type=int, default=1, help="Steps that run on the devices between looks of Python.")
@click.option("--log-every", type=int, default=10, help="Steps between progress lines.")
@click.option("--eval-every", type=int, default=0, help="Steps between evaluations; one more at the end. 0: only that.")
@click.option("--save-every", type=int, default=0, help="Steps between checkpoints; one more at the end. 0: only that.")
@click.option("--keep-checkpoints", type=int, default=3, help="How many to keep.")
@click.option("--learning-rate", type=float, default=1e-4, help="The highest, after the warm-up.")
@click.option("--warmup", type=int, default=0, help="Steps in which the rate rises; then it falls as a cosine to 0.")
@click.option("--weight-decay", type=float, default=0.01, help="Of AdamW; not for biases and norms.")
@click.option("--clip-norm", type=float, default=1.0, help="Highest norm of all gradients together.")
@click.option("--label-smoothing", type=float, default=0.0, help="Share of the target spread over all classes.")
@click.option("--dropout", type=float, default=0.1, help="For models from scratch.")
@click.option("--mask-probability", type=float, default=0.15, help="For mlm: share of tokens to predict.")
@click.option("--pooling", type=_choice(configs.Pooling), default="auto", help="For classify: what stands for a row.")
@click.option("--num-labels", type=int, metavar="N", help="For classify, where the manifest names no labels.")
@click.option("--seed", type=int, default=0, help="Decides weights, order, masks and dropout.")
@click.option("--precision", type=_choice(configs.Precision), default="float32", help="Of the computation.")
@click.option("--loop", type=_choice(configs.Loop), default="custom", help="tf.range in a tf.function, or Keras fit.")
@click.option("--jit-compile", is_flag=True, help="Compile with XLA on CPU or GPU, as a TPU always does.")
@click.option("--deterministic", is_flag=True, help="Slower ops that give the same bits every time, on GPUs too.")
@click.option("--json", "as_json", is_flag=True, help="Metrics as JSON lines on stdout.")
@click.option("--verbose", is_flag=True, help="Show TensorFlow's logs, and a traceback on errors.")
def main(as_json: bool, verbose: bool, **options: Any) -> None:
    """Train a model on a dataset of prep-tfrecords, on a TPU, on GPUs or on the CPU.

    Run again with the same options, it goes on where it stopped.
    """
    try:
        trained = _train(configs.TrainConfig(**options), as_json=as_json, verbose=verbose)
    except PrepError as error:
        if verbose:
            logging.exception("traceback")
        click.echo(f"error: {_one_line(error.cause)}", err=True)
        click.echo(f"remedy: {_one_line(error.remedy or _usual_remedy(error))}", err=True)
        raise SystemExit(2 if isinstance(error, ConfigError) else 1) from None
    if as_json:
        click.echo(json.dumps({"steps": trained.steps, "model": trained.model_path, **trained.metrics}))


def _train(config: configs.TrainConfig, *, as_json: bool, verbose: bool) -> Any:
    os.environ["KERAS_BACKEND"] = "tensorflow"  # the only one that knows tf.distribute
    if not verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
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
        return run.train(config, as_json=as_json)
    except tf.errors.OpError as error:  # what the graph meets while it reads, such as a damaged record
        if verbose:
            logging.exception("traceback")
        raise PrepError(
            f"{config.data}: {type(error).__name__}: {str(error.message).partition(chr(10))[0][:300]}",
            remedy=f"run `prep-tfrecords verify {config.data}`, which finds damaged data; --verbose shows more",
        ) from error


def _usual_remedy(error: PrepError) -> str:
    if isinstance(error, ConfigError):
        return "`train-tpu --help` says what each option takes"
    return "--verbose shows where it comes from"


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
