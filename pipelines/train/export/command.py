"""The command `train-tpu export`."""

from __future__ import annotations

import json

import click

from pipelines.terminal.console import errors, say
from pipelines.train import backends
from pipelines.train.errors import usual_remedies

__all__ = ["export"]

_INTERRUPTED = ("interrupted; --output was not written", "run the same command again")


@click.command(context_settings={"show_default": True})
@click.option("--model", "model_dir", required=True, metavar="MODEL_DIR", help="The --model-dir of a training.")
@click.option(
    "--format",
    "kind",
    required=True,
    type=click.Choice(["transformers", "saved-model", "keras"]),
    help="A folder for AutoModel.from_pretrained, for TensorFlow Serving (token ids in), or for Keras.",
)
@click.option("--output", required=True, metavar="DIR", help="A new folder, local or gs://.")
@click.option("--build", metavar="PACKAGE.MODULE:FUNCTION", help="The function that made the model, if it is yours.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
@click.option("--verbose", is_flag=True, help="Show TensorFlow's logs, and a traceback on errors.")
def export(model_dir: str, kind: str, output: str, build: str | None, as_json: bool, verbose: bool) -> None:
    """Write a trained model as a folder that other programs open, with its tokenizer and a model card."""
    with errors(verbose=verbose, interrupted=_INTERRUPTED), usual_remedies("train-tpu export"):
        backends.load(verbose=verbose)
        from pipelines.train.export import exporting

        files = exporting.export(model_dir, kind=kind, output=output, build=build)
        say(f"wrote {output}: {', '.join(files)}")
        if as_json:
            click.echo(json.dumps({"output": output, "format": kind, "files": files}))
