"""The options of a command, from the fields of its config (`option_fields`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

import click
import cloup

from pipelines.train import option_fields

__all__ = ["options_of"]


def options_of(config: type, groups: Mapping[str, str]) -> Callable[[Any], Any]:
    """A decorator that gives a command an option for each field: `steps: int = 1000` becomes --steps. `groups`: titles
    by the first field below each.
    """
    titled: dict[str, list[Any]] = {}
    of_fields = option_fields.kinds(config)
    for field in dataclasses.fields(config):
        if field.name in groups:
            title = groups[field.name]
        titled.setdefault(title, []).append(_option(field, of_fields[field.name]))

    def decorate(command: Any) -> Any:
        for title, options in reversed(titled.items()):
            command = cloup.option_group(title, *options)(command)
        return command

    return decorate


def _option(field: dataclasses.Field[Any], kind: Any) -> Any:
    rule = field.metadata
    given: dict[str, Any] = {"help": rule["text"], "metavar": rule["metavar"] or ("N" if kind is int else None)}
    if kind is bool:
        given["is_flag"] = True
    else:
        given["type"] = click.Choice(list(get_args(kind))) if get_origin(kind) is Literal else kind
        given.update({"required": True} if field.default is dataclasses.MISSING else {"default": field.default})
        given["show_default"] = field.default != ""
        given["multiple"] = "tuple" in str(field.type)
    return click.option(option_fields.flag(field.name, rule["name"]), field.name, **given)
