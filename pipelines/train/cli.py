"""The command line: `train-tpu`, and its commands `predict` and `export`. Thin: options become a TrainConfig, errors
become two lines.

TensorFlow is imported only when the options are in order. Exit status: 0 done, 1 an error with its cause and remedy,
2 a wrong option, 130 Ctrl-C. People read stderr, programs read stdout (--json).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click
import cloup

import tfrecord_io
from pipelines.terminal.console import TwoLineErrors, errors, say
from pipelines.train import backends, targets
from pipelines.train import config as configs
from pipelines.train.errors import graph_error, usual_remedies
from pipelines.train.export.command import export
from pipelines.train.option_fields import options_of
from pipelines.train.predict.command import predict

__all__ = ["main"]

_INTERRUPTED = ("interrupted", "run the same command again; it goes on from the last checkpoint in --model-dir")

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
@options_of(configs.TrainConfig, configs.GROUPS)
@cloup.option_group(
    "Messages",
    click.option("--json", "as_json", is_flag=True, help="Write metrics as JSON lines on stdout."),
    click.option("--verbose", "-v", is_flag=True, help="Show TensorFlow's logs, and a traceback on errors."),
)
@click.pass_context
def main(ctx: click.Context, /, as_json: bool, verbose: bool, **options: Any) -> None:
    """Train a model on a dataset of prep-tfrecords, on a TPU, on GPUs or on the CPU.

    Run again with the same options, it goes on where it stopped. A COMMAND does something with a trained model.
    """
    if ctx.invoked_subcommand is not None:
        return
    with errors(verbose=verbose, interrupted=_INTERRUPTED), usual_remedies("train-tpu"):
        config = configs.TrainConfig(**options)
        if config.preflight is None:
            config.require_model_dir()  # before TensorFlow, which takes seconds to start
        trained = _train(config, as_json=as_json, verbose=verbose)
    if as_json and trained is not None and trained.model_path:  # which one process of several writes
        click.echo(json.dumps({"steps": trained.steps, "model": trained.model_path, **trained.metrics}))


def _train(config: configs.TrainConfig, *, as_json: bool, verbose: bool) -> Any:
    """Return what `run.train` gives, or None after a preflight."""
    if config.order == "global" and any(folder.startswith("gs://") for folder in config.data_folders):
        backends.ask_for_exact_ranges()
    target = targets.choose(config.tpu, environment=os.environ, chips_here=targets.has_tpu_chips())
    backend = targets.backend(config.backend, target) if config.preflight is None else "tensorflow"
    backends.load(verbose=verbose, backend=backend)
    import tensorflow as tf

    from pipelines.train import run

    try:
        if config.preflight is not None:
            from pipelines.train.preflight import preflight, report

            found = preflight.run_preflight(config, say=say)
            report.write(found, as_programs=as_json)
            preflight.require_fit(found)
            return None
        return run.train(config, as_json=as_json)
    except tf.errors.OpError as error:  # what the graph meets while it reads, such as a damaged record
        asked = f"--global-batch-size {config.global_batch_size} with --model {config.model}"
        remedy = "give --accumulate, lower the batch size, choose a smaller model, or --precision bfloat16"
        raise graph_error(error, data=config.data_folders, asked=asked, remedy=remedy) from error


main.add_command(predict)
main.add_command(export)

if __name__ == "__main__":
    sys.exit(main())
