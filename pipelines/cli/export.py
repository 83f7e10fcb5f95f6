"""The command `prep-tfrecords export`, and `verify` of what it made."""

from __future__ import annotations

import functools
import json
from typing import Any

import click

from pipelines.cli.parsing import BeamArguments
from pipelines.cli.request import configure, takes_dataset
from pipelines.prepare.export.export_settings import ExportSettings
from pipelines.terminal.click_options import takes, values_of
from pipelines.terminal.console import common, errors, is_quiet, quiet, say

__all__ = ["export_dataset", "verify_export"]

_INTERRUPTED = ("interrupted before the export was complete", "run the same command again; finished files are kept")


@click.command("export", cls=BeamArguments)
@takes_dataset
@takes([ExportSettings], groups=[""], required=("to",))
@click.option("--output", "-o", required=True, metavar="DIR", help="New folder, local or at a gs:// address.")
@click.option("--split", "splits", multiple=True, help="Split to export; repeatable. Default: all.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Worker processes; never changes a byte.")
@common
def export_dataset(
    dataset: str,
    *,
    output: str,
    splits: tuple[str, ...],
    workers: int | None,
    beam_args: tuple[str, ...],
    as_json: bool,
    verbose: bool,
    **settings: Any,
) -> None:
    """Write a finished DATASET folder in a format of other trainers, a file for each shard.

    Everything after -- goes to Beam, for example: -- --runner=DataflowRunner --region=us-central1
    """
    with errors(verbose=verbose, interrupted=_INTERRUPTED):
        wanted = ExportSettings(**values_of(ExportSettings, settings))
        with quiet(verbose=verbose):
            from pipelines.cli import report
            from pipelines.prepare.export import exporting

            configure()
            made = exporting.export(
                dataset,
                wanted,
                output=output,
                splits=splits,
                workers=workers,
                beam_args=beam_args,
                watch=functools.partial(report.watch_rows, doing="exporting"),
            )
        rows, tokens = (
            sum(getattr(each, name) for each in made.record.shards) for name in ("num_examples", "num_tokens")
        )
        if not is_quiet():
            say(
                f"{wanted.to} of {rows:,} records with {tokens:,} tokens in {output}: {made.shards_made} shards "
                f"exported, {made.shards_kept} kept, in {made.seconds:.1f} s"
            )
        if as_json:
            counts = {"shards_made": made.shards_made, "shards_kept": made.shards_kept}
            click.echo(json.dumps({**counts, "rows": rows, "tokens": tokens, "seconds": round(made.seconds, 3)}))


def verify_export(root: str, *, repair: bool, as_json: bool) -> bool:
    """Check the files of an export, and print those that are damaged; return False if `root` holds no export.

    Raises: CorruptRecordError if a file is damaged or missing; ConfigError with `repair`.
    """
    from pipelines.prepare.export import export_record
    from tfrecord_io.errors import ConfigError, CorruptRecordError

    if (record := export_record.read(root)) is None:
        return False
    again = "delete it and run the same export again, which makes what is missing"
    if repair:
        raise ConfigError(f"--repair of {root}: an export is not repaired", remedy=again)
    checked = list(export_record.problems(root, record))
    damaged = [(name, problem) for name, problem in checked if problem]
    for name, problem in damaged:
        say(f"BAD  {name}: {problem}")
    if as_json:
        click.echo(json.dumps([{"file": name, "problem": problem} for name, problem in damaged]))
    if damaged:
        raise CorruptRecordError(f"{root}: {damaged[0][0]} is damaged or missing", remedy=again)
    say(f"{len(checked)} files are as export.json says")
    return True
