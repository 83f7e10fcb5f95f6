"""The program `train-tpu`. docs/reference/cli/train-tpu.md lists its exit statuses."""

import json
import os
import sys
from typing import Any

import click
import cloup

import tfrecord_io
from pipelines.option_fields import values_of
from pipelines.terminal.click_options import takes
from pipelines.terminal.console import TwoLineErrors, errors, say
from pipelines.train import backends, targets
from pipelines.train import config as configs
from pipelines.train.errors import graph_errors, usual_remedies
from tfrecord_io.errors import ConfigError
from tfrecord_io.ordering.global_order import GCS_BLOCK_SIZE
from tfrecord_io.shown import some

_INTERRUPTED = ("interrupted", "run the same command again, which continues from the last checkpoint in --model-dir")
_NOT_PREDICTED = ("interrupted; nothing was written", "run the same command again")
_NOT_EXPORTED = ("interrupted; --output was not written", "run the same command again")

# \b preserves line breaks.
_EXAMPLES = """\b
Examples:
  train-tpu --data out/imdb --task classify --model bert-base \\
      --model-dir out/model --global-batch-size 64 --steps 2000
  train-tpu --data gs://BUCKET/wiki --task mlm --model bert-base \\
      --model-dir gs://BUCKET/bert --tpu local --precision bfloat16"""


class _TrainingGroup(TwoLineErrors, cloup.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            known = " or ".join(self.list_commands(ctx))
            ctx.fail(f"there is no command {args[0]!r}, expected options, or the command {known}")
        completing = ctx.resilient_parsing  # shell completion needs no required options
        ctx.resilient_parsing = completing or (bool(args) and args[0] in self.commands)
        rest = super().parse_args(ctx, args)
        ctx.resilient_parsing = completing
        return rest


@click.group(
    cls=_TrainingGroup,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND …]",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True},
    epilog=_EXAMPLES,
)
@click.version_option(tfrecord_io.__version__, prog_name="train-tpu")
@takes([configs.TrainConfig], groups=configs.GROUPS, required=["data", "task", "model"])
@cloup.option_group(
    "Messages",
    click.option("--json", "as_json", is_flag=True, help="Write metrics as JSON lines on stdout."),
    click.option("--verbose", "-v", is_flag=True, help="Show TensorFlow's logs, and a traceback on errors."),
)
@click.pass_context
def main(ctx: click.Context, /, as_json: bool, verbose: bool, **options: Any) -> None:
    """Train a model on a dataset of prep-tfrecords, on a TPU, on GPUs or on the CPU.

    To continue a stopped training run, run the same command again. The commands use a trained model.
    """
    if ctx.invoked_subcommand is not None:
        return
    with errors(verbose=verbose, interrupted=_INTERRUPTED), usual_remedies("train-tpu"):
        config = configs.TrainConfig(**values_of(configs.TrainConfig, options))
        if config.preflight is None:
            config.require_model_dir()  # before TensorFlow, which takes seconds to start
        trained = _train(config, as_json=as_json, verbose=verbose)
    if as_json and trained:
        click.echo(json.dumps(trained))


def _train(config: configs.TrainConfig, *, as_json: bool, verbose: bool) -> dict[str, Any]:
    if config.order == "global" and any(folder.startswith("gs://") for folder in config.data_folders):
        # TensorFlow would read 64 MiB at each position, see `global_records`.
        os.environ.setdefault(GCS_BLOCK_SIZE, "0")
    target = targets.choose(config.tpu, environment=os.environ, chips_here=targets.has_tpu_chips())
    backend = targets.backend(config.backend, target) if config.preflight is None else "tensorflow"
    backends.load(verbose=verbose, backend=backend)
    from pipelines.train import run

    options = f"--global-batch-size {config.global_batch_size} with --model {config.model}"
    remedy = "give --accumulate, a smaller --global-batch-size, a smaller --model or --precision bfloat16"
    with graph_errors(data=config.data_folders, options=options, remedy=remedy):
        if config.preflight is not None:
            from pipelines.train.preflight import preflight

            result = preflight.run_preflight(config, say=say)
            preflight.report(result, as_programs=as_json)
            preflight.require_fit(result)
            return {}
        return run.train(config, as_json=as_json)


