"""The command `train-tpu predict`: options become a PredictConfig, or a text with masked words is filled in."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, get_args

import click

from pipelines.terminal.console import errors, say
from pipelines.train import targets, tensorflow_ready
from pipelines.train.config import Backend
from pipelines.train.errors import usual_remedies
from pipelines.train.predict.config import PredictConfig
from tfrecord_io.errors import ConfigError, PrepError

__all__ = ["predict"]

_INTERRUPTED = ("interrupted; nothing was written", "run the same command again")


@click.command(context_settings={"show_default": True})
@click.option("--model", "model_dir", required=True, metavar="MODEL_DIR", help="The --model-dir of a training.")
@click.option(
    "--data", default="", show_default=False, metavar="OUT", help="Folder that prep-tfrecords built, local or gs://."
)
@click.option("--split", default="test", help="Split to predict.")
@click.option(
    "--output", default="", show_default=False, metavar="FILE", help="FILE.parquet or FILE.jsonl, local or gs://."
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it is there.")
@click.option("--tpu", default="auto", metavar="WHERE", help="auto, local, none, a TPU's name, or grpc://IP:8470.")
@click.option(
    "--backend", type=click.Choice(get_args(Backend)), default="auto", help="What drives the devices, as in a training."
)
@click.option("--zone", help="Of the TPU, with its name.")
@click.option("--project", help="Of the TPU, with its name.")
@click.option("--replicas", type=int, metavar="N", help="GPUs to use, or parts to split the CPU into.")
@click.option("--batch-size", type=int, default=32, metavar="N", help="Rows at a time, on all replicas together.")
@click.option("--generate", type=int, default=0, metavar="N", help="For clm: tokens to generate after each row.")
@click.option(
    "--beams", type=int, default=1, metavar="N", help="For seq2seq and --generate: 1 for greedy, more for beam search."
)
@click.option("--fill-mask", "text", metavar="TEXT", help="For mlm: what belongs at each mask token in TEXT.")
@click.option("--top", type=click.IntRange(min=1), default=5, metavar="N", help="With --fill-mask: candidates.")
@click.option(
    "--build",
    metavar="PACKAGE.MODULE:FUNCTION",
    help="The function that made the model, if it is yours and its file alone cannot be loaded.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
@click.option("--verbose", is_flag=True, help="Show TensorFlow's logs, and a traceback on errors.")
def predict(text: str | None, top: int, as_json: bool, verbose: bool, **options: Any) -> None:
    """Write what a trained model predicts for each row of a split, or fill in the masked words of a text."""
    with errors(verbose=verbose, interrupted=_INTERRUPTED), usual_remedies("train-tpu predict"):
        if text is not None:
            _fill_mask(options, text=text, top=top, as_json=as_json, verbose=verbose)
        else:
            _predict(PredictConfig(**options), as_json=as_json, verbose=verbose)


def _predict(config: PredictConfig, *, as_json: bool, verbose: bool) -> None:
    target = targets.choose(config.tpu, environment=os.environ, chips_here=targets.has_tpu_chips())
    tensorflow_ready.load(verbose=verbose, backend=targets.backend(config.backend, target))
    import tensorflow as tf

    from pipelines.train.predict import predicting

    try:
        written = predicting.predict(config)
    except tf.errors.OpError as error:
        raise _explained(error, config) from error
    say(f"wrote {written.path}: {written.rows:,} rows of split {config.split}")
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(written)))


def _explained(error: Any, config: PredictConfig) -> PrepError:
    import tensorflow as tf

    said = f"{type(error).__name__}: {str(error.message).partition(chr(10))[0][:300]}"
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return PrepError(f"--batch-size {config.batch_size}: out of memory ({said})", remedy="lower --batch-size")
    return PrepError(
        f"{config.data}: {said}",
        remedy=f"run `prep-tfrecords verify {config.data}`, which finds damaged data; --verbose shows more",
    )


def _fill_mask(options: dict[str, Any], *, text: str, top: int, as_json: bool, verbose: bool) -> None:
    if options["data"] or options["output"]:
        raise ConfigError("--fill-mask with --data or --output, expected one or the other")
    tensorflow_ready.load(verbose=verbose)
    from pipelines.train.predict import fill_mask

    masks = fill_mask.fill(options["model_dir"], text, top=top, build=options["build"])
    fill_mask.show(masks)
    if as_json:
        click.echo(json.dumps([[dataclasses.asdict(each) for each in candidates] for candidates in masks]))
