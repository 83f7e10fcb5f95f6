"""How the commands read their arguments: functions in order, Beam's options apart, and options from a file."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import cloup

from tfrecord_io.shown import without_access, without_secrets

__all__ = ["BeamArguments", "WithBeam", "WithFunctions", "long_name", "takes_options_file"]

# Options that are kept in their order, whichever of them it is.
_FUNCTIONS = ("map", "filter")
# Where a context keeps what is to be saved, and where.
_SAVING = f"{__name__}.saving"
# Not part of what a saved file says.
_UNSAVED = frozenset(("options_file", "save_options", "dry_run", "as_json", "verbose", "quiet", "no_progress"))


def takes_options_file(command: Any) -> Any:
    """Give a command the options --options and --save-options, which `WithBeam` handles."""
    group = cloup.option_group(
        "Options file",
        click.option(
            "--options",
            "options_file",
            metavar="FILE",
            expose_value=False,
            allow_from_autoenv=False,
            help="YAML file of options by their long names, without dashes; those on the command line win.",
        ),
        click.option(
            "--save-options",
            "save_options",
            metavar="FILE",
            expose_value=False,
            allow_from_autoenv=False,
            help="Write the options of this command line to such a file before it runs.",
        ),
    )
    return group(command)


class WithFunctions(cloup.Command):
    """A command with --map and --filter, which it gets as one parameter `functions`: pairs of option name and value.

    They are in the order of the command line; click itself keeps that order only within one option.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments once for the order of options, and once more as every command does."""
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        rest = super().parse_args(ctx, args)
        values = {name: iter(ctx.params.pop(name) or ()) for name in _FUNCTIONS}
        names = [str(parameter.name) for parameter in order if parameter.name in values]
        ctx.params["functions"] = tuple((name, value) for name in names for value in itertools.islice(values[name], 1))
        return rest


class BeamArguments(cloup.Command):
    """A command that gets the arguments after `--`, which are for Beam, as its parameter `beam_args`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the arguments for Beam apart, and parse the others."""
        at = args.index("--") if "--" in args else len(args)
        ctx.params["beam_args"] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


class WithBeam(WithFunctions):
    """A command that gets the arguments after `--`, which are for Beam, as its parameter `beam_args`.

    With `takes_options_file`, the words of the file stand before those of the command line, except for options that
    the command line has, too. An argument DATASET... of the command line replaces that of the file in the same way.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the arguments for Beam apart, add those of a file, and parse them all."""
        at = args.index("--") if "--" in args else len(args)
        own, beam = args[:at], args[at + 1 :]
        given, values = self._given(ctx, own)
        if path := values.get("options_file"):
            words, more_beam = self._words(_read(path), given=given, path=path)
            own, beam = [*words, *own], [*more_beam, *beam]
        ctx.params["beam_args"] = tuple(beam)
        if path := values.get("save_options"):
            ctx.meta[_SAVING] = (path, self._saved(ctx, own, beam))
        return super().parse_args(ctx, own)

    def invoke(self, ctx: click.Context) -> Any:
        """Write the options file, now that every option is known to be right, and run the command."""
        if _SAVING in ctx.meta:
            _write(*ctx.meta[_SAVING])
        return super().invoke(ctx)

    def _given(self, ctx: click.Context, args: Sequence[str]) -> tuple[set[str], Mapping[str, Any]]:
        """Return the names of the parameters that `args` give, and their values as they were typed."""
        values, order = _parsed(self, ctx, args)
        given = {str(each.name) for each in order if isinstance(each, click.Option)}
        datasets = values.get("datasets")  # listed in the order even where there is none
        if isinstance(datasets, tuple) and datasets:
            given.add("datasets")
        return given, values

    def _words(self, content: Mapping[str, Any], *, given: set[str], path: str) -> tuple[list[str], list[str]]:
        """Return the arguments that a file stands for, without those of `given`, and Beam's."""
        words: list[str] = []
        by_key = {key: each for each in self.params for key in _keys(each)}
        for key, value in content.items():
            if key == "beam" or (value is None and (key in by_key or key == "functions")):
                continue  # nothing behind the name: the default
            if key == "functions":
                if not given & set(_FUNCTIONS):
                    words += [f"--{kind}={spec}" for entry in _listed(value) for kind, spec in entry.items()]
            elif key not in by_key:
                raise click.UsageError(f"{path}: no option {key!r}, expected names such as tokenizer or max-length")
            elif by_key[key].name in _FUNCTIONS and given & set(_FUNCTIONS):
                continue  # they are one list, which the command line replaces as a whole
            elif by_key[key].name not in given:
                words += _words_of(by_key[key], value, path=path)
        return words, [str(word) for word in _listed(content.get("beam", []))]

    def _saved(self, ctx: click.Context, args: Sequence[str], beam: Sequence[str]) -> dict[str, Any]:
        """Return what a file has to say to stand for these arguments. Addresses lose their credentials."""
        values, order = _parsed(self, ctx, args)
        iterators = {name: iter(values.get(name) or ()) for name in _FUNCTIONS}
        content: dict[str, Any] = {}
        for parameter in order:
            name = str(parameter.name)
            if name in _FUNCTIONS:
                content.setdefault("functions", []).append({name: next(iterators[name])})
            elif name not in _UNSAVED and values.get(name):
                content[_keys(parameter)[0]] = _without_access(values[name])
            elif name not in _UNSAVED and isinstance(parameter, click.Option) and parameter.is_flag and name in values:
                content[_keys(parameter)[0]] = bool(values[name])
        return {**content, **({"beam": [without_secrets(word) for word in beam]} if beam else {})}


