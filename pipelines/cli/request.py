"""The options of `build` and `plan` and the config made from them, and the consent options of `trace` and `verify`.

Options are in groups, which --help shows.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import click
import cloup

from pipelines.prepare.options.engine_names import ENGINES
from pipelines.prepare.options.layout_traits import LAYOUT_COLUMNS, LAYOUT_OPTIONS, LAYOUT_TRAITS
from pipelines.prepare.options.source_config import SOURCE_OPTIONS

__all__ = [
    "config_of",
    "functions_of",
    "may_take_request",
    "read_template",
    "source_of",
    "takes_consent",
    "takes_making",
    "takes_request",
    "takes_source",
]

Command = TypeVar("Command", bound=Callable[..., Any])

# The arguments and options of several commands, in the order of --help.
_DATASET = click.argument("datasets", nargs=-1, required=True, metavar="DATASET...")
_SPLITS = [
    click.option("--config", "config_name", metavar="NAME", help="Configuration of a hub dataset."),
    click.option("--revision", metavar="REV", help="Branch, tag or commit of a hub dataset; pinned once."),
    click.option(
        "--format",
        metavar="READER",
        help="Reader of `datasets`, such as json, csv, text or webdataset. Default: by the names of the files.",
    ),
    click.option(
        "--data-files",
        multiple=True,
        metavar="[SPLIT=]PATTERN",
        help="Files of the dataset to read, and their split; train by default. Repeatable.",
    ),
    click.option(
        "--source-option",
        "source_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Option of the reader, such as delimiter=';' of csv or field=data of json. Repeatable.",
    ),
    click.option(
        "--sample-by",
        type=click.Choice(["line", "paragraph", "document"]),
        help="What a row of text files is. Default: line.",
    ),
    click.option(
        "--split",
        "splits",
        multiple=True,
        metavar="[NAME=]SPLIT",
        help="Split, or slice such as 'train[:1%]', with a new name if you like. Repeatable. Default: all.",
    ),
]
_TEXTS = [
    click.option(
        "--text-column",
        "text_columns",
        multiple=True,
        metavar="NAME",
        help="Column of texts, or a field such as translation.en; two for pairs. Default: text.",
    ),
]
_ROWS = [
    click.option("--limit", type=int, metavar="ROWS", help="Use only the first ROWS rows of each split."),
    click.option(
        "--map",
        multiple=True,
        allow_from_autoenv=False,  # its order with --filter is that of the command line
        metavar="MODULE:FUNCTION",
        help="Your own function from a pyarrow.Table to a changed one with as many rows; or fix_text, mask_pii. "
        "Repeatable.",
    ),
    click.option(
        "--filter",
        multiple=True,
        allow_from_autoenv=False,
        metavar="MODULE:FUNCTION",
        help="Your own function from a pyarrow.Table to a mask of rows to keep; or c4_quality, gopher_quality, "
        "gopher_repetition, 'language(en)', 'length(200, 100000)'. Runs with --map in this order.",
    ),
]
_HELD_OUT = [
    click.option(
        "--hold-out",
        multiple=True,
        metavar="NAME=1%",
        help="Make a new split of random rows, also as NAME=0.01, NAME=ROWS or NAME=SPLIT:1%. Repeatable.",
    ),
    click.option(
        "--hold-out-by",
        metavar="COLUMN",
        help="Keep rows with the same value of this column, such as a user or a document, in one split.",
    ),
]
_COMPARED = [
    click.option(
        "--dedup",
        type=click.Choice(["exact", "verbatim"]),
        help="Of rows with the same text in a split keep the first. exact: in NFKC, whatever case and white space.",
    ),
    click.option("--dedup-across-splits", is_flag=True, help="Rows of other splits leave train, too."),
    click.option(
        "--decontaminate",
        multiple=True,
        metavar="DATASET[:COLUMN]",
        help="Leave out rows that share a run of words with this evaluation set. Repeatable.",
    ),
    click.option(
        "--decontaminate-words", type=int, default=13, show_default=True, metavar="N", help="Length of such a run."
    ),
]
_OTHER_COLUMNS = [
    click.option(
        "--label-column",
        metavar="NAME",
        help="Column of class labels, strings, integers, or floats, or of lists of classes.",
    ),
    click.option("--label-classes", is_flag=True, help="Make each distinct number of --label-column a class."),
    click.option(
        "--keep-column",
        "keep_columns",
        multiple=True,
        metavar="NAME",
        help="Column of numbers, vectors, strings or bytes to store with each row. Repeatable.",
    ),
]
_TOKENIZER = [
    click.option("--tokenizer-revision", metavar="REV", help="Branch, tag or commit of a hub tokenizer."),
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default="auto",
        show_default=True,
        help="Implementation of the tokenizer; all give the same tokens, auto chooses the fastest.",
    ),
    click.option("--truncation-side", type=click.Choice(["left", "right"]), help="Default: the tokenizer's."),
    click.option("--padding-side", type=click.Choice(["left", "right"]), help="Default: the tokenizer's."),
]
_LAYOUT = [
    click.option(
        "--layout",
        type=click.Choice(list(LAYOUT_TRAITS)),
        default="pad",
        show_default=True,
        help="How texts become rows of tokens; `plan` compares them on your rows.",
    ),
    click.option("--max-length", type=int, metavar="N", help="Tokens in a row. Default: the model's, at most 512."),
    click.option(
        "--truncation",
        type=click.Choice(["longest_first", "only_first", "only_second", "do_not_truncate"]),
        default="longest_first",
        show_default=True,
        help="Which text is cut in rows that are too long.",
    ),
]
# What only some layouts take; `options.layout_traits` says which.
_OF_LAYOUTS = {
    "Layout pad, and qa": [
        click.option(
            "--bucket-lengths",
            metavar="N,N,…|auto:K",
            help="Several row lengths, each with its own shards, with pad; auto:K chooses K lengths.",
        ),
        click.option(
            "--stride", type=int, metavar="N", help="Tokens that windows of a long row share, with pad or qa."
        ),
    ],
    "Layouts concat and pack": [
        click.option(
            "--special-tokens",
            type=click.Choice(["eos", "bos-eos", "tokenizer", "none"]),
            default="eos",
            show_default=True,
            help="What is put around each document; tokenizer: what it puts around one text.",
        ),
        click.option(
            "--remainder",
            type=click.Choice(["pad", "drop"]),
            default="pad",
            show_default=True,
            help="What to do with the last, incomplete row of a shard, with --layout concat.",
        ),
        click.option(
            "--long-documents",
            type=click.Choice(["split", "drop"]),
            default="split",
            show_default=True,
            help="What to do with documents of more than --max-length tokens, with --layout pack.",
        ),
    ],
    "Layout chat": [
        click.option("--messages-column", metavar="NAME", help="Column of conversations. Default: the usual names."),
        click.option("--tools-column", metavar="NAME", help="Column of tools for the chat template."),
        click.option(
            "--chat-template",
            metavar="NAME_OR_FILE",
            help="One of the tokenizer's chat templates, or a file with one for it. Default: the tokenizer's choice.",
        ),
        click.option("--chat-date", metavar="DATE", help="Date for chat templates that write today's date."),
        click.option("--pack-rows", is_flag=True, help="Pack several conversations into a row."),
    ],
    "Layout seq2seq": [
        click.option("--target-column", metavar="NAME", help="Column of texts to generate."),
        click.option("--target-length", type=int, metavar="N", help="Tokens of a target. Default: as --max-length."),
        click.option("--input-prefix", default="", metavar="TEXT", help="Put before each text."),
    ],
    "Layout tokens": [
        click.option("--words-column", metavar="NAME", help="Column of lists of words. Default: tokens."),
        click.option("--tags-column", metavar="NAME", help="Column of the words' tags. Default: tags."),
        click.option(
            "--label-all-tokens",
            is_flag=True,
            help="Label all tokens of a word, not only the first.",
        ),
    ],
    "Layout qa": [
        click.option("--answers-column", metavar="NAME", help="Column of answers, with --layout qa. Default: answers."),
    ],
}
_SHARDS = [
    click.option("--shard-size", default="100MB", show_default=True, metavar="SIZE", help="Size of a shard."),
    click.option(
        "--compression",
        type=click.Choice(["none", "gzip"]),
        default="none",
        show_default=True,
        help="Compression of shards; TFDS cannot read gzip.",
    ),
    click.option("--index", type=click.Choice(["dali"]), help="Also write this kind of index for each shard."),
    click.option("--name", metavar="NAME", help="Prefix of the shards' names. Default: from DATASET."),
]
_CHOICE_OF_ROWS = [
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of the shuffle."),
    click.option(
        "--shuffle/--no-shuffle", default=True, show_default=True, help="Shuffle rows, or keep the source's order."
    ),
    click.option(
        "--max-error-rate", type=float, default=0.0, show_default=True, help="Share of rows that may be rejected."
    ),
]
# How to run a build. `plan` takes these too, without effect, so that a line can be tried by replacing `build`.
_MAKING = [
    click.option(
        "--workers", "--num-proc", type=int, metavar="N", help="Processes; never changes a byte. Default: one a core."
    ),
    click.option("--resume/--overwrite", default=True, help="Continue an interrupted build (default), or start over."),
    click.option(
        "--append", is_flag=True, help="Add new rows of the same source to the finished dataset, as further shards."
    ),
    click.option(
        "--keep-ingested",
        metavar="FOLDER",
        help="Keep the Arrow copy of sources other than Parquet here, for the next build of the same source.",
    ),
    click.option("--dry-run", is_flag=True, help="Show what would be made, as `plan` does. Writes nothing."),
]


def takes_making(*, output_required: bool) -> Callable[[Command], Command]:
    """Give a command the options that say where to write and how to run."""
    output = click.option("--output", "-o", required=output_required, metavar="OUT", help="Folder or gs:// address.")

    def take(command: Command) -> Command:
        for group in (cloup.option_group("Run", *_MAKING), cloup.option_group("Output", output)):
            command = group(command)
        return command

    return take


# Consent to run code of a finished dataset, or to fetch its source (see `audit.consent`).
_CONSENT: list[Callable[[Any], Any]] = [
    click.option("--source", metavar="DATASET", help="The source, if it was moved, or is not on this machine."),
    click.option(
        "--map", multiple=True, metavar="MODULE:FUNCTION", help="The dataset's functions, named again as for build."
    ),
    click.option(
        "--filter",
        multiple=True,
        allow_from_autoenv=False,
        metavar="MODULE:FUNCTION",
        help="The dataset's filters, with --map in the same order.",
    ),
    click.option(
        "--run-stored-steps",
        "run_stored",
        is_flag=True,
        help="Run the functions stored in the dataset. Only if you trust whoever made it.",
    ),
]


def takes_consent(command: Command) -> Command:
    """Give a command the options without which it runs no code of a dataset, and fetches nothing."""
    return cloup.option_group("Source", *_CONSENT)(command)


def functions_of(pairs: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Turn the --map and --filter values of `WithFunctions` into FunctionOptions. Raises: ConfigError."""
    from pipelines.prepare.options import config

    return tuple(config.FunctionOption(kind=cast(Any, kind), spec=spec) for kind, spec in pairs)


