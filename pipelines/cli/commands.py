"""The program `prep-tfrecords`, and its commands build, plan, tokenizer and export.

Large libraries are imported only when a command runs, so that --help is fast.
"""

from typing import Any

import click

import tfrecord_io
from pipelines import stages
from pipelines.cli import finished
from pipelines.cli.request import BeamArgs, WithBeam, WithFunctions, configure, takes_dataset, takes_job, takes_source
from pipelines.configs import config_of, source_of
from pipelines.option_fields import values_of
from pipelines.prepare.export.export_settings import ExportSettings
from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.options.tokenizer_options import TokenizerRequest
from pipelines.terminal.click_options import takes
from pipelines.terminal.console import Program, common, is_quiet, say, write_json
from tfrecord_io.shown import duration, some

# \b preserves line breaks.
_BUILD_EXAMPLES = """\b
Examples:
  prep-tfrecords build stanfordnlp/imdb --output out/imdb \\
      --tokenizer google-bert/bert-base-uncased --label-column label
  prep-tfrecords build 'data/*.jsonl' --output out/lm --layout concat \\
      --tokenizer openai-community/gpt2 --max-length 1024"""


@click.group(
    cls=Program,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 120,
        "auto_envvar_prefix": "PREP_TFRECORDS",
    },
)
@click.version_option(tfrecord_io.__version__, prog_name="prep-tfrecords")
def main() -> None:
    """Turn Hugging Face datasets and data files into TFRecord shards with static shapes."""


for _command in (finished.doctor, finished.inspect, finished.report, finished.trace, finished.verify):
    main.add_command(_command)


@main.command(cls=WithBeam, epilog=_BUILD_EXAMPLES, short_help="Make a dataset: tokenized shards from rows.")
@takes_job(output_required=True)
@common(
    interrupted=("interrupted before the dataset was complete", "run the same command again; finished shards are kept")
)
def build(**request: Any) -> None:
    """Make a dataset from DATASET: a Hub id, one or more files by path or glob, or a folder.

    Everything after -- goes to Beam, for example: -- --runner=DataflowRunner --region=us-central1
    """
    config = _begun(request)
    from pipelines.cli import printing
    from pipelines.prepare.launch import launcher
    from tfrecord_io import manifest

    built = launcher.build(config, watch=printing.watch)
    printing.summary(built)
    splits = {
        name: {
            "examples": split.num_examples,
            "tokens": split.num_tokens,
            "bytes": split.num_bytes,
            "shards": len(split.shards),
            **split.ledger.to_json(),
            "ledgers": [{"shard": shard.name, **shard.ledger.to_json()} for shard in split.shards],
        }
        for name, split in built.manifest.splits.items()
    }
    facts = {"manifest_sha256": manifest.digest(built.manifest), "fingerprint": built.manifest.fingerprint}
    shards = {"shards_made": built.shards_made, "shards_kept": built.shards_kept, "seconds": round(built.seconds, 3)}
    write_json({**facts, **shards, "engines": built.manifest.engines, "splits": splits})
    # With these libraries, a normal exit takes more than a second.
    main.leaves_at_once = not request.get("beam_args")


def _begun(request: dict[str, Any]) -> PrepareConfig:
    config = config_of(request)
    stages.begin(f"opening {config.source.dataset} and the tokenizer {config.tokenizer.name}")
    configure(config)
    return config


@main.command(cls=WithBeam, short_help="Show what `build` would make. Makes no dataset.")
@takes_job(output_required=False)
@common()
def plan(**request: Any) -> None:
    """Show from a sample what `build` with the same arguments would make. Makes no dataset."""
    config = _begun(request)
    from pipelines.cli import printing
    from pipelines.prepare import storage
    from pipelines.prepare.launch import estimate

    estimated = estimate.estimate(config)
    printing.estimates(estimated, free=storage.free_bytes(config.output.root) if config.output.root else None)
    write_json([split.to_json() for split in estimated])


@main.command("tokenizer", cls=WithFunctions, short_help="Train a tokenizer on the texts of a dataset.")
@takes([TokenizerRequest], groups=[""], required=("output", "kind", "vocab_size"))
@takes_source
@common()
def train_tokenizer(**options: Any) -> None:
    """Train a tokenizer on the texts of DATASET, and write it as files that transformers reads."""
    request = TokenizerRequest(source=source_of(options), **values_of(TokenizerRequest, options))
    from pipelines.cli import printing
    from pipelines.prepare.launch import tokenizer_launcher

    configure()
    trained = tokenizer_launcher.train_tokenizer(request, watch=printing.watch)
    printing.trained_tokenizer(trained)
    write_json(trained.to_json())


@main.command("export", cls=BeamArgs, short_help="Write a dataset in the format of another trainer.")
@takes_dataset
@takes([ExportSettings], groups=[""], required=("to", "output"))
@common(
    interrupted=("interrupted before the export was complete", "run the same command again; finished files are kept")
)
def export_dataset(dataset: str, beam_args: tuple[str, ...], **options: Any) -> None:
    """Write a finished DATASET folder in the format of another trainer, one file per shard.

    Everything after -- goes to Beam, for example: -- --runner=DataflowRunner --region=us-central1
    """
    settings = ExportSettings(beam_args=beam_args, **values_of(ExportSettings, options))
    from pipelines.cli import printing
    from pipelines.prepare.export import exporting

    configure()
    exported = exporting.export(dataset, settings, watch=printing.watch)
    rows = sum(shard.num_examples for shard in exported.shards)
    tokens = sum(shard.num_tokens for shard in exported.shards)
    if not is_quiet():
        content = f"{some(rows, 'record')} with {some(tokens, 'token')}"
        say(
            f"{settings.to} of {content} in {settings.output}: {some(exported.shards_made, 'shard')} exported, "
            f"{exported.shards_kept} kept, in {duration(exported.seconds)}"
            + (f"; uploaded to the dataset {settings.push} on the Hub" if settings.push else "")
        )
    counts = {"shards_made": exported.shards_made, "shards_kept": exported.shards_kept}
    write_json({**counts, "rows": rows, "tokens": tokens, "seconds": round(exported.seconds, 3)})
