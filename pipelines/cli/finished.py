"""The commands of `prep-tfrecords` on a finished dataset: inspect, verify, trace, report, doctor."""

import contextlib
import dataclasses
import functools
import itertools
import os
from typing import Any

import click
import cloup

from pipelines.cli.request import WithFunctions, folder, takes_consent, takes_dataset
from pipelines.configs import functions_of
from pipelines.prepare.options.addresses import ADDRESS
from pipelines.terminal import tensorflow_start
from pipelines.terminal.console import common, is_quiet, is_verbose, say, show, write_json
from tfrecord_io.errors import ConfigError, CorruptRecordError, ManifestError, OutputError
from tfrecord_io.local_paths import local_path
from tfrecord_io.shown import some

_NUMBER = click.IntRange(min=0)


@cloup.command(short_help="Write a page of charts, tables and rows of a dataset.")
@takes_dataset
@cloup.option_group(
    "Required",
    cloup.option("--output", "-o", required=True, metavar="FILE", help=f"HTML file, local or at a {ADDRESS} address."),
)
@common(progress=False)
def report(dataset: str, output: str) -> None:
    """Write a report of a finished DATASET folder as one HTML page, which needs no other files."""
    from pipelines.prepare import storage
    from pipelines.prepare.report import report as reporting

    reporting.check_output(output)
    page = reporting.of_dataset(dataset)
    storage.write_bytes(output, page)
    if not is_quiet():
        say(f"wrote {output} ({len(page):,} bytes); open it in a browser")
    write_json({"report": output, "bytes": len(page)})


@cloup.command(short_help="Show a finished dataset, and rows decoded to text.")
@takes_dataset
@click.option("--split", "splits", multiple=True, help="Split to decode; repeatable. Default: all.")
@click.option("--rows", type=click.IntRange(min=0), default=2, show_default=True, help="Rows to decode in each split.")
@common(progress=False)
def inspect(dataset: str, splits: tuple[str, ...], rows: int) -> None:
    """Show the manifest of a finished DATASET folder as a table, and rows decoded back to text."""
    from pipelines import python_api
    from pipelines.cli import printing

    inspected = python_api.inspect(dataset, split=splits, rows=rows)
    printing.manifest_tables(inspected.manifest)
    printing.rows(inspected.rows)
    write_json([row.to_json() for row in inspected.rows])


@cloup.command(cls=WithFunctions, short_help="Check every byte of a finished dataset; repair it.")
@takes_dataset
@click.option("--repair", is_flag=True, help="Make damaged and missing files again, from the source.")
@takes_consent
@common()
def verify(dataset: str, repair: bool, source: str | None, functions: Any, run_stored: bool) -> None:
    """Read a finished DATASET folder completely, and check crcs, digests, counts, shapes and id ranges.

    The exit status is 1 if a file is damaged. --source, --map, --filter and --run-stored-functions are for --repair. A
    folder written by `export` is checked against its export.json.
    """
    if _verify_export(dataset, repair=repair):
        return
    from pipelines.prepare.audit import verify as verifying
    from pipelines.prepare.audit.consent import Consent
    from pipelines.prepare.dataset import own_files
    from pipelines.prepare.storage import local_storage

    manifest = own_files.require_manifest(dataset)
    consent = Consent(source=source, functions=functions_of(functions), run_stored=run_stored)
    with local_storage.locked(dataset) if repair else contextlib.nullcontext():
        damaged = []
        for checked in verifying.verify_files(dataset, manifest):
            if checked.problem:
                damaged.append(checked)
                show(f"BAD  {checked.file}: {checked.problem}")
            elif checked.part == "shard" and not is_quiet():
                show(f"ok   {checked.file}")
        if damaged and repair:
            for file, origin in verifying.repair(dataset, manifest, damaged, consent=consent):
                show(f"made {file} again from {origin}")
    write_json([{**dataclasses.asdict(checked), "repaired": repair} for checked in damaged])
    if damaged and not repair:
        can_repair = any(checked.part != "manifest" for checked in damaged)
        raise CorruptRecordError(
            f"{dataset}: {some(len(damaged), 'file')} damaged or missing, the first is {damaged[0].file}",
            remedy=f"run `prep-tfrecords verify {dataset} --repair` to remake damaged and missing files"
            if can_repair
            else "copy it from an intact copy of the dataset, since it cannot be made again",
        )
    total = sum(len(split.shards) for split in manifest.splits.values())
    num_examples = sum(split.num_examples for split in manifest.splits.values())
    show(f"all files match the manifest: {some(total, 'shard')} with {some(num_examples, 'example')}")


def _verify_export(root: str, *, repair: bool) -> bool:
    from pipelines.prepare.export import export_record

    if (record := export_record.read(root)) is None:
        return False
    again = "delete the damaged files and run the same export again, which writes missing files"
    if repair:
        raise ConfigError(f"--repair with {root}: the folder is an export, expected a dataset", remedy=again)
    checked = list(export_record.problems(root, record))
    damaged = [{"file": name, "problem": problem} for name, problem in checked if problem]
    for file in damaged:
        show(f"BAD  {file['file']}: {file['problem']}")
    write_json(damaged)
    if damaged:
        raise CorruptRecordError(f"{root}: {damaged[0]['file']} is damaged or missing", remedy=again)
    show(f"all files match export.json: {some(len(checked), 'file')}")
    return True


