"""What several commands share: arguments, options, the config made from them, and settings of the process.

What a build takes is declared by the fields of its config (`pipelines.prepare.options`); here is what has no field.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import click
import cloup

from pipelines.prepare.options import paths
from pipelines.prepare.options.config import (
    FunctionOption,
    LayoutConfig,
    OutputConfig,
    PrepareConfig,
    SourceConfig,
    TokenizerConfig,
)
from pipelines.terminal.click_options import takes, values_of

Command = TypeVar("Command", bound=Callable[..., Any])

_CONFIGS = (SourceConfig, TokenizerConfig, LayoutConfig, OutputConfig, PrepareConfig)
# The titles in --help, in this order.
_REQUEST = (
    *("Source", "Tokenizer", "Layout", "Layout pad, and qa", "Layouts concat and pack", "Layout chat"),
    *("Layout seq2seq", "Layout tokens", "Layout qa", "Shards"),
)
# The options of SourceConfig that a tokenizer's training does not take.
_OF_BUILDS = (
    *("hold_out", "hold_out_by", "dedup", "dedup_across_splits", "decontaminate", "decontaminate_words"),
    *("label_column", "label_classes", "keep_column"),
)
_DATASET = click.argument("datasets", nargs=-1, required=True, metavar="DATASET...")


def _function(kind: str, help_text: str) -> Callable[[Any], Any]:
    # Not from the environment: the order of --map and --filter is that of the command line.
    return click.option(f"--{kind}", multiple=True, allow_from_autoenv=False, metavar="MODULE:FUNCTION", help=help_text)


_FUNCTIONS = [
    _function(
        "map",
        "Your own function from a pyarrow.Table to a changed one with as many rows; or fix_text, mask_pii. Repeatable.",
    ),
    _function(
        "filter",
        "Your own function from a pyarrow.Table to a mask of rows to keep; or c4_quality, gopher_quality, "
        "gopher_repetition, 'language(en)', 'length(200, 100000)'. Runs with --map in this order.",
    ),
]
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be made, as `plan` does. Writes nothing.")


def takes_job(*, output_required: bool) -> Callable[[Command], Command]:
    """Give a command the options that say what to make, how, and where.

    `plan` takes those of a run without effect, so that a line can be tried by replacing `build`.
    """
    groups = (*_REQUEST, "Output", "Run")
    more = {"Source": _FUNCTIONS, "Run": [_DRY_RUN]}
    required = ("tokenizer", *["output"] * output_required)
    return lambda command: _DATASET(takes(_CONFIGS, groups=groups, required=required, more=more)(command))


def takes_source(command: Command) -> Command:
    """Give a command the options that say which rows to read."""
    more = {"Source": _FUNCTIONS}
    return _DATASET(takes([SourceConfig], groups=["Source"], leave_out=_OF_BUILDS, more=more)(command))


def takes_consent(command: Command) -> Command:
    """Give a command the options without which it runs no code of a dataset, and fetches nothing."""
    return cloup.option_group(
        "Source",
        click.option("--source", metavar="DATASET", help="The source, if it was moved, or is not on this machine."),
        _function("map", "The dataset's functions, named again as for build."),
        _function("filter", "The dataset's filters, with --map in the same order."),
        click.option(
            "--run-stored-steps",
            "run_stored",
            is_flag=True,
            help="Run the functions stored in the dataset. Only if you trust whoever made it.",
        ),
    )(command)


def functions_of(pairs: Sequence[tuple[str, str]]) -> tuple[FunctionOption, ...]:
    """Turn the --map and --filter values of `WithFunctions` into FunctionOptions. Raises: ConfigError."""
    return tuple(FunctionOption(kind=cast(Any, kind), spec=spec) for kind, spec in pairs)


def source_of(request: Mapping[str, Any]) -> SourceConfig:
    """Make the SourceConfig of the options. Raises: ConfigError."""
    dataset, *more = request["datasets"]
    return SourceConfig(
        dataset=dataset,
        more_paths=tuple(more),
        functions=functions_of(request["functions"]),
        **values_of(SourceConfig, request),
    )


def config_of(request: Mapping[str, Any]) -> PrepareConfig:
    """Make the PrepareConfig of the options. Raises: ConfigError, SourceError, TokenizerError."""
    layout, template = values_of(LayoutConfig, request), None
    name = layout.get("chat_template")
    if name is not None and (os.path.isfile(name) or name.endswith(".jinja") or os.sep in name):
        template = paths.read_template(layout.pop("chat_template"))
    config = PrepareConfig(
        source=source_of(request),
        tokenizer=TokenizerConfig(chat_template=template, **values_of(TokenizerConfig, request)),
        output=OutputConfig(**{"root": ".", **values_of(OutputConfig, request)}),
        layout=LayoutConfig(**layout),
        beam_args=request.get("beam_args", ()),
        **values_of(PrepareConfig, request),
    )
    # Misspelt paths are reported before anything large is imported.
    paths.require_dataset(*request["datasets"])
    paths.require_tokenizer(config.tokenizer.name)
    return config


def folder(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    """Return the folder of a dataset, which may also be named by the path of its manifest."""
    return path if path is None else path.removesuffix("/manifest.json") if path != "manifest.json" else "."


takes_dataset = click.argument("dataset", callback=folder)


def open_manifest(dataset: str) -> Any:
    """Read the manifest of a finished dataset. Raises: ManifestError if there is none."""
    from pipelines.prepare.dataset import own_files

    return own_files.require_manifest(dataset)


def configure(config: PrepareConfig | None = None) -> None:
    """Configure libraries if the running command has the process to itself; of a build with this `config`.

    Allocators keep less of what is freed, and Numba imports less, unless functions of the user may want it.
    """
    context = click.get_current_context(silent=True)
    if context is None or not getattr(context.find_root().command, "owns_process", False):
        return
    from pipelines.prepare.process import imports, memory

    memory.keep_less()
    if config is not None and not config.source.functions:
        imports.start_numba()
