"""Options of `build` given as Python keywords: defaults for the same options, parsed by the same command.

text_column=["question", "context"]     as if given twice
bucket_lengths=[16, 32]                 "16,32"
overwrite=True, no_shuffle=True         other names of an option are keywords too
limit=None                              the default
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from pipelines.cli import commands
from pipelines.prepare.options.suggestions import suggestion
from pipelines.terminal.console import usage_cause
from tfrecord_io.errors import ConfigError

__all__ = ["parsed"]

_HELP = "see `prep-tfrecords build --help`"
_OF_THE_COMMAND_LINE = ("dry_run", "json", "no_progress", "options", "quiet", "save_options", "verbose")


def parsed(
    datasets: Sequence[str | os.PathLike[str]], options: Mapping[str, Any], *, beam_args: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what the command gets of these options. Raises: ConfigError for a wrong name or value."""
    command = commands.main.commands["build"]
    known = {
        name.removeprefix("--").replace("-", "_"): (each, name in each.opts)
        for each in command.params
        if isinstance(each, click.Option)
        for name in (*each.opts, *each.secondary_opts)
        if name.startswith("--")
    }
    defaults: dict[str, Any] = {"datasets": [_text(dataset, name="dataset") for dataset in datasets]}
    if isinstance(beam_args, str):
        raise ConfigError(f"beam_args={beam_args!r}, expected a list of words", remedy=f"give [{beam_args!r}]")
    for name, value in options.items():
        if name not in known or name in _OF_THE_COMMAND_LINE:
            near = suggestion(name, sorted(known))
            raise ConfigError(
                f"no option {name!r}", remedy=f"{near}options are named as those of `prep-tfrecords build --help`"
            )
        option, is_on = known[name]
        if value is not None:
            given = _default(option, value, name=name)
            defaults[str(option.name)] = given if is_on else not given
    try:
        return command.make_context("build", ["--", *beam_args], default_map=defaults).params
    except click.UsageError as error:
        raise ConfigError(usage_cause(error), remedy=_HELP) from error


def _default(option: click.Option, value: Any, *, name: str) -> bool | str | list[str]:
    """Return a value as click takes it for a default. Raises: ConfigError for a value of another type."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise ConfigError(f"{name}={value!r}, expected True or False", remedy=_HELP)
        return value
    listed = list(value) if isinstance(value, list | tuple) else [value]
    texts = [_text(each, name=name) for each in listed]
    # Lengths of buckets are one word on the command line.
    return texts if option.multiple else ",".join(texts)


def _text(value: Any, *, name: str) -> str:
    """Return a value as a word of the command line. Raises: ConfigError."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | os.PathLike):
        raise ConfigError(f"{name}={value!r}, expected a text, a number or a path", remedy=_HELP)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