def takes_request(command: Command) -> Command:
    """Give a command the options that say what to make."""
    return _takes_request(command, tokenizer_required=True)


def may_take_request(command: Command) -> Command:
    """Give a command the same options, of which --tokenizer says whether they are meant."""
    return _takes_request(command, tokenizer_required=False)


def _takes_request(command: Command, *, tokenizer_required: bool) -> Command:
    tokenizer = click.option(
        "--tokenizer", required=tokenizer_required, metavar="NAME_OR_DIR", help="Hub id or folder of the tokenizer."
    )
    groups = {
        "Source": [*_SPLITS, *_HELD_OUT, *_COMPARED, *_TEXTS, *_OTHER_COLUMNS, *_ROWS],
        "Tokenizer": [tokenizer, *_TOKENIZER],
        "Layout": _LAYOUT,
        **_OF_LAYOUTS,
        "Shards": [*_SHARDS, *_CHOICE_OF_ROWS],
    }
    for title, options in reversed(groups.items()):
        command = cloup.option_group(title, *options)(command)
    return _DATASET(command)


def takes_source(command: Command) -> Command:
    """Give a command the options that say which rows to read."""
    return _DATASET(cloup.option_group("Source", *_SPLITS, *_TEXTS, *_ROWS)(command))


def source_of(request: Mapping[str, Any]) -> Any:
    """Make the SourceConfig of `takes_source`. Raises: ConfigError."""
    from pipelines.prepare.options import config

    dataset, *more = request["datasets"]
    return config.SourceConfig(
        dataset=dataset,
        more_paths=tuple(more),
        config=request["config_name"],
        revision=request["revision"],
        **{name: request[name] for name in SOURCE_OPTIONS},
        splits=request["splits"],
        text_columns=request["text_columns"] or ("text",),
        limit=request["limit"],
        functions=functions_of(request["functions"]),
    )


