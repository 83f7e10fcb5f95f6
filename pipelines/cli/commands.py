"""The commands of `prep-tfrecords`.

Large libraries are imported inside the commands, so that --help is fast. Exit status: 0 done, 1 an error with its cause
and remedy, 2 a wrong option, 130 Ctrl-C. Output for people goes to stderr, JSON (--json) to stdout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from typing import Any

import click
import cloup

import tfrecord_io
from pipelines.cli import own_process, tokenizer
from pipelines.cli.parsing import WithBeam, WithFunctions, takes_options_file
from pipelines.cli.request import (
    config_of,
    functions_of,
    may_take_request,
    takes_consent,
    takes_making,
    takes_request,
)
from pipelines.terminal import stages, tensorflow_start
from pipelines.terminal.console import Program, common, errors, is_quiet, quiet, say

__all__ = ["main"]


def _folder(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    """Return the folder of a dataset, which may also be named by the path of its manifest."""
    return path if path is None else path.removesuffix("/manifest.json") if path != "manifest.json" else "."


_dataset = click.argument("dataset", callback=_folder)

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
@takes_request
@takes_making(output_required=True)
@takes_options_file
@common
def build(
    output: str, workers: int | None, resume: bool, dry_run: bool, as_json: bool, verbose: bool, **request: Any
) -> None:
    """Make a dataset from DATASET: a hub id, one or more files by path or glob, or a folder.

    Everything after -- goes to Beam, for example: -- --runner=DataflowRunner --region=us-central1
    """
    if dry_run:
        _plan(request, output=output, workers=workers, as_json=as_json, verbose=verbose)
        return
    with errors(verbose=verbose, interrupted=_INTERRUPTED_BUILD):
        config = config_of(request, output=output, workers=workers, overwrite=not resume)
        with quiet(verbose=verbose):
            _begin(config)
            from pipelines.cli import report
            from pipelines.prepare.launch import launcher as building
            from tfrecord_io import manifest

            own_process.configure()
            built = building.build(config, watch=report.watch)
        report.summary(built)
        if as_json:
            click.echo(json.dumps({"manifest_sha256": manifest.digest(built.manifest), **_built(built)}))
    # An orderly exit of an interpreter with so many libraries takes a second or more, for nothing.
    main.leaves_at_once = not request.get("beam_args")


main.add_command(tokenizer.train_tokenizer)


def _begin(config: Any) -> None:
    """Log the first stage, which takes some seconds."""
    stages.begin(f"opening {config.source.dataset} and the tokenizer {config.tokenizer.name}")


@main.command(cls=WithBeam)
@takes_request
@takes_making(output_required=False)
@takes_options_file
@common
def plan(
    output: str | None, workers: int | None, resume: bool, dry_run: bool, as_json: bool, verbose: bool, **request: Any
) -> None:
    """Show from a sample what `build` with the same arguments would make. Writes nothing."""
    del resume, dry_run  # without effect here
    _plan(request, output=output, workers=workers, as_json=as_json, verbose=verbose)


def _plan(request: dict[str, Any], *, output: str | None, workers: int | None, as_json: bool, verbose: bool) -> None:
    with errors(verbose=verbose):
        config = config_of(request, output="." if output is None else output, workers=workers, overwrite=False)
        with quiet(verbose=verbose):
            _begin(config)
            from pipelines.cli import report
            from pipelines.prepare.launch import estimate

            own_process.configure()
            estimated = estimate.estimate(config)
        report.estimates(estimated)
        if as_json:
            click.echo(json.dumps([each.to_json() for each in estimated]))


@main.command("report", cls=WithFunctions)
@may_take_request
@click.option("--output", "-o", required=True, metavar="FILE", help="HTML file to write, local or at a gs:// address.")
@common
def write_report(output: str, as_json: bool, verbose: bool, **request: Any) -> None:
    """Write a report of a finished DATASET folder as one HTML page, which opens from disk and loads nothing.

    With --tokenizer and other options of `build`, DATASET is a source: the page shows from a sample what `build` with
    the same options would make.
    """
    with errors(verbose=verbose):
        from pipelines.prepare.report import report as reporting

        reporting.check_output(output)
        with quiet(verbose=verbose):
            if request["tokenizer"] is None:
                page = reporting.of_dataset(_only_dataset(request))
            else:
                config = config_of(request, output="OUT", workers=None, overwrite=False)
                _begin(config)
                own_process.configure()
                page = reporting.of_source(config)
        reporting.write(output, page)
        if not is_quiet():
            say(f"wrote {output}, {len(page):,} bytes; open it in a browser")
        if as_json:
            click.echo(json.dumps({"report": output, "bytes": len(page)}))


def _only_dataset(request: dict[str, Any]) -> str:
    """Return the folder of a finished dataset. Raises: ConfigError if the request is one for a source."""
    from tfrecord_io.errors import ConfigError

    given = click.get_current_context()
    named = [name for name in request if given.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE]
    if named != ["datasets"] or len(request["datasets"]) > 1 or request["functions"]:
        raise ConfigError(
            "report of a finished dataset takes one folder and --output; options of build need --tokenizer too",
            remedy="leave the other options out, or add --tokenizer NAME_OR_DIR to see what build would make",
        )
    return str(_folder(given, given.command.params[0], request["datasets"][0]))


@main.command(cls=cloup.Command)
@_dataset
@click.option("--split", "splits", multiple=True, help="Split to decode; repeatable. Default: all.")
@click.option("--rows", type=click.IntRange(min=0), default=2, show_default=True, help="Rows to decode in each split.")
@common
def inspect(dataset: str, splits: tuple[str, ...], rows: int, as_json: bool, verbose: bool) -> None:
    """Show the manifest of a finished DATASET folder as a table, and rows decoded back to text."""
    with errors(verbose=verbose):
        from pipelines.cli import report
        from pipelines.prepare.audit import decode

        with quiet(verbose=verbose):
            manifest = _open(dataset)
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
@_dataset
@click.option("--repair", is_flag=True, help="Make damaged and missing files again, from the source.")
@takes_consent
@common
def verify(
    dataset: str, repair: bool, source: str | None, functions: Any, run_stored: bool, as_json: bool, verbose: bool
) -> None:
    """Read all of a finished DATASET folder, and check crcs, digests, counts, shapes and id ranges.

    The exit status is 1 if it is damaged. --source, --map, --filter and --run-stored-steps are for --repair.
    """
    with errors(verbose=verbose):
        from pipelines.prepare.audit import repair as repairing
        from pipelines.prepare.audit.consent import Consent
        from pipelines.prepare.storage import locking

        manifest = _open(dataset)
        consent = Consent(source=source, steps=functions_of(functions), run_stored=run_stored)
        with locking.held(dataset, work_folder=".prep") if repair else contextlib.nullcontext():
            damaged = _verified(dataset, manifest)
            if damaged and repair:
                with quiet(verbose=verbose):
                    for file, origin in repairing.repair(dataset, manifest, damaged, consent=consent):
                        say(f"made {file} again from {origin}")
        if as_json:
            click.echo(json.dumps([{**dataclasses.asdict(each), "repaired": repair} for each in damaged]))
        if damaged and not repair:
            _refuse(dataset, damaged)
        total = sum(len(split.shards) for split in manifest.splits.values())
        num_examples = sum(split.num_examples for split in manifest.splits.values())
        say(f"{total} shards with {num_examples:,} examples are as the manifest says")


def _verified(dataset: str, manifest: Any) -> list[Any]:
    """Print the state of each file; return the damaged ones."""
    from pipelines.prepare.audit import verify as verifying

    damaged = []
    for checked in verifying.verify_files(dataset, manifest):
        if checked.problem:
            damaged.append(checked)
            say(f"BAD  {checked.file}: {checked.problem}")
        elif checked.part == "shard" and not is_quiet():
            say(f"ok   {checked.file}")
    return damaged


def _refuse(dataset: str, damaged: list[Any]) -> None:
    from tfrecord_io.errors import CorruptRecordError

    raise CorruptRecordError(
        f"{dataset}: {len(damaged)} files are damaged or missing, the first is {damaged[0].file}",
        remedy=f"run `prep-tfrecords verify {dataset} --repair`, which makes them again",
    )


@main.command(cls=WithFunctions)
@_dataset
@cloup.option_group(
    "Which record",
    click.option("--split", help="Split of the record, or of the training (train)."),
    click.option("--shard", type=click.IntRange(min=0), metavar="I", help="Number of the shard in the split, from 0."),
    click.option("--record", type=click.IntRange(min=0), metavar="J", help="Number of the record in it, from 0."),
)
@cloup.option_group(
    "Or which step of a training",
    click.option("--step", type=click.IntRange(min=1), metavar="N", help="Number of the step, as the log counts."),
    click.option("--around", type=click.IntRange(min=0), default=0, metavar="K", help="Show the K steps before, too."),
    click.option("--run", metavar="DIR", help="The training's --model-dir, whose run.json says how it reads."),
    click.option("--global-batch-size", type=click.IntRange(min=1), help="Rows of a step, without --run."),
    click.option("--seed", type=click.IntRange(min=0), help="The training's seed, without --run. Default: 0."),
    click.option(
        "--order", type=click.Choice(["hosts", "global"]), help="The training's order, without --run. Default: global."
    ),
    click.option("--num-replicas", type=click.IntRange(min=1), default=1, help="Replicas that share a batch."),
    click.option("--replica", type=click.IntRange(min=0), metavar="R", help="Show this replica's rows only, from 0."),
)
@takes_consent
@common
def trace(
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
        manifest = _open(dataset)
        with quiet(verbose=verbose):
            opened = reopened_dataset.reopen(dataset, manifest, consent=consent)
            tracer = trace.Tracer(opened)
            found = (
                tracer.trace(split=str(split), shard=int(shard or 0), record=int(record or 0))
                if step is None
                else _traced_steps(tracer, manifest, dataset, step=step, split=split, **training)
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
        if training["run"] or training["global_batch_size"]:
            raise click.UsageError("--run and --global-batch-size are for --step.")
        return
    if shard is not None or record is not None:
        raise click.UsageError("--step together with --shard or --record, expected one or the other.")
    given = [name for name in ("global_batch_size", "seed", "order") if training[name] is not None]
    if training["run"] and (given or split):
        raise click.UsageError("--run says how it reads: leave out --split, --global-batch-size, --seed and --order.")
    if not training["run"] and training["global_batch_size"] is None:
        raise click.UsageError("--step needs --run DIR, or --global-batch-size and --seed.")


def _traced_steps(
    tracer: Any,
    manifest: Any,
    dataset: str,
    *,
    step: int,
    around: int,
    split: str | None,
    run: str | None,
    replica: int | None,
    num_replicas: int,
    **given: Any,
) -> list[Any]:
    from pipelines.prepare.audit import trace_steps
    from pipelines.prepare.audit.trace_steps import Reading

    if run:
        reading, manifest = trace_steps.of_run(run, manifest, root=dataset, replicas=num_replicas)
    else:
        options = {name: value for name, value in {**given, "split": split}.items() if value is not None}
        reading = Reading(**options, replicas=num_replicas)
    steps = range(max(1, step - around), step + 1)
    return trace_steps.trace_steps(tracer, manifest, reading, steps=steps, replica=replica)


@main.command(cls=cloup.Command)
@click.argument("dataset", required=False, callback=_folder)
@click.option("--output", "-o", metavar="OUT", help="Output of a future build: a folder or a gs:// address.")
@click.option(
    "--region", metavar="REGION", help="Region of the TPU or the workers, to compare with the bucket's location."
)
@click.option("--source", metavar="FILES", help="Data files by path or glob, to check that they can be read.")
@click.option("--tpu", type=click.Choice(["node", "vm"]), help="Check DATASET for a TPU of this kind.")
@click.option(
    "--global-batch-size",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="Examples in a step, with --tpu.",
)
@click.option("--replicas", type=click.IntRange(min=1), default=8, show_default=True, help="TPU cores, with --tpu.")
@click.option("--hosts", type=click.IntRange(min=1), default=1, show_default=True, help="TPU hosts, with --tpu.")
@common
def doctor(
    dataset: str | None,
    output: str | None,
    region: str | None,
    source: str | None,
    tpu: Any,
    as_json: bool,
    verbose: bool,
    **sizes: int,
) -> None:
    """Check whether a build can write to OUT, or whether a finished DATASET can be read by a TPU (--tpu, default node).

    In OUT, each operation of a build is tried on a small object: write, read, list, delete. Shows the credentials used.
    """
    with errors(verbose=verbose):
        from tfrecord_io.errors import ConfigError

        if (output is None) == (dataset is None) or (output is not None and tpu is not None):
            raise ConfigError(
                "doctor checks either an output or a finished dataset",
                remedy="give --output OUT, or the folder of a finished dataset (with --tpu node or vm)",
            )
        if dataset is not None and (tpu is not None or _is_finished(dataset)):
            # A TPU Node needs all that a TPU VM does, and more.
            _examine_dataset(dataset, tpu=tpu or "node", as_json=as_json, verbose=verbose, **sizes)
        else:
            with quiet(verbose=verbose):
                _examine_place(output or dataset or "", region=region, source=source, as_json=as_json)


def _is_finished(dataset: str) -> bool:
    from pipelines.prepare.dataset import own_files

    return own_files.read_manifest(dataset) is not None


def _examine_place(output: str, *, region: str | None, source: str | None, as_json: bool) -> None:
    from pipelines.prepare.doctor import doctor as doctoring
    from tfrecord_io.errors import OutputError

    checks = doctoring.diagnose(output, region=region, dataset=source)
    for check in checks:
        verdict = {True: "ok  ", False: "BAD ", None: "?   "}[check.ok]
        say(f"{verdict} {check.name}: {check.found}")
        if check.remedy:
            say(f"       {check.remedy}")
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(check) for check in checks]))
    if failed := [check.name for check in checks if check.ok is False]:
        raise OutputError(
            f"{output}: not ready for a build: {', '.join(failed)}", remedy="follow the advice below each BAD line"
        )


def _examine_dataset(
    dataset: str, *, tpu: Any, global_batch_size: int, replicas: int, hosts: int, as_json: bool, verbose: bool
) -> None:
    from tfrecord_io.errors import ConfigError

    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    try:
        tensorflow_start.load(verbose=verbose)
    except ImportError as error:
        raise ConfigError(
            f"--tpu needs TensorFlow, which cannot be imported ({error})", remedy="run `pip install '.[train]'`"
        ) from error
    from tfrecord_io import reader, readiness

    opened = reader.open(dataset)
    every = (
        finding
        # Buckets of different lengths are read separately.
        for data in [opened.bucket(length) for length in opened.manifest.bucket_lengths] or [opened]
        for name, split in data.splits.items()
        if split.num_examples
        for finding in readiness.check_data(
            data, name, tpu=tpu, global_batch_size=global_batch_size, num_replicas=replicas, num_hosts=hosts
        )
    )
    findings = list(dict.fromkeys(every))
    say(readiness.describe(findings), lines=True)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    readiness.require(findings)


def _open(dataset: str) -> Any:
    from pipelines.prepare.dataset import own_files

    return own_files.require_manifest(dataset)


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
