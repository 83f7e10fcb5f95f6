"""The command line: `prep-tfrecords`. Thin: options become a config, results become tables, errors become two lines.

Heavy libraries are imported inside the commands, so that --help answers at once. Exit status: 0 done, 1 an error
with its cause and remedy, 2 a wrong option. People read stderr, programs read stdout (--json).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

import tfrecord_io
from pipelines.console import Program, WithSteps, common, errors, quiet

__all__ = ["main"]

Command = TypeVar("Command", bound=Callable[..., Any])

# The options that say what to make, shared by `build` and `plan`, in the order of --help.
_REQUEST: list[Callable[[Any], Any]] = [
    click.argument("dataset"),
    click.option("--tokenizer", required=True, metavar="NAME_OR_DIR", help="Hub id or folder of the tokenizer."),
    click.option("--tokenizer-revision", metavar="REV", help="Branch, tag or commit of a hub tokenizer."),
    click.option("--config", "config_name", metavar="NAME", help="Configuration of a hub dataset."),
    click.option("--revision", metavar="REV", help="Branch, tag or commit of a hub dataset; pinned once."),
    click.option("--split", "splits", multiple=True, help="Repeatable, slices such as 'train[:1%]' too. Default: all."),
    click.option(
        "--text-column", "text_columns", multiple=True, metavar="NAME", help="Twice for pairs. Default: text."
    ),
    click.option("--label-column", metavar="NAME", help="Class labels, strings, integers, or floats."),
    click.option(
        "--keep-column", "keep_columns", multiple=True, metavar="NAME", help="Numbers or vectors; repeatable."
    ),
    click.option("--limit", type=int, metavar="ROWS", help="Only the first rows of each split."),
    click.option(
        "--map",
        multiple=True,
        metavar="MODULE:FUNCTION",
        help="Your own function of a pyarrow.Table that gives it changed, with as many rows. Repeatable.",
    ),
    click.option(
        "--filter",
        multiple=True,
        metavar="MODULE:FUNCTION",
        help="Your own function of a pyarrow.Table that says which rows stay. With --map in the order given.",
    ),
    click.option(
        "--layout",
        type=click.Choice(["pad", "concat", "pack", "chat", "seq2seq", "tokens", "qa"]),
        default="pad",
        show_default=True,
        help="What rows of text become, see the README's table.",
    ),
    click.option("--max-length", type=int, metavar="N", help="Tokens in a row. Default: the model's, at most 512."),
    click.option(
        "--truncation",
        type=click.Choice(["longest_first", "only_first", "only_second", "do_not_truncate"]),
        default="longest_first",
        show_default=True,
        help="What gives way in rows that are too long.",
    ),
    click.option("--truncation-side", type=click.Choice(["left", "right"]), help="Default: the tokenizer's."),
    click.option("--padding-side", type=click.Choice(["left", "right"]), help="Default: the tokenizer's."),
    click.option(
        "--remainder",
        type=click.Choice(["pad", "drop"]),
        default="pad",
        show_default=True,
        help="The last part block of a shard, with --layout concat.",
    ),
    click.option("--add-bos", is_flag=True, help="Begin each document with BOS, with --layout concat or pack."),
    click.option(
        "--long-documents",
        type=click.Choice(["split", "drop"]),
        default="split",
        show_default=True,
        help="Documents of more than --max-length tokens, with --layout pack.",
    ),
    click.option("--stride", type=int, metavar="N", help="Tokens that windows of a long row share, with pad or qa."),
    click.option(
        "--bucket-lengths",
        metavar="N,N,…|auto:K",
        help="Several lengths of rows, each in shards of its own, with pad; auto wastes least.",
    ),
    click.option("--target-column", metavar="NAME", help="What is to be generated, with --layout seq2seq."),
    click.option("--target-length", type=int, metavar="N", help="Tokens of it. Default: as --max-length."),
    click.option("--input-prefix", default="", metavar="TEXT", help="Put before each text, with --layout seq2seq."),
    click.option("--messages-column", metavar="NAME", help="Conversations, with --layout chat. Default: messages."),
    click.option("--tools-column", metavar="NAME", help="Tools for the chat template, with --layout chat."),
    click.option("--pack-rows", is_flag=True, help="Several conversations in a row, with --layout chat."),
    click.option("--chat-date", metavar="DATE", help="What chat templates that write today's date are told."),
    click.option("--words-column", metavar="NAME", help="Lists of words, with --layout tokens. Default: tokens."),
    click.option("--tags-column", metavar="NAME", help="Their labels, with --layout tokens. Default: tags."),
    click.option("--label-all-tokens", is_flag=True, help="Not only each word's first, with --layout tokens."),
    click.option("--answers-column", metavar="NAME", help="With --layout qa. Default: answers."),
    click.option("--shard-size", default="100MB", show_default=True, metavar="SIZE", help="Bytes of one shard."),
    click.option(
        "--compression",
        type=click.Choice(["none", "gzip"]),
        default="none",
        show_default=True,
        help="TFDS cannot read gzip.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Decides the order of rows."),
    click.option("--shuffle/--no-shuffle", default=True, show_default=True, help="Or keep the source's order."),
    click.option("--max-error-rate", type=float, default=0.0, show_default=True, help="Share of rows that may be bad."),
    click.option(
        "--engine",
        type=click.Choice(["auto", "hf", "wordpiece", "fastokens", "gigatoken"]),
        default="auto",
        show_default=True,
        help="What tokenizes: all give the same tokens, auto is the fastest for the tokenizer.",
    ),
    click.option("--name", metavar="NAME", help="Begins the shards' names. Default: from DATASET."),
]


def _request(command: Command) -> Command:
    for option in reversed(_REQUEST):
        command = option(command)
    return command


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(tfrecord_io.__version__, prog_name="prep-tfrecords")
def main() -> None:
    """From a Hugging Face dataset to TFRecord shards with static shapes."""


@main.command(cls=WithSteps, context_settings={"ignore_unknown_options": False})
@_request
@click.option("--output", required=True, metavar="OUT", help="Folder or gs:// address.")
@click.option("--workers", type=int, metavar="N", help="Threads. Default: every core. Never changes a byte.")
@click.option("--resume/--overwrite", default=True, help="Go on where a run stopped (default), or start over.")
@common
@click.argument("beam_args", nargs=-1, type=click.UNPROCESSED)
def build(output: str, workers: int | None, resume: bool, as_json: bool, verbose: bool, **request: Any) -> None:
    """Make a dataset from DATASET: a hub id, files by path or glob, or a folder.

    Everything after -- goes to Beam, for example: -- --runner=DataflowRunner --region=us-central1
    """
    with errors(verbose=verbose):
        config = _config(request, output=output, workers=workers, overwrite=not resume)
        from pipelines.prepare import build as building
        from pipelines.prepare import report
        from tfrecord_io import manifest

        with quiet(verbose=verbose):
            built = building.build(config, watch=report.watch)
        report.summary(built)
        if as_json:
            click.echo(json.dumps({"manifest_sha256": manifest.digest(built.manifest), **_built(built)}))
    # Beam's runner on our own threads takes a second to go away, and has nothing left to do.
    main.leaves_at_once = not request.get("beam_args")


@main.command(cls=WithSteps)
@_request
@common
def plan(as_json: bool, verbose: bool, **request: Any) -> None:
    """Show from a sample what `build` with the same arguments would make. Writes nothing."""
    with errors(verbose=verbose):
        config = _config(request, output=".", workers=None, overwrite=False)
        from pipelines.prepare import estimate, report

        with quiet(verbose=verbose):
            found = estimate.estimate(config)
        report.estimates(found)
        if as_json:
            click.echo(json.dumps([each.to_json() for each in found]))


@main.command()
@click.argument("dataset")
@click.option("--split", "splits", multiple=True, help="Repeatable. Default: every split.")
@click.option("--rows", type=click.IntRange(min=0), default=2, show_default=True, help="Rows to decode of each split.")
@common
def inspect(dataset: str, splits: tuple[str, ...], rows: int, as_json: bool, verbose: bool) -> None:
    """Show the manifest of a finished DATASET folder as a table, and rows decoded back to text."""
    with errors(verbose=verbose):
        from pipelines.prepare import inspection, report

        with quiet(verbose=verbose):
            manifest = _open(dataset)
            decoded = [
                row
                for split in splits or tuple(manifest.splits)
                for row in inspection.decoded_rows(dataset, manifest, split, rows=rows)
            ]
        report.manifest_tables(manifest)
        report.rows(decoded)
        if as_json:
            click.echo(json.dumps([dataclasses.asdict(row) for row in decoded]))


@main.command()
@click.argument("dataset")
@click.option("--repair", is_flag=True, help="Make again what is damaged or missing, from the plan and the source.")
@click.option("--source", metavar="DATASET", help="Where the source is now, with --repair, if it was moved.")
@common
def verify(dataset: str, repair: bool, source: str | None, as_json: bool, verbose: bool) -> None:
    """Reread all of a finished DATASET folder: crcs, digests, counts, shapes, id ranges. Exit status 1 if it is
    damaged.
    """
    with errors(verbose=verbose):
        from pipelines.prepare import locking
        from pipelines.prepare import repair as repairing

        manifest = _open(dataset)
        with locking.held(dataset, work_folder=".prep") if repair else contextlib.nullcontext():
            damaged = _verified(dataset, manifest)
            if damaged and repair:
                with quiet(verbose=verbose):
                    for file, origin in repairing.repair(dataset, manifest, damaged, dataset=source):
                        click.echo(f"made {file} again from {origin}", err=True)
        if as_json:
            click.echo(json.dumps([{**dataclasses.asdict(each), "repaired": repair} for each in damaged]))
        if damaged and not repair:
            _refuse(dataset, damaged)
        total = sum(len(split.shards) for split in manifest.splits.values())
        num_examples = sum(split.num_examples for split in manifest.splits.values())
        click.echo(f"{total} shards with {num_examples:,} examples are as the manifest says", err=True)


def _verified(dataset: str, manifest: Any) -> list[Any]:
    """Says of each file what it is, and returns the damaged ones."""
    from pipelines.prepare import verify as verifying

    damaged = []
    for checked in verifying.verify_files(dataset, manifest):
        if checked.problem:
            damaged.append(checked)
            click.echo(f"BAD  {checked.file}: {checked.problem}", err=True)
        elif checked.part == "shard":
            click.echo(f"ok   {checked.file}", err=True)
    return damaged


def _refuse(dataset: str, damaged: list[Any]) -> None:
    from tfrecord_io.errors import CorruptRecordError

    raise CorruptRecordError(
        f"{dataset}: {len(damaged)} files are damaged or missing, the first is {damaged[0].file}",
        remedy=f"run `prep-tfrecords verify {dataset} --repair`, which makes them again",
    )


@main.command()
@click.argument("dataset")
@click.option("--split", required=True, help="Of the record.")
@click.option("--shard", required=True, type=click.IntRange(min=0), metavar="I", help="Number in the split, from 0.")
@click.option("--record", required=True, type=click.IntRange(min=0), metavar="J", help="Number in the shard, from 0.")
@click.option("--source", metavar="DATASET", help="Where the source is now, if it was moved.")
@common
def trace(dataset: str, split: str, shard: int, record: int, source: str | None, as_json: bool, verbose: bool) -> None:
    """Show from which rows of the source a record of a finished DATASET folder was made."""
    with errors(verbose=verbose):
        from pipelines.prepare import lineage, reopening, report

        with quiet(verbose=verbose):
            opened = reopening.reopen(dataset, _open(dataset), dataset=source)
            found = lineage.Tracer(opened).trace(split=split, shard=shard, record=record)
        report.traced(found)
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(found)))


@main.command()
@click.argument("dataset", required=False)
@click.option("--output", metavar="OUT", help="Folder or gs:// address that a build is to write to.")
@click.option(
    "--region", metavar="REGION", help="Where the TPU or the workers are, to compare with the bucket's place."
)
@click.option("--source", metavar="FILES", help="Data files by path or glob, to see whether they can be read.")
@click.option("--tpu", type=click.Choice(["node", "vm"]), help="Is DATASET fit for a TPU of this kind?")
@click.option("--global-batch-size", type=click.IntRange(min=1), default=1024, show_default=True, help="With --tpu.")
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
    """Is a place ready for a dataset (--output), or a finished DATASET for a TPU (--tpu)?

    Tries in OUT, on a small object, all that a build does there: write, read, list, delete; and says who we are.
    """
    with errors(verbose=verbose):
        from tfrecord_io.errors import ConfigError

        if (output is None) == (dataset is None) or (dataset is None) != (tpu is None):
            raise ConfigError(
                "doctor looks at one thing at a time", remedy="give --output OUT, or DATASET with --tpu node or vm"
            )
        if dataset is not None:
            _examine_dataset(dataset, tpu=tpu, as_json=as_json, **sizes)
        elif output is not None:
            with quiet(verbose=verbose):
                _examine_place(output, region=region, source=source, as_json=as_json)


def _examine_place(output: str, *, region: str | None, source: str | None, as_json: bool) -> None:
    from pipelines.prepare import doctor as doctoring
    from tfrecord_io.errors import OutputError

    checks = doctoring.diagnose(output, region=region, dataset=source)
    for check in checks:
        mark = {True: "ok  ", False: "BAD ", None: "?   "}[check.ok]
        click.echo(f"{mark} {check.name}: {check.found}", err=True)
        if check.remedy:
            click.echo(f"       {check.remedy}", err=True)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(check) for check in checks]))
    if failed := [check.name for check in checks if check.ok is False]:
        raise OutputError(
            f"{output}: not ready for a dataset: {', '.join(failed)}", remedy="do what stands below each BAD line"
        )


def _examine_dataset(
    dataset: str, *, tpu: Any, global_batch_size: int, replicas: int, hosts: int, as_json: bool
) -> None:
    from tfrecord_io.errors import ConfigError

    if importlib.util.find_spec("tensorflow") is None:
        raise ConfigError("--tpu needs TensorFlow, which is not installed", remedy="run `pip install '.[train]'`")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    from tfrecord_io import reader, readiness

    opened = reader.open(dataset)
    every = (
        finding
        # Rows of each length are read by themselves.
        for data in [opened.bucket(length) for length in opened.manifest.bucket_lengths] or [opened]
        for name, split in data.splits.items()
        if split.num_examples
        for finding in readiness.check_data(
            data, name, tpu=tpu, global_batch_size=global_batch_size, num_replicas=replicas, num_hosts=hosts
        )
    )
    found = list(dict.fromkeys(every))
    click.echo(readiness.describe(found), err=True)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in found]))
    readiness.require(found)


def _open(dataset: str) -> Any:
    from pipelines.prepare import workspace

    return workspace.require_manifest(dataset)


def _config(request: dict[str, Any], *, output: str, workers: int | None, overwrite: bool) -> Any:
    from pipelines.prepare import config

    return config.PrepareConfig(
        source=config.SourceConfig(
            dataset=request["dataset"],
            config=request["config_name"],
            revision=request["revision"],
            splits=request["splits"],
            text_columns=request["text_columns"] or ("text",),
            label_column=request["label_column"],
            keep_columns=request["keep_columns"],
            limit=request["limit"],
            steps=tuple(config.StepConfig(kind=kind, spec=spec) for kind, spec in request["steps"]),
            **{name: request[name] for name in config.LAYOUT_COLUMNS},
        ),
        tokenizer=config.TokenizerConfig(
            name=request["tokenizer"],
            revision=request["tokenizer_revision"],
            truncation_side=request["truncation_side"],
            padding_side=request["padding_side"],
        ),
        output=config.OutputConfig(
            root=output,
            name=request["name"] or config.default_name(request["dataset"]),
            shard_bytes=config.parse_size(request["shard_size"]),
            compression=request["compression"],
        ),
        layout=config.LayoutConfig(
            name=request["layout"],
            max_length=request["max_length"],
            **{name: request[name] for name in config.LAYOUT_OPTIONS if name in request},
        ),
        seed=request["seed"],
        shuffle=request["shuffle"],
        engine=request["engine"],
        max_error_rate=request["max_error_rate"],
        overwrite=overwrite,
        workers=workers,
        beam_args=request.get("beam_args", ()),
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
