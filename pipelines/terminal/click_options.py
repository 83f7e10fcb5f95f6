"""Convert declared options (`option_fields`) to click's options."""

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
    """A click option. `brief`: its line in --help, empty if only --help-all shows the option."""

    def __init__(self, *names: Any, brief: str = "", **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.brief = brief


class ShortHelp(cloup.Command):
    """Command with many options: --help shows the options with a `brief`, and --help-all shows all, in groups."""

    def __init__(self, *names: Any, **settings: Any) -> None:
        super().__init__(*names, **settings)
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
        if ctx.meta.get(_SHOWS_ALL):
            super().format_params(ctx, formatter)
            return
        options = [option for option in self.get_params(ctx) if isinstance(option, DeclaredOption) and option.brief]
        options.sort(key=lambda option: not option.required)
        records = [(option, option.get_help_record(ctx)) for option in options]
        with formatter.section("Options"):
            formatter.write_dl(
                [(shown[0], option.brief + " Required." * option.required) for option, shown in records if shown]
            )


def _show_all(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def click_option(option: Option, *, required: bool = False) -> Callable[[Any], Any]:
    """Return click's decorator for a declared option. `required`: without it, the command ends with an error."""
    settings: dict[str, Any] = {"help": option.text, "metavar": option.metavar, "required": required}
    if option.kind is int and not option.parse:
        settings["metavar"] = option.metavar or "N"
    if option.is_repeatable:
        settings["multiple"] = True
    elif not required:  # click would use a default of None as a value
        settings["default"] = option.default if option.typed_default is None else option.typed_default
        settings["show_default"] = option.default is not False and option.default not in (None, "")
    if option.choices:
        settings["type"] = click.Choice(list(option.choices))
    elif option.kind is not bool:
        settings["type"] = str if option.parse else option.kind
    elif "/" not in option.spellings[0]:
        settings["is_flag"] = True
    return click.option(*option.spellings, option.name, cls=DeclaredOption, brief=option.brief, **settings)


def takes(
    configs: Iterable[type],
    *,
    groups: Iterable[str],
    required: Iterable[str] = (),
    more: Mapping[str, list[Any]] | None = None,
    leave_out: Iterable[str] = (),
) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of `configs` to a command, in the order of `groups`.

    groups: titles of groups; the options of the group "" are shown without a title. required: required options, which
    form the first group. more: further options by group.
    """
    all_options = [option for config in configs for option in declared(config) if option.name not in set(leave_out)]
    needed = set(required)

    def options_of(title: str) -> list[Any]:
        if title == _REQUIRED:
            return [click_option(option, required=True) for option in all_options if option.name in needed]
        of_group = [option for option in all_options if option.group == title and option.name not in needed]
        return [*map(click_option, of_group), *(more or {}).get(title, ())]

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