def read_template(path: str) -> str:
    """Return the text of a file with a chat template. Raises: ConfigError if it cannot be read."""
    from tfrecord_io.errors import ConfigError

    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--chat-template {path}: cannot be read ({error})", remedy="give the path of a text file with the template"
        ) from error


def config_of(request: Mapping[str, Any], *, output: str, workers: int | None, overwrite: bool) -> Any:
    """Make the PrepareConfig of the options. Raises: ConfigError, SourceError, TokenizerError."""
    from pipelines.prepare.options import config, paths

    layout = {name: request[name] for name in LAYOUT_OPTIONS if name in request}
    template = layout["chat_template"]
    is_file = template is not None and (os.path.isfile(template) or template.endswith(".jinja") or os.sep in template)
    if is_file:
        layout["chat_template"] = None
    prepare_config = config.PrepareConfig(
        source=dataclasses.replace(
            source_of(request),
            label_column=request["label_column"],
            label_classes=request["label_classes"],
            keep_columns=request["keep_columns"],
            hold_out=request["hold_out"],
            hold_out_by=request["hold_out_by"],
            **{
                name: request[name] for name in ("dedup", "dedup_across_splits", "decontaminate", "decontaminate_words")
            },
            **{name: request[name] for name in LAYOUT_COLUMNS},
        ),
        tokenizer=config.TokenizerConfig(
            name=paths.tokenizer_folder(request["tokenizer"]),
            revision=request["tokenizer_revision"],
            truncation_side=request["truncation_side"],
            padding_side=request["padding_side"],
            chat_template=read_template(template) if is_file else None,
        ),
        output=config.OutputConfig(
            root=output,
            name=request["name"] or "",
            shard_bytes=config.parse_size(request["shard_size"]),
            compression=request["compression"],
            dali_index=request["index"] == "dali",
        ),
        layout=config.LayoutConfig(
            name=request["layout"],
            max_length=request["max_length"],
            **layout,
        ),
        seed=request["seed"],
        shuffle=request["shuffle"],
        engine=request["engine"],
        max_error_rate=request["max_error_rate"],
        overwrite=overwrite,
        workers=workers,
        beam_args=request.get("beam_args", ()),
        keep_ingested=request.get("keep_ingested"),
        append=request.get("append", False),
    )
    # Misspelt paths are reported before anything large is imported.
    paths.require_dataset(*request["datasets"])
    paths.require_tokenizer(prepare_config.tokenizer.name)
    return prepare_config
