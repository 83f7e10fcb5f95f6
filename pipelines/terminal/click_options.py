"""Conversion of declared options (`option_fields`) to click's options."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click
import cloup

from pipelines.option_fields import Option, declared

Command = TypeVar("Command", bound=Callable[..., Any])


_REQUIRED = "Required"
_SHOWS_ALL = f"{__name__}.shows_all"


class DeclaredOption(click.Option):
    """Click option with its line in the short help; `brief` is empty if only --help-all shows it."""

    def __init__(self, *names: Any, brief: str = "", **given: Any) -> None:
        super().__init__(*names, **given)
        self.brief = brief


class ShortHelp(cloup.Command):
    """Command with many options: --help shows the brief ones; --help-all shows all, in groups."""

    def __init__(self, *names: Any, **given: Any) -> None:
        super().__init__(*names, **given)
        self.params.append(
            DeclaredOption(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                allow_from_autoenv=False,
                callback=_show_all,
                help="Show all options and exit.",
                brief="Show all options, in groups.",
            )
        )

    def format_params(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, all of them for --help-all."""
        if ctx.meta.get(_SHOWS_ALL):
            super().format_params(ctx, formatter)
            return
        brief = [each for each in self.get_params(ctx) if isinstance(each, DeclaredOption) and each.brief]
        brief.sort(key=lambda each: not each.required)
        records = [each.get_help_record(ctx) for each in brief]
        with formatter.section("Options"):
            formatter.write_dl(
                [
                    (record[0], each.brief + " Required." * each.required)
                    for each, record in zip(brief, records, strict=True)
                    if record is not None
                ]
            )


def _show_all(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


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
    return click.option(*each.spellings, each.name, cls=DeclaredOption, brief=each.brief, **given)


def takes(
    configs: Iterable[type],
    *,
    groups: Iterable[str],
    required: Iterable[str] = (),
    more: Mapping[str, list[Any]] | None = None,
    leave_out: Iterable[str] = (),
) -> Callable[[Command], Command]:
    """Add the options of these `configs` to a command, in this order of groups. The group "" has no title.

    required: names of required options. more: options to append to a group. leave_out: names of options to omit.
    """
    every = [each for config in configs for each in declared(config) if each.name not in set(leave_out)]
    needed = set(required)

    def options_of(title: str) -> list[Any]:
        """Return the options of a group; the required ones are in the group `_REQUIRED`."""
        if title == _REQUIRED:
            return [click_option(each, required=True) for each in every if each.name in needed]
        named = [each for each in every if each.group == title and each.name not in needed]
        return [*map(click_option, named), *(more or {}).get(title, ())]

    def decorate(command: Command) -> Command:
        for title in reversed([_REQUIRED, *groups]):
            options = options_of(title)
            if not options:
                continue
            if title:
                command = cloup.option_group(title, *options)(command)
            else:
                command = functools.reduce(lambda inner, take: take(inner), reversed(options), command)
        return command

    return decorate
