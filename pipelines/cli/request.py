"""Parse arguments and options that several commands share.

This module adds functions, arguments for Beam, and options from a file to the options of `pipelines.prepare.options`.
"""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup

from pipelines.configs import CONFIGS, FUNCTIONS, is_word, listed
from pipelines.option_fields import declared
from pipelines.prepare.options.config import LayoutConfig, PrepareConfig, SourceConfig
from pipelines.terminal.click_options import ShortHelp, takes

Command = TypeVar("Command", bound=Callable[..., Any])

_FUNCTIONS_OF_FILE, _BEAM_OF_FILE = (f"{__name__}.{name}" for name in ("functions", "beam"))

# Options of SourceConfig that the command `tokenizer` does not take.
_OF_BUILDS = (
    *("hold_out", "hold_out_by", "dedup", "dedup_across_splits", "decontaminate", "decontaminate_words"),
    *("label_column", "label_classes", "keep_column"),
)
_DATASET = click.argument("datasets", nargs=-1, required=True, metavar="DATASET...")


def _function(kind: str, help_text: str) -> Callable[[Any], Any]:
    # Environment variables cannot give the order of functions.
    return click.option(f"--{kind}", multiple=True, allow_from_autoenv=False, metavar="MODULE:FUNCTION", help=help_text)


_FUNCTION_OPTIONS = [
    _function(
        "map",
        "Your own function from a pyarrow.Table to a table with as many rows; or fix_text, mask_pii. Repeatable.",
    ),
    _function(
        "filter",
        "Your own function from a pyarrow.Table to a mask of rows to keep; or 'language(en)', 'length(200, 100000)'. "
        "--map and --filter run in the given order.",
    ),
]


def takes_job(*, output_required: bool) -> Callable[[Command], Command]:
    """Add the options of a build to a command."""
    options_file = click.option(
        "--options",
        "options_file",
        metavar="FILE",
        expose_value=False,
        allow_from_autoenv=False,
        is_eager=True,  # sets defaults before other options are parsed
        callback=_use_file,
        help="YAML file of options by their long names, without dashes. Options on the command line override it.",
    )
    more = {"Source": _FUNCTION_OPTIONS, "Options file": [options_file]}
    by_layout = dict.fromkeys(option.group for config in (LayoutConfig, SourceConfig) for option in declared(config))
    groups = dict.fromkeys(("Source", "Tokenizer", *by_layout, "Shards", "Output", "Run", "Options file"))
    required = ("tokenizer", *["output"] * output_required)
    return lambda command: _DATASET(takes(CONFIGS, groups=groups, required=required, more=more)(command))


def takes_source(command: Command) -> Command:
    """Add the options that select rows to a command."""
    more = {"Source": _FUNCTION_OPTIONS}
    return _DATASET(takes([SourceConfig], groups=["Source"], leave_out=_OF_BUILDS, more=more)(command))


def takes_consent(command: Command) -> Command:
    """Add the options of consent. Without them a command neither runs a dataset's code nor downloads its source."""
    return cloup.option_group(
        "Source",
        click.option("--source", metavar="DATASET", help="The source, if it was moved or is not on this machine."),
        _function("map", "The dataset's functions, as given to build."),
        _function("filter", "The dataset's filters, as given to build, in the same order with --map."),
        click.option(
            "--run-stored-functions",
            "run_stored",
            is_flag=True,
            help="Run the functions stored in the dataset. Use it only if you trust its author.",
        ),
    )(command)


