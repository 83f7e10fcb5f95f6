"""The options of `build`, all of which `plan` takes too, and the config that they become; and those by which `trace`
and `verify` may run code or fetch a source.

Options that only some layouts take are in a list of their own; `prepare.options.layout_traits` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import click

from pipelines.prepare.options.engine_names import ENGINES
from pipelines.prepare.options.layout_traits import LAYOUT_COLUMNS, LAYOUT_OPTIONS, LAYOUT_TRAITS

__all__ = ["config_of", "functions_of", "takes_consent", "takes_making", "takes_request"]

Command = TypeVar("Command", bound=Callable[..., Any])

# In the order of --help.
_REQUEST: list[Callable[[Any], Any]] = [
    click.argument("datasets", nargs=-1, required=True, metavar="DATASET..."),
    click.option("--tokenizer", required=True, metavar="NAME_OR_DIR", help="Hub id or folder of the tokenizer."),
    click.option("--tokenizer-revision", metavar="REV", help="Branch, tag or commit of a hub tokenizer."),
    click.option("--config", "config_name", metavar="NAME", help="Configuration of a hub dataset."),
    click.option("--revision", metavar="REV", help="Branch, tag or commit of a hub dataset; pinned once."),
    click.option(
        "--split",
        "splits",
        multiple=True,
        metavar="[NAME=]SPLIT",
        help="Repeatable, slices such as 'train[:1%]' too, named or not. Default: all.",
    ),
    click.option(
        "--hold-out",
        multiple=True,
        metavar="NAME=1%",
        help="A new split of random rows, or NAME=ROWS; NAME=SPLIT:1% says of which split. Repeatable.",
    ),
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
        type=click.Choice(list(LAYOUT_TRAITS)),
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
        type=click.Choice(ENGINES),
        default="auto",
        show_default=True,
        help="What tokenizes: all give the same tokens, auto is the fastest for the tokenizer.",
    ),
    click.option("--name", metavar="NAME", help="Begins the shards' names. Default: from DATASET."),
]
_OF_LAYOUTS: list[Callable[[Any], Any]] = [
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
    click.option("--chat-template", metavar="NAME", help="One of the tokenizer's templates. Default: as it chooses."),
    click.option("--chat-date", metavar="DATE", help="What chat templates that write today's date are told."),
    click.option("--words-column", metavar="NAME", help="Lists of words, with --layout tokens. Default: tokens."),
    click.option("--tags-column", metavar="NAME", help="Their labels, with --layout tokens. Default: tags."),
    click.option("--label-all-tokens", is_flag=True, help="Not only each word's first, with --layout tokens."),
    click.option("--answers-column", metavar="NAME", help="With --layout qa. Default: answers."),
]
# How it is made: of no use to `plan`, which takes them so that another word in front of the same line tries it out.
_MAKING: list[Callable[[Any], Any]] = [
    click.option(
        "--workers", "--num-proc", type=int, metavar="N", help="Threads. Default: every core. Never changes a byte."
    ),
    click.option("--resume/--overwrite", default=True, help="Go on where a run stopped (default), or start over."),
    click.option(
        "--keep-ingested",
        metavar="FOLDER",
        help="Keep the copy that sources other than Parquet are turned into, for the next build of the same source.",
    ),
    click.option("--dry-run", is_flag=True, help="Show what would be made, as `plan` does. Writes nothing."),
]


def takes_making(*, output_required: bool) -> Callable[[Command], Command]:
    """Gives a command all options that say where and how to make it."""
    output = click.option("--output", required=output_required, metavar="OUT", help="Folder or gs:// address.")

    def take(command: Command) -> Command:
        for option in reversed([output, *_MAKING]):
            command = option(command)
        return command

    return take


# What a finished dataset may not bring about by itself (`prepare.consent`).
_CONSENT: list[Callable[[Any], Any]] = [
    click.option(
        "--source", metavar="DATASET", help="Where the source is. Needed if it was moved, or is not on this machine."
    ),
    click.option(
        "--map", multiple=True, metavar="MODULE:FUNCTION", help="The dataset's own steps, named again as for build."
    ),
    click.option("--filter", multiple=True, metavar="MODULE:FUNCTION", help="Likewise, in the same order."),
    click.option(
        "--run-stored-steps",
        "run_stored",
        is_flag=True,
        help="Run the functions that are stored in the dataset: only if you trust whoever made it.",
    ),
]


def takes_consent(command: Command) -> Command:
    """Gives a command the options without which no code of a dataset runs, and nothing is fetched."""
    for option in reversed(_CONSENT):
        command = option(command)
    return command


def functions_of(pairs: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Turn the --map and --filter values of `WithFunctions` into FunctionOptions. Raises: ConfigError."""
    from pipelines.prepare.options import config

    return tuple(config.FunctionOption(kind=cast(Any, kind), spec=spec) for kind, spec in pairs)


def takes_request(command: Command) -> Command:
    """Gives a command all options that say what to make."""
    for option in reversed([*_REQUEST, *_OF_LAYOUTS]):
        command = option(command)
    return command


def config_of(request: Mapping[str, Any], *, output: str, workers: int | None, overwrite: bool) -> Any:
    """The PrepareConfig that the options ask for. Raises: ConfigError."""
    from pipelines.prepare.options import config, paths

    dataset, *more = request["datasets"]
    found = config.PrepareConfig(
        source=config.SourceConfig(
            dataset=dataset,
            more_paths=tuple(more),
            config=request["config_name"],
            revision=request["revision"],
            splits=request["splits"],
            text_columns=request["text_columns"] or ("text",),
            label_column=request["label_column"],
            keep_columns=request["keep_columns"],
            limit=request["limit"],
            hold_out=request["hold_out"],
            functions=functions_of(request["functions"]),
            **{name: request[name] for name in LAYOUT_COLUMNS},
        ),
        tokenizer=config.TokenizerConfig(
            name=request["tokenizer"],
            revision=request["tokenizer_revision"],
            truncation_side=request["truncation_side"],
            padding_side=request["padding_side"],
        ),
        output=config.OutputConfig(
            root=output,
            name=request["name"] or "",
            shard_bytes=config.parse_size(request["shard_size"]),
            compression=request["compression"],
        ),
        layout=config.LayoutConfig(
            name=request["layout"],
            max_length=request["max_length"],
            **{name: request[name] for name in LAYOUT_OPTIONS if name in request},
        ),
        seed=request["seed"],
        shuffle=request["shuffle"],
        engine=request["engine"],
        max_error_rate=request["max_error_rate"],
        overwrite=overwrite,
        workers=workers,
        beam_args=request.get("beam_args", ()),
        keep_ingested=request.get("keep_ingested"),
    )
    # Before anything large is imported.
    paths.require_dataset(dataset, *more)
    paths.require_tokenizer(request["tokenizer"])
    return found
