"""The command `prep-tfrecords doctor`: whether a place can be written to, or a dataset read by a TPU."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import click
import cloup

from pipelines.cli.request import folder
from pipelines.terminal import tensorflow_start
from pipelines.terminal.console import common, errors, quiet, show
from tfrecord_io.local_paths import local_path

__all__ = ["examine"]


@click.command("doctor", cls=cloup.Command)
@click.argument("dataset", required=False, callback=folder)
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
def examine(
    dataset: str | None,
    output: str | None,
    region: str | None,
    source: str | None,
    tpu: Any,
    as_json: bool,
    verbose: bool,
    **sizes: int,
) -> None:
    """Check whether a build can write to OUT, or whether a finished DATASET can be read by a TPU.

    --tpu is by default node for a dataset on gs://, and vm for a local one.

    In OUT, each operation of a build is tried on a small object: write, read, list, delete. Shows the credentials used.
    """
    with errors(verbose=verbose):
        from tfrecord_io.errors import ConfigError

        if (output is None) == (dataset is None) or (output is not None and tpu is not None):
            raise ConfigError(
                "doctor checks either an output or a finished dataset",
                remedy="give --output OUT, or the folder of a finished dataset (with --tpu node or vm)",
            )
        if dataset is not None:
            _require_finished(dataset)
            # A TPU Node needs all that a TPU VM does, and more; but it reads no local files.
            kind = tpu or ("node" if local_path(dataset) is None else "vm")
            _examine_dataset(dataset, tpu=kind, as_json=as_json, verbose=verbose, **sizes)
        elif output is not None:
            with quiet(verbose=verbose):
                _examine_place(output, region=region, source=source, as_json=as_json)


def _require_finished(dataset: str) -> None:
    from pipelines.prepare.dataset import own_files
    from tfrecord_io.errors import ManifestError

    if own_files.read_manifest(dataset) is None:
        raise ManifestError(
            f"{dataset}: no finished dataset is here, and names on the hub are not looked up",
            remedy=f"to check where a build is to write, give --output {dataset}, and --source FILES for what it reads",
        )


def _examine_place(output: str, *, region: str | None, source: str | None, as_json: bool) -> None:
    from pipelines.prepare.doctor import doctor as doctoring
    from tfrecord_io.errors import OutputError

    checks = doctoring.diagnose(output, region=region, dataset=source)
    for check in checks:
        verdict = {True: "ok  ", False: "BAD ", None: "?   "}[check.ok]
        show(f"{verdict} {check.name}: {check.found}")
        if check.remedy:
            show(f"       {check.remedy}")
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
    show(readiness.describe(findings), lines=True)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    readiness.require(findings)
