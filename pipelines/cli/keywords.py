"""Options of `build` given as Python keywords rather than on a command line, parsed by the same options.

text_column=["question", "context"]     --text-column=question --text-column=context
bucket_lengths=[16, 32]                 --bucket-lengths=16,32
shuffle=False, pack_rows=True           --no-shuffle --pack-rows
overwrite=True                          --overwrite: other names of an option are keywords too
limit=None                              nothing: the default
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import commands, request
from pipelines.terminal.console import usage_cause
from tfrecord_io.errors import ConfigError

if TYPE_CHECKING:
    from pipelines.prepare.options.config import PrepareConfig

__all__ = ["config_of"]

_HELP = "see `prep-tfrecords build --help`"
_OF_THE_COMMAND_LINE = ("dry_run", "json", "no_progress", "options", "quiet", "save_options", "verbose")


def config_of(
    datasets: Sequence[str | os.PathLike[str]], options: Mapping[str, Any], *, beam_args: Sequence[str] = ()
) -> PrepareConfig:
    """Return the config that the command line would make of these options.

    Raises: ConfigError for an option that there is not, or a value that it does not take; as `request.config_of`.
    """
    from pipelines.prepare.options.suggestions import suggestion

    command = commands.main.commands["build"]
    known = {
        name.removeprefix("--").replace("-", "_"): (each, name)
        for each in command.params
        if isinstance(each, click.Option)
        for name in (*each.opts, *each.secondary_opts)
        if name.startswith("--")
    }
    arguments = [_text(dataset, name="dataset") for dataset in datasets]
    if isinstance(beam_args, str):
        raise ConfigError(f"beam_args={beam_args!r}, expected a list of words", remedy=f"give [{beam_args!r}]")
    for name, value in options.items():
        if name not in known or name in _OF_THE_COMMAND_LINE:
            near = suggestion(name, sorted(known))
            raise ConfigError(
                f"no option {name!r}", remedy=f"{near}options are named as those of `prep-tfrecords build --help`"
            )
        arguments += _arguments(*known[name], value, name=name)
    try:
        found = command.make_context("build", [*arguments, "--", *beam_args]).params
    except click.UsageError as error:
        raise ConfigError(usage_cause(error), remedy=_HELP) from error
    config: PrepareConfig = request.config_of(
        found, output=found["output"], workers=found["workers"], overwrite=not found["resume"]
    )
    return config


def _arguments(option: click.Option, flag: str, value: Any, *, name: str) -> list[str]:
    """Return the words of the command line that give an option, called `flag`, this value; none for None.

    Raises: ConfigError for a value of another type.
    """
    if value is None:
        return []
    if option.is_flag:
        if not isinstance(value, bool):
            raise ConfigError(f"{name}={value!r}, expected True or False", remedy=_HELP)
        return [option.opts[0]] if value == (flag in option.opts) else option.secondary_opts[:1]
    listed = list(value) if isinstance(value, list | tuple) else [value]
    texts = [_text(each, name=name) for each in listed]
    # Lengths of buckets are one word on the command line.
    return [f"{option.opts[0]}={text}" for text in (texts if option.multiple else [",".join(texts)])]


def _text(value: Any, *, name: str) -> str:
    """Return a value as a word of the command line. Raises: ConfigError."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | os.PathLike):
        raise ConfigError(f"{name}={value!r}, expected a text, a number or a path", remedy=_HELP)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
