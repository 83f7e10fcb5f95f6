"""Conversion of declared options (`option_fields`) to click's options, and of typed values to a config's fields."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click
import cloup

from pipelines.terminal.option_fields import Option, declared

Command = TypeVar("Command", bound=Callable[..., Any])


def click_option(each: Option, *, required: bool = False) -> Callable[[Any], Any]:
    """Return the click option for a declared option."""
    given: dict[str, Any] = {"help": each.text, "metavar": each.metavar, "required": required}
    if each.kind is int and not each.parse:
        given["metavar"] = each.metavar or "N"
    if each.is_repeatable:
        given["multiple"] = True
    elif not required:  # click would take a default of None as a value
        given["default"] = each.default if each.typed_default is None else each.typed_default
        given["show_default"] = each.default is not False and each.default not in (None, "")
    if each.choices:
        given["type"] = click.Choice(list(each.choices))
    elif each.kind is not bool:
        given["type"] = str if each.parse else each.kind
    elif "/" not in each.spellings[0]:
        given["is_flag"] = True
    return click.option(*each.spellings, each.name, **given)


def takes(
    configs: Iterable[type],
    *,
    groups: Iterable[str],
    required: Iterable[str] = (),
    more: Mapping[str, list[Any]] | None = None,
    leave_out: Iterable[str] = (),
) -> Callable[[Command], Command]:
    """Add the options of these `configs` to a command, in these groups and this order. The group "" has no title.

    required: names of required options. more: options to append to a group. leave_out: names of options to omit.
    """
    every = [each for config in configs for each in declared(config) if each.name not in set(leave_out)]

    def decorate(command: Command) -> Command:
        for title in reversed(list(groups)):
            named = [each for each in every if each.group == title]
            options = [click_option(each, required=each.name in set(required)) for each in named]
            options += (more or {}).get(title, ())
            if title:
                command = cloup.option_group(title, *options)(command)
            else:
                command = functools.reduce(lambda inner, take: take(inner), reversed(options), command)
        return command

    return decorate