def folder(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    """Return a dataset's folder, given its path or its manifest's path."""
    return path if path is None else path.removesuffix("/manifest.json") if path != "manifest.json" else "."


takes_dataset = click.argument("dataset", callback=folder)


def configure(config: PrepareConfig | None = None) -> None:
    """Reduce the memory of allocators and the imports of Numba, if the command owns the process."""
    context = click.get_current_context(silent=True)
    if context is None or not getattr(context.find_root().command, "owns_process", False):
        return
    from pipelines.prepare.process import imports, memory

    memory.keep_less()
    if config is not None and not config.source.functions:
        imports.start_numba()


class WithFunctions(cloup.Command):
    """Command that collects --map and --filter as the parameter `functions`: pairs of name and value, in order."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse twice, since click does not keep the order between options."""
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        rest = super().parse_args(ctx, args)
        values: dict[str, Any] = {name: iter(ctx.params.pop(name) or ()) for name in FUNCTIONS}
        names = [str(parameter.name) for parameter in order if parameter.name in values]
        typed = tuple((name, value) for name in names for value in itertools.islice(values[name], 1))
        ctx.params["functions"] = typed or ctx.meta.get(_FUNCTIONS_OF_FILE, ())
        return rest


class BeamArguments(cloup.Command):
    """Command that takes the arguments after `--` as the parameter `beam_args`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:at])
        ctx.params["beam_args"] = (*ctx.meta.get(_BEAM_OF_FILE, ()), *args[at + 1 :])
        return rest


class WithBeam(BeamArguments, WithFunctions, ShortHelp):
    """Command with arguments for Beam, functions, and options from a file."""


def by_name(command: click.Command) -> dict[str, tuple[click.Parameter, bool]]:
    """Map each long option name, without dashes, to its parameter, and to whether the name switches it on."""
    parameters = {}
    for parameter in command.params:
        names = (
            ("--dataset",) if isinstance(parameter, click.Argument) else (*parameter.opts, *parameter.secondary_opts)
        )
        for name in names:
            if name.startswith("--"):
                parameters[name.removeprefix("--")] = parameter, name not in parameter.secondary_opts
    return parameters


def default_of(
    known: Mapping[str, tuple[click.Parameter, bool]], name: str, value: Any, *, place: str
) -> dict[str, Any]:
    """Convert a value of an options file to click's default map. `known`: see `by_name`. Raises: UsageError."""
    parameter, means_yes = known[name]
    if value is None:
        return {}
    if isinstance(parameter, click.Option) and parameter.is_flag:
        if not isinstance(value, bool):
            raise click.UsageError(f"{place} is {value!r}, expected true or false")
        return {str(parameter.name): value == means_yes}
    for word in listed(value):
        if not is_word(word):
            raise click.UsageError(f"{place} is {word!r}, expected a text, a number, or a list of texts or numbers")
    texts = list(map(str, listed(value)))
    # Bucket lengths are one word on the command line.
    return {str(parameter.name): texts if parameter.multiple or parameter.nargs == -1 else ",".join(texts)}


def _use_file(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
    if not path or ctx.resilient_parsing:  # shell completion
        return
    known = by_name(ctx.command)
    defaults: dict[str, Any] = {}
    functions: list[tuple[str, str]] = []
    content = _read(path)
    ctx.meta[_BEAM_OF_FILE] = [str(word) for word in listed(content.pop("beam", None))]
    for key, value in content.items():
        if key == "functions":
            for entry in listed(value):
                if not isinstance(entry, Mapping):
                    raise click.UsageError(
                        f"{path}: functions has {entry!r:.100}, expected entries such as `map: module:function`"
                    )
                functions += [(kind, _spec(kind, spec, path)) for kind, spec in entry.items()]
        elif key in FUNCTIONS:
            functions += [(key, _spec(key, spec, path)) for spec in listed(value)]
        elif key not in known:
            raise click.UsageError(
                f"{path}: there is no option {key!r}, expected names such as tokenizer or max-length"
            )
        else:
            defaults |= default_of(known, key, value, place=f"{path}: {key}")
    ctx.default_map = defaults
    ctx.meta[_FUNCTIONS_OF_FILE] = tuple(functions)


def _spec(kind: Any, spec: Any, path: str) -> str:
    if kind not in FUNCTIONS or not isinstance(spec, str):
        raise click.UsageError(
            f"{path}: {kind!r:.50}: {spec!r:.100}, expected map or filter with a text such as module:function"
        )
    return spec


def _read(path: str) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise click.UsageError(f"--options {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping):
        raise click.UsageError(f"--options {path}: not a mapping, expected lines such as `tokenizer: gpt2`")
    return dict(content)
