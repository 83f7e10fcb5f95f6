"""The commands of `prep-tfrecords`.

Large libraries are imported inside the commands, so that --help is fast. Exit status: 0 done, 1 an error with its cause
and remedy, 2 a wrong option, 130 Ctrl-C. Results go to stdout, with --json as JSON; progress and messages
go to stderr.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import click
import cloup

import tfrecord_io
from pipelines.cli import doctor, export, tokenizer, trace
from pipelines.cli.parsing import WithBeam, WithFunctions, takes_options_file
from pipelines.cli.request import (
    config_of,
    configure,
    functions_of,
    open_manifest,
    takes_consent,
    takes_dataset,
    takes_job,
)
from pipelines.terminal import stages
from pipelines.terminal.console import Program, common, errors, is_quiet, quiet, say, show

__all__ = ["main"]


_INTERRUPTED_BUILD = (
    "interrupted before the dataset was complete",
    "run the same command again; finished shards are kept",
)


# Shown below the options; \b keeps its lines as they are.
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


@main.command(cls=WithBeam, epilog=_BUILD_EXAMPLES)
@takes_job(output_required=True)
@takes_options_file
@common
def build(dry_run: bool, as_json: bool, verbose: bool, **request: Any) -> None:
    """Make a dataset from DATASET: a hub id, one or more files by path or glob, or a folder.

    Everything after -- goes to Beam, for example: -- --runner=DataflowRunner --region=us-central1
    """
    if dry_run:
        _plan(request, as_json=as_json, verbose=verbose)
        return
    with errors(verbose=verbose, interrupted=_INTERRUPTED_BUILD):
        config = config_of(request)
        with quiet(verbose=verbose):
            _begin(config)
            from pipelines.cli import report
            from pipelines.prepare.launch import launcher as building
            from pipelines.prepare.process import workers
            from tfrecord_io import manifest

            configure()
            built = building.build(config, watch=report.watch)
            workers.end_idle()
        report.summary(built)
        if as_json:
            click.echo(json.dumps({"manifest_sha256": manifest.digest(built.manifest), **_built(built)}))
    # An orderly exit of an interpreter with so many libraries takes a second or more, for nothing.
    main.leaves_at_once = not request.get("beam_args")


for _command in (tokenizer.train_tokenizer, trace.trace_record, doctor.examine, export.export_dataset):
    main.add_command(_command)


def _begin(config: Any) -> None:
    """Log the first stage, which takes some seconds."""
    stages.begin(f"opening {config.source.dataset} and the tokenizer {config.tokenizer.name}")


@main.command(cls=WithBeam)
@takes_job(output_required=False)
@takes_options_file
@common
def plan(dry_run: bool, as_json: bool, verbose: bool, **request: Any) -> None:
    """Show from a sample what `build` with the same arguments would make. Writes nothing."""
    del dry_run  # without effect here
    _plan(request, as_json=as_json, verbose=verbose)


def _plan(request: dict[str, Any], *, as_json: bool, verbose: bool) -> None:
    with errors(verbose=verbose):
        config = config_of(request)
        with quiet(verbose=verbose):
            _begin(config)
            from pipelines.cli import report
            from pipelines.prepare.launch import estimate

            configure()
            estimated = estimate.estimate(config)
        report.estimates(estimated)
        if as_json:
            click.echo(json.dumps([each.to_json() for each in estimated]))


@main.command("report", cls=cloup.Command)
@takes_dataset
@click.option("--output", "-o", required=True, metavar="FILE", help="HTML file to write, local or at a gs:// address.")
@common
def write_report(dataset: str, output: str, as_json: bool, verbose: bool) -> None:
    """Write a report of a finished DATASET folder as one HTML page, which opens from disk and loads nothing."""
    with errors(verbose=verbose):
        from pipelines.prepare.report import report as reporting

        reporting.check_output(output)
        with quiet(verbose=verbose):
            page = reporting.of_dataset(dataset)
        reporting.write(output, page)
        if not is_quiet():
            say(f"wrote {output}, {len(page):,} bytes; open it in a browser")
        if as_json:
            click.echo(json.dumps({"report": output, "bytes": len(page)}))


@main.command(cls=cloup.Command)
@takes_dataset
@click.option("--split", "splits", multiple=True, help="Split to decode; repeatable. Default: all.")
@click.option("--rows", type=click.IntRange(min=0), default=2, show_default=True, help="Rows to decode in each split.")
@common
def inspect(dataset: str, splits: tuple[str, ...], rows: int, as_json: bool, verbose: bool) -> None:
    """Show the manifest of a finished DATASET folder as a table, and rows decoded back to text."""
    with errors(verbose=verbose):
        from pipelines.cli import report
        from pipelines.prepare.audit import decode

        with quiet(verbose=verbose):
            manifest = open_manifest(dataset)
            decoded = [
                row
                for split in splits or tuple(manifest.splits)
                for row in decode.decoded_rows(dataset, manifest, split, rows=rows)
            ]
        report.manifest_tables(manifest)
        report.rows(decoded)
        if as_json:
            click.echo(json.dumps([row.to_json() for row in decoded]))


@main.command(cls=WithFunctions)
@takes_dataset
@click.option("--repair", is_flag=True, help="Make damaged and missing files again, from the source.")
@takes_consent
@common
def verify(
    dataset: str, repair: bool, source: str | None, functions: Any, run_stored: bool, as_json: bool, verbose: bool
) -> None:
    """Read all of a finished DATASET folder, and check crcs, digests, counts, shapes and id ranges.

    The exit status is 1 if it is damaged. --source, --map, --filter and --run-stored-steps are for --repair. A folder
    that `export` made is checked against its export.json.
    """
    with errors(verbose=verbose):
        if export.verify_export(dataset, repair=repair, as_json=as_json):
            return
        from pipelines.prepare.audit import repair as repairing
        from pipelines.prepare.audit.consent import Consent
        from pipelines.prepare.storage import locking

        manifest = open_manifest(dataset)
        consent = Consent(source=source, steps=functions_of(functions), run_stored=run_stored)
        with locking.held(dataset, work_folder=".prep") if repair else contextlib.nullcontext():
            damaged = _verified(dataset, manifest)
            if damaged and repair:
                with quiet(verbose=verbose):
                    for file, origin in repairing.repair(dataset, manifest, damaged, consent=consent):
                        show(f"made {file} again from {origin}")
        if as_json:
            click.echo(json.dumps([{**dataclasses.asdict(each), "repaired": repair} for each in damaged]))
        if damaged and not repair:
            _refuse(dataset, damaged)
        total = sum(len(split.shards) for split in manifest.splits.values())
        num_examples = sum(split.num_examples for split in manifest.splits.values())
        show(f"{total} shards with {num_examples:,} examples are as the manifest says")


def _verified(dataset: str, manifest: Any) -> list[Any]:
    """Print the state of each file; return the damaged ones."""
    from pipelines.prepare.audit import verify as verifying

    damaged = []
    for checked in verifying.verify_files(dataset, manifest):
        if checked.problem:
            damaged.append(checked)
            show(f"BAD  {checked.file}: {checked.problem}")
        elif checked.part == "shard" and not is_quiet():
            show(f"ok   {checked.file}")
    return damaged


def _refuse(dataset: str, damaged: list[Any]) -> None:
    from tfrecord_io.errors import CorruptRecordError

    count = "1 file is" if len(damaged) == 1 else f"{len(damaged)} files are"
    raise CorruptRecordError(
        f"{dataset}: {count} damaged or missing, the first is {damaged[0].file}",
        remedy=f"run `prep-tfrecords verify {dataset} --repair`, which makes them again",
    )


def _built(built: Any) -> dict[str, Any]:
    return {
        "shards_made": built.shards_made,
        "shards_kept": built.shards_kept,
        "seconds": round(built.seconds, 3),
        "engines": built.manifest.engines,
        "fingerprint": built.manifest.fingerprint,
        "splits": {
            name: {
                "examples": split.num_examples,
                "tokens": split.num_tokens,
                "bytes": split.num_bytes,
                "shards": len(split.shards),
                **dataclasses.asdict(split.ledger),
                "ledgers": [{"shard": shard.name, **dataclasses.asdict(shard.ledger)} for shard in split.shards],
            }
            for name, split in built.manifest.splits.items()
        },
    }


if __name__ == "__main__":
    main()