@cloup.command(context_settings={"show_default": True}, short_help="Write a trained model's predictions for each row.")
@takes([configs.PredictConfig], groups=configs.PREDICT_GROUPS, required=["model"])
@click.option("--fill-mask", "text", metavar="TEXT", help="For mlm: predict the mask tokens in TEXT.")
@click.option(
    "--top", type=click.IntRange(min=1), default=5, metavar="N", help="With --fill-mask: number of candidates."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
@click.option("--verbose", is_flag=True, help="Show TensorFlow's logs, and a traceback on errors.")
def predict(text: str | None, top: int, as_json: bool, verbose: bool, **options: Any) -> None:
    """Write a trained model's predictions for each row of a split, or fill in the masked words of a text."""
    with errors(verbose=verbose, interrupted=_NOT_PREDICTED), usual_remedies("train-tpu predict"):
        if text is None:
            result = _predicted(options, verbose=verbose)
        elif options["data"] or options["output"]:
            raise ConfigError(
                "--fill-mask was given with --data or --output, expected either a text or a dataset",
                remedy="leave --fill-mask out, or leave --data and --output out",
            )
        else:
            backends.load(verbose=verbose)
            from pipelines.train.predict import fill_mask

            result = fill_mask.fill(options["model"], text, top=top, build=options["build"])
            fill_mask.show(result)
        if as_json:
            click.echo(json.dumps(result))


def _predicted(options: dict[str, Any], *, verbose: bool) -> Any:
    config = configs.PredictConfig(**values_of(configs.PredictConfig, options))
    target = targets.choose(config.tpu, environment=os.environ, chips_here=targets.has_tpu_chips())
    backends.load(verbose=verbose, backend=targets.backend(config.backend, target))
    from pipelines.train.predict import predicting

    with graph_errors(data=[config.data], options=f"--batch-size {config.batch_size}", remedy="lower --batch-size"):
        rows = predicting.predict(config)
    say(f"wrote {config.output}: {some(rows, 'row')} of split {config.split}")
    return {"path": config.output, "rows": rows}


@click.command(context_settings={"show_default": True}, short_help="Write a trained model for other programs.")
@click.option("--model", "model_dir", required=True, metavar="MODEL_DIR", help="The --model-dir of a training run.")
@click.option(
    "--format",
    "kind",
    required=True,
    type=click.Choice(["transformers", "saved-model", "keras"]),
    help="For AutoModel.from_pretrained, for TensorFlow Serving (with token ids as input), or for Keras.",
)
@click.option("--output", required=True, metavar="DIR", help="A new folder, local or gs://.")
@click.option("--build", metavar="PACKAGE.MODULE:FUNCTION", help="Your own function that built the model, if any.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
@click.option("--verbose", is_flag=True, help="Show TensorFlow's logs, and a traceback on errors.")
def export(model_dir: str, kind: str, output: str, build: str | None, as_json: bool, verbose: bool) -> None:
    """Write a trained model as a folder that other programs open, with its tokenizer and a model card."""
    with errors(verbose=verbose, interrupted=_NOT_EXPORTED), usual_remedies("train-tpu export"):
        backends.load(verbose=verbose)
        from pipelines.train.export import exporting

        files = exporting.export(model_dir, kind=kind, output=output, build=build)
        say(f"wrote {output}: {', '.join(files)}")
        if as_json:
            click.echo(json.dumps({"output": output, "format": kind, "files": files}))


main.add_command(predict)
main.add_command(export)

if __name__ == "__main__":
    sys.exit(main())