def _parsed(
    command: click.Command, ctx: click.Context, args: Sequence[str]
) -> tuple[Mapping[str, Any], list[click.Parameter]]:
    """Return values by parameter, as typed, and the parameters in order. Leaves mistakes to the parsing that counts."""
    before, ctx.resilient_parsing = ctx.resilient_parsing, True
    values, _, order = command.make_parser(ctx).parse_args(list(args))
    ctx.resilient_parsing = before
    return values, order


def long_name(option: click.Option) -> str:
    """Return the name of an option without dashes: `max-length` for --max-length. Long names are declared first."""
    return option.opts[0].removeprefix("--")


def _keys(parameter: click.Parameter) -> list[str]:
    """Return the names of a parameter in a file, the usual one first; `dataset` for DATASET."""
    if not isinstance(parameter, click.Option):
        return ["dataset"]
    return [long_name(parameter), *(name.removeprefix("--") for name in parameter.opts[1:] if name.startswith("--"))]


def _words_of(parameter: click.Parameter, value: Any, *, path: str) -> list[str]:
    for each in _listed(value):
        if each is None or isinstance(each, list | dict):
            key = _keys(parameter)[0]
            raise click.UsageError(f"{path}: {key} is {each!r}, expected a text, a number, or a list of these")
    if isinstance(parameter, click.Argument):
        return [str(each) for each in _listed(value)]
    flag = parameter.opts[0]
    if isinstance(parameter, click.Option) and parameter.is_flag:
        if not isinstance(value, bool):
            raise click.UsageError(f"{path}: {flag.removeprefix('--')} is {value!r}, expected true or false")
        return [flag] if value else parameter.secondary_opts[:1]
    return [f"{flag}={each}" for each in _listed(value)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _without_access(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_without_access(each) for each in value]
    return without_access(value) if isinstance(value, str) and "://" in value else value


def _read(path: str) -> Mapping[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise click.UsageError(f"--options {path} cannot be read: {said}") from error
    if not isinstance(content, Mapping):
        raise click.UsageError(f"--options {path}: expected lines such as `tokenizer: gpt2`")
    return content


def _write(path: str, content: Mapping[str, Any]) -> None:
    import yaml

    try:
        Path(path).write_text(yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True), encoding="utf-8")
    except OSError as error:
        said = f"--save-options {path} cannot be written: {error.strerror}, expected a file in a folder that is there"
        raise click.UsageError(said) from error
