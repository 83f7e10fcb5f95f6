"""Command-line parsing: functions in order, Beam's options apart, and options from a file."""

import datetime
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import cloup

# Options that are kept in their order, whichever of them it is.
_FUNCTIONS = ("map", "filter")
# Where a context keeps what a file says of functions and of Beam.
_FUNCTIONS_OF_FILE, _BEAM_OF_FILE = (f"{__name__}.{name}" for name in ("functions", "beam"))


def takes_options_file(command: Any) -> Any:
    """Give a command of class `WithBeam` the option --options."""
    return cloup.option_group(
        "Options file",
        click.option(
            "--options",
            "options_file",
            metavar="FILE",
            expose_value=False,
            allow_from_autoenv=False,
            is_eager=True,  # what it says is known before any other option is looked for
            callback=_use_file,
            help="YAML file of options by their long names, without dashes; those on the command line win.",
        ),
    )(command)


class WithFunctions(cloup.Command):
    """A command with --map and --filter, which it gets as one parameter `functions`: pairs of option name and value.

    They are in the order of the command line; click itself keeps that order only within one option. If there are none,
    those of the options file stand.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments once for the order of options, and once more as every command does."""
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        rest = super().parse_args(ctx, args)
        values = {name: iter(ctx.params.pop(name) or ()) for name in _FUNCTIONS}
        names = [str(parameter.name) for parameter in order if parameter.name in values]
        typed = tuple((name, value) for name in names for value in itertools.islice(values[name], 1))
        ctx.params["functions"] = typed or ctx.meta.get(_FUNCTIONS_OF_FILE, ())
        return rest


class BeamArguments(cloup.Command):
    """A command that gets the arguments after `--`, which are for Beam, as its parameter `beam_args`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the arguments for Beam apart, and parse the others."""
        at = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:at])
        ctx.params["beam_args"] = (*ctx.meta.get(_BEAM_OF_FILE, ()), *args[at + 1 :])
        return rest


class WithBeam(BeamArguments, WithFunctions):
    """A command with arguments for Beam, functions, and options from a file."""


def by_name(command: click.Command) -> dict[str, tuple[click.Parameter, bool]]:
    """Return the parameters of a command by their long names without dashes, such as `max-length`.

    Beside each stands whether the name means yes; `no-shuffle` means no. DATASET is `dataset`.
    """
    found = {}
    for parameter in command.params:
        names = (
            ("--dataset",) if isinstance(parameter, click.Argument) else (*parameter.opts, *parameter.secondary_opts)
        )
        for name in names:
            if name.startswith("--"):
                found[name.removeprefix("--")] = parameter, name not in parameter.secondary_opts
    return found


def default_of(
    known: Mapping[str, tuple[click.Parameter, bool]], name: str, value: Any, *, place: str
) -> dict[str, Any]:
    """Return the default that a named value makes, by the parameter's own name: texts, as typed, or a bool.

    `known` as from `by_name`. There is none for None. Raises: UsageError.
    """
    parameter, means_yes = known[name]
    if value is None:
        return {}
    if isinstance(parameter, click.Option) and parameter.is_flag:
        if not isinstance(value, bool):
            raise click.UsageError(f"{place} is {value!r}, expected true or false")
        return {str(parameter.name): value == means_yes}
    for each in _listed(value):
        if isinstance(each, bool) or not isinstance(each, str | int | float | os.PathLike | datetime.date):
            raise click.UsageError(f"{place} is {each!r}, expected a text, a number, or a list of these")
    texts = [str(each) for each in _listed(value)]
    # Lengths of buckets are one word on the command line.
    return {str(parameter.name): texts if parameter.multiple or parameter.nargs == -1 else ",".join(texts)}


def _use_file(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
    """Make what a file says the defaults of the command. Raises: UsageError if it cannot be meant."""
    if not path or ctx.resilient_parsing:  # a shell completes the line
        return
    known = by_name(ctx.command)
    defaults: dict[str, Any] = {}
    functions: list[tuple[str, str]] = []
    content = _read(path)
    ctx.meta[_BEAM_OF_FILE] = [str(word) for word in _listed(content.pop("beam", None))]
    for key, value in content.items():
        if key == "functions":
            functions += [pair for entry in _listed(value) for pair in entry.items()]
        elif key in _FUNCTIONS:
            functions += [(key, spec) for spec in _listed(value)]
        elif key not in known:
            raise click.UsageError(f"{path}: no option {key!r}, expected names such as tokenizer or max-length")
        else:
            defaults |= default_of(known, key, value, place=f"{path}: {key}")
    ctx.default_map = defaults
    ctx.meta[_FUNCTIONS_OF_FILE] = tuple(functions)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def _read(path: str) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise click.UsageError(f"--options {path} cannot be read: {said}") from error
    if not isinstance(content, Mapping):
        raise click.UsageError(f"--options {path}: expected lines such as `tokenizer: gpt2`")
    return dict(content)
