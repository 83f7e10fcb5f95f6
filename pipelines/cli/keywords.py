"""Options of `build` given as Python keywords rather than on a command line, parsed by the same options.

text_column=["question", "context"]     --text-column=question --text-column=context
bucket_lengths=[16, 32]                 --bucket-lengths=16,32
shuffle=False, pack_rows=True           --no-shuffle --pack-rows
limit=None                              nothing: the default
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import commands, request
from pipelines.cli.parsing import long_name
from tfrecord_io.errors import ConfigError

if TYPE_CHECKING:
    from pipelines.prepare.options.config import PrepareConfig

__all__ = ["config_of"]

_OF_THE_COMMAND_LINE = ("dry_run", "json", "no_progress", "options", "quiet", "save_options", "verbose")


def config_of(
    datasets: Sequence[str | os.PathLike[str]], options: Mapping[str, Any], *, beam_args: Sequence[str] = ()
) -> PrepareConfig:
    """Return the config that the command line would make of these options.

    Raises: ConfigError for an option that there is not, or a value that it does not take; as `request.config_of`.
    """
    from pipelines.prepare.options.suggestions import suggestion

    command = commands.main.commands["build"]
    known = {_keyword(each): each for each in command.params if isinstance(each, click.Option)}
    arguments = [os.fspath(dataset) for dataset in datasets]
    for name, value in options.items():
        if name not in known or name in _OF_THE_COMMAND_LINE:
            near = suggestion(name, sorted(known))
            raise ConfigError(
                f"no option {name!r}", remedy=f"{near}options are named as those of `prep-tfrecords build --help`"
            )
        arguments += _arguments(known[name], value)
    try:
        found = command.make_context("build", [*arguments, "--", *beam_args]).params
    except click.UsageError as error:
        raise ConfigError(error.format_message(), remedy="see `prep-tfrecords build --help`") from error
    config: PrepareConfig = request.config_of(
        found, output=found["output"], workers=found["workers"], overwrite=not found["resume"]
    )
    return config


def _keyword(option: click.Option) -> str:
    """Return an option's name as a keyword: `--text-column` is text_column."""
    return long_name(option).replace("-", "_")


def _arguments(option: click.Option, value: Any) -> list[str]:
    """Return the words of the command line that give an option this value; none for None."""
    if value is None:
        return []
    if option.is_flag:
        return [option.opts[0]] if value else option.secondary_opts[:1]
    plain = isinstance(value, (str, int, float, os.PathLike))
    if option.multiple:
        return [f"{option.opts[0]}={os.fspath(each)}" for each in ([value] if plain else value)]
    # Lengths of buckets are one word on the command line.
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value) if plain else ",".join(map(str, value))
    return [f"{option.opts[0]}={text}"]