@cloup.command(cls=WithFunctions, short_help="Show the source rows of a record.")
@takes_dataset
@cloup.option_group(
    "Required",
    cloup.option("--split", required=True, help="Split of the record."),
    cloup.option("--shard", type=_NUMBER, required=True, metavar="I", help="Number of the shard, from 0."),
    cloup.option("--record", type=_NUMBER, required=True, metavar="J", help="Number of the record in it, from 0."),
)
@takes_consent
@common(progress=False)
def trace(dataset: str, source: str | None, functions: Any, run_stored: bool, **record: Any) -> None:
    """Show the source rows of a record in a finished DATASET folder."""
    from pipelines.cli import printing
    from pipelines.prepare.audit import reopened_dataset
    from pipelines.prepare.audit import trace as tracing
    from pipelines.prepare.audit.consent import Consent
    from pipelines.prepare.dataset import own_files

    consent = Consent(source=source, functions=functions_of(functions), run_stored=run_stored)
    manifest = own_files.require_manifest(dataset)
    traced = tracing.Tracer(reopened_dataset.reopen(dataset, manifest, consent=consent)).trace(**record)
    printing.traced(traced)
    write_json(dataclasses.asdict(traced))


_size = functools.partial(click.option, type=click.IntRange(min=1), show_default=True)


@cloup.command(short_help="Check that a bucket, a TPU or a dataset is ready.")
@click.argument("dataset", required=False, callback=folder)
@click.option("--output", "-o", metavar="OUT", help=f"Output of a future build: a folder or a {ADDRESS} address.")
@click.option(
    "--region", metavar="REGION", help="Region of the TPU or the workers, to compare with the bucket's location."
)
@click.option(
    "--tpu",
    type=click.Choice(["node", "vm"]),
    help="Kind of TPU to check DATASET for. Default: node for gs://, else vm.",
)
@_size("--global-batch-size", default=1024, help="Examples in a step, with --tpu.")
@_size("--replicas", "num_replicas", default=8, help="TPU cores, with --tpu.")
@_size("--hosts", "num_hosts", default=1, help="TPU hosts, with --tpu.")
@common(progress=False)
def doctor(dataset: str | None, output: str | None, region: str | None, tpu: Any, **sizes: int) -> None:
    """Check whether a build can write to OUT, or whether a TPU can read a finished DATASET.

    For OUT, it writes, reads, lists and deletes a small object, and shows the credentials used.

    Without OUT and DATASET, it lists versions, cores and memory, for bug reports.
    """
    if output is not None and dataset is None and tpu is None:
        _check_place(output, region=region)
    elif dataset is not None and output is None:
        # The check for a TPU Node is stricter, but a TPU Node cannot read local files.
        _check_dataset(dataset, tpu=tpu or ("node" if local_path(dataset) is None else "vm"), **sizes)
    elif dataset is None and output is None and tpu is None:
        from pipelines.prepare.launch import doctor as diagnosing

        facts = diagnosing.describe_machine()
        for name, value in facts.items():
            show(f"{name}: {value}")
        write_json(facts)
    else:
        remedy = "give --output OUT, or the folder of a finished dataset (with --tpu node or vm)"
        raise ConfigError("doctor checks either an output or a finished dataset", remedy=remedy)


def _check_place(output: str, *, region: str | None) -> None:
    from pipelines.prepare.launch import doctor as diagnosing

    checks = list(diagnosing.diagnose(output, region=region))
    for check in checks:
        verdict = {True: "ok  ", False: "BAD ", None: "?   "}[check.ok]
        show(f"{verdict} {check.name}: {check.found}")
        if check.remedy:
            show(f"       {check.remedy}")
    write_json([check._asdict() for check in checks])
    if failed := ", ".join(check.name for check in checks if check.ok is False):
        raise OutputError(f"{output}: not ready for a build: {failed}", remedy="follow the remedy below each BAD line")


def _check_dataset(dataset: str, *, tpu: Any, **sizes: int) -> None:
    from pipelines.prepare.dataset import own_files

    if own_files.read_manifest(dataset) is None:
        raise ManifestError(
            f"{dataset}: not the folder of a finished dataset (doctor does not look for datasets on the Hub)",
            remedy=f"to check the output of a build, give --output {dataset}; to check its source, run `plan`",
        )
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    try:
        tensorflow_start.load(verbose=is_verbose())
    except ImportError as error:
        cause = f"--tpu needs TensorFlow, which cannot be imported ({error})"
        raise ConfigError(cause, remedy="run `pip install '.[train]'`") from error
    from tfrecord_io import reader, readiness

    opened = reader.open(dataset)
    parts = [opened.bucket(length) for length in opened.manifest.bucket_lengths] or [opened]
    splits = [(data, name) for data in parts for name, split in data.splits.items() if split.num_examples]
    checks = (readiness.check_data(data, name, tpu=tpu, **sizes) for data, name in splits)
    findings = list(dict.fromkeys(itertools.chain.from_iterable(checks)))
    show(readiness.describe(findings), lines=True)
    write_json([dataclasses.asdict(finding) for finding in findings])
    readiness.require(findings)
