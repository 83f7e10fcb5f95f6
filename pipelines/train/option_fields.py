"""Fields of a dataclass that are options of a command too: one declaration for the name, help, default and bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import cloup

from tfrecord_io.errors import ConfigError

__all__ = ["check", "flag", "option", "options_of"]


def option(
    text: str,
    default: Any = dataclasses.MISSING,
    *,
    metavar: str | None = None,
    name: str | None = None,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """Declare a field. `text`: its line in --help; `name`: that of the option, if it is another; the rest are bounds of
    a number.
    """
    bounds = {"least": least, "above": above, "below": below}
    return dataclasses.field(default=default, metadata={"text": text, "metavar": metavar, "name": name, **bounds})


def flag(field: str, name: str | None = None) -> str:
    """Return how a field is written on the command line."""
    return "--" + (name or field).replace("_", "-")


def kinds(config: type) -> dict[str, Any]:
    """The type of each field; of `int | None` it is int, of `str | tuple[str, ...]` str."""
    hints = get_type_hints(config)
    return {
        name: kind if isinstance(kind, type) or get_origin(kind) is Literal else get_args(kind)[0]
        for name, kind in hints.items()
    }


def check(config: Any) -> None:
    """Raises: ConfigError if a value is none of a field's words, no whole number, or beyond its bounds."""
    of_fields = kinds(type(config))
    for field in dataclasses.fields(config):
        value, kind, rule = getattr(config, field.name), of_fields[field.name], field.metadata
        if value is None:
            continue
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise ConfigError(f"{flag(field.name)} {value!r}, expected one of {get_args(kind)}")
        if kind not in (int, float):
            continue
        if kind is int and (not isinstance(value, int) or isinstance(value, bool) or value < rule["least"]):
            raise ConfigError(f"{flag(field.name)} {value!r}, expected a whole number of at least {rule['least']}")
        check_range(field.name, value, least=rule["least"], above=rule["above"], below=rule["below"])


def check_range(name: str, value: float, *, least: float | None, above: float | None, below: float | None) -> None:
    """Raises: ConfigError if a number is beyond its bounds, or none."""
    inside = (least is None or value >= least) and (above is None or value > above)
    if not inside or not (value < (float("inf") if below is None else below)):
        low = f"more than {above}" if above is not None else f"at least {least}"
        raise ConfigError(f"{flag(name)} {value!r}, expected {low}{'' if below is None else f' and less than {below}'}")


def options_of(config: type, groups: Mapping[str, str]) -> Callable[[Any], Any]:
    """A decorator that gives a command an option for each field: `steps: int = 1000` becomes --steps. `groups`: titles
    by the first field below each.
    """
    titled: dict[str, list[Any]] = {}
    of_fields = kinds(config)
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
    return click.option(flag(field.name, rule["name"]), field.name, **given)
