"""The command `train-tpu predict`: options become a PredictConfig, or a text with masked words is filled in."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import click
import cloup

from pipelines.terminal.console import errors, say
from pipelines.train import backends, targets
from pipelines.train.errors import graph_error, usual_remedies
from pipelines.train.option_fields import options_of
from pipelines.train.predict.config import GROUPS, PredictConfig
from tfrecord_io.errors import ConfigError

__all__ = ["predict"]

_INTERRUPTED = ("interrupted; nothing was written", "run the same command again")


@cloup.command(context_settings={"show_default": True})
@options_of(PredictConfig, GROUPS)
@click.option("--fill-mask", "text", metavar="TEXT", help="For mlm: what belongs at each mask token in TEXT.")
@click.option("--top", type=click.IntRange(min=1), default=5, metavar="N", help="With --fill-mask: candidates.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
@click.option("--verbose", is_flag=True, help="Show TensorFlow's logs, and a traceback on errors.")
def predict(text: str | None, top: int, as_json: bool, verbose: bool, **options: Any) -> None:
    """Write what a trained model predicts for each row of a split, or fill in the masked words of a text."""
    with errors(verbose=verbose, interrupted=_INTERRUPTED), usual_remedies("train-tpu predict"):
        found = _predicted(options, verbose=verbose) if text is None else _filled(options, text, top, verbose=verbose)
        if as_json:
            click.echo(json.dumps(found))


def _predicted(options: dict[str, Any], *, verbose: bool) -> Any:
    config = PredictConfig(**options)
    target = targets.choose(config.tpu, environment=os.environ, chips_here=targets.has_tpu_chips())
    backends.load(verbose=verbose, backend=targets.backend(config.backend, target))
    import tensorflow as tf

    from pipelines.train.predict import predicting

    try:
        written = predicting.predict(config)
    except tf.errors.OpError as error:
        asked = f"--batch-size {config.batch_size}"
        raise graph_error(error, data=[config.data], asked=asked, remedy="lower --batch-size") from error
    say(f"wrote {written.path}: {written.rows:,} rows of split {config.split}")
    return dataclasses.asdict(written)


def _filled(options: dict[str, Any], text: str, top: int, *, verbose: bool) -> Any:
    if options["data"] or options["output"]:
        raise ConfigError("--fill-mask with --data or --output, expected one or the other")
    backends.load(verbose=verbose)
    from pipelines.train.predict import fill_mask

    masks = fill_mask.fill(options["model_dir"], text, top=top, build=options["build"])
    fill_mask.show(masks)
    return [[dataclasses.asdict(each) for each in candidates] for candidates in masks]
