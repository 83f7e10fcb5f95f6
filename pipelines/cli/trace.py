"""The command `prep-tfrecords trace`: from a record, or a step of a training, to its source rows."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click
import cloup

from pipelines.cli.parsing import WithFunctions
from pipelines.cli.request import functions_of, open_manifest, takes_consent, takes_dataset
from pipelines.terminal.console import common, errors, quiet

__all__ = ["trace_record"]


@click.command("trace", cls=WithFunctions)
@takes_dataset
@cloup.option_group(
    "Which record",
    click.option("--split", help="Split of the record."),
    click.option("--shard", type=click.IntRange(min=0), metavar="I", help="Number of the shard in the split, from 0."),
    click.option("--record", type=click.IntRange(min=0), metavar="J", help="Number of the record in it, from 0."),
)
@cloup.option_group(
    "Or which step of a training",
    click.option("--step", type=click.IntRange(min=1), metavar="N", help="Number of the step, as the log counts."),
    click.option("--around", type=click.IntRange(min=0), default=0, metavar="K", help="Show the K steps before, too."),
    click.option("--run", metavar="DIR", help="The training's --model-dir, whose run.json says how it reads."),
    click.option("--num-replicas", type=click.IntRange(min=1), default=1, help="Replicas that share a batch."),
    click.option("--replica", type=click.IntRange(min=0), metavar="R", help="Show this replica's rows only, from 0."),
)
@takes_consent
@common
def trace_record(
    dataset: str,
    split: str | None,
    shard: int | None,
    record: int | None,
    step: int | None,
    source: str | None,
    functions: Any,
    run_stored: bool,
    as_json: bool,
    verbose: bool,
    **training: Any,
) -> None:
    """Show the source rows from which a record of a finished DATASET folder was made.

    The record is named by --split, --shard and --record; or --step shows all rows of a training's batch.
    """
    _check_traced(split, shard, record, step=step, training=training)
    with errors(verbose=verbose):
        from pipelines.cli import report
        from pipelines.prepare.audit import reopened_dataset, trace
        from pipelines.prepare.audit.consent import Consent

        consent = Consent(source=source, steps=functions_of(functions), run_stored=run_stored)
        manifest = open_manifest(dataset)
        with quiet(verbose=verbose):
            opened = reopened_dataset.reopen(dataset, manifest, consent=consent)
            tracer = trace.Tracer(opened)
            found = (
                tracer.trace(split=str(split), shard=int(shard or 0), record=int(record or 0))
                if step is None
                else _traced_steps(tracer, manifest, dataset, step=step, **training)
            )
        if isinstance(found, list):
            report.traced_steps(found)
            content: Any = [dataclasses.asdict(each) for each in found]
        else:
            report.traced(found)
            content = dataclasses.asdict(found)
        if as_json:
            click.echo(json.dumps(content))


def _check_traced(
    split: str | None, shard: int | None, record: int | None, *, step: int | None, training: dict[str, Any]
) -> None:
    """Raises: UsageError unless either a record or a step is named."""
    if step is None:
        for name, value in (("--split", split), ("--shard", shard), ("--record", record)):
            if value is None:
                raise click.UsageError(f"Missing option '{name}' (or --step, for a step of a training).")
        if training["run"]:
            raise click.UsageError("--run is for --step.")
        return
    if shard is not None or record is not None:
        raise click.UsageError("--step together with --shard or --record, expected one or the other.")
    if not training["run"] or split:
        raise click.UsageError("--step needs --run DIR, which says how the training reads, and no --split.")


def _traced_steps(
    tracer: Any,
    manifest: Any,
    dataset: str,
    *,
    step: int,
    around: int,
    run: str,
    replica: int | None,
    num_replicas: int,
) -> list[Any]:
    from pipelines.prepare.audit import trace_steps

    reading, manifest = trace_steps.of_run(run, manifest, root=dataset, replicas=num_replicas)
    steps = range(max(1, step - around), step + 1)
    return trace_steps.trace_steps(tracer, manifest, reading, steps=steps, replica=replica)
