"""Parse arguments and options that several commands share."""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup

from pipelines.configs import CONFIGS, FUNCTIONS, listed, typed_options
from pipelines.option_fields import declared
from pipelines.prepare.options.config import LayoutConfig, PrepareConfig, SourceConfig
from pipelines.terminal.click_options import ShortHelp, takes
from tfrecord_io.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])

_FUNCTIONS_OF_FILE, _BEAM_OF_FILE = (f"{__name__}.{name}" for name in ("functions", "beam"))

# Options of SourceConfig that the command `tokenizer` does not take.
_OF_BUILDS = (
    *("hold_out", "hold_out_by", "dedup", "dedup_across_splits", "decontaminate", "decontaminate_words"),
    *("label_column", "label_classes", "keep_column"),
)
_DATASET = click.argument("datasets", nargs=-1, required=True, metavar="DATASET...")


def _function(kind: str, help_text: str) -> Callable[[Any], Any]:
    # With environment variables, the order of functions would be unknown.
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
    """Return a decorator that adds the options of a build to a command."""
    options_file = click.option(
        "--options",
        "options_file",
        metavar="FILE",
        expose_value=False,
        allow_from_autoenv=False,
        is_eager=True,  # sets defaults before other options are parsed
        callback=_use_file,
        help="YAML file of options by their long names, without leading dashes. The command line overrides them.",
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
    """Add the options that allow a command to run a dataset's code, or to download its source."""
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
    """Return the dataset's folder if `path` is that folder or its manifest.json; None for None."""
    return path if path is None else path.removesuffix("/manifest.json") if path != "manifest.json" else "."


takes_dataset = click.argument("dataset", callback=folder)


def configure(config: PrepareConfig | None = None) -> None:
    """Reduce the memory of a process with only this command: tune allocators and, given a config, Numba's imports."""
    context = click.get_current_context(silent=True)
    if context is None or not getattr(context.find_root().command, "owns_process", False):
        return
    from pipelines.prepare.process import imports, memory

    memory.keep_less()
    if config is not None and not config.source.functions:
        imports.start_numba()


class WithFunctions(cloup.Command):
    """Command that passes --map and --filter on as one parameter `functions`: pairs (option name, value), in order."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Parse twice, since click does not keep the order of different options.
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        rest = super().parse_args(ctx, args)
        values: dict[str, Any] = {name: iter(ctx.params.pop(name) or ()) for name in FUNCTIONS}
        names = [str(parameter.name) for parameter in order if parameter.name in values]
        typed = tuple((name, value) for name in names for value in itertools.islice(values[name], 1))
        ctx.params["functions"] = typed or ctx.meta.get(_FUNCTIONS_OF_FILE, ())
        return rest


class BeamArgs(cloup.Command):
    """Command that passes the arguments after `--` on as the parameter `beam_args`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:at])
        ctx.params["beam_args"] = (*ctx.meta.get(_BEAM_OF_FILE, ()), *args[at + 1 :])
        return rest


class WithBeam(BeamArgs, WithFunctions, ShortHelp):
    """Command that takes functions (`--map`, `--filter`), an `--options` file, and arguments for Beam after `--`."""


def _use_file(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
    if not path or ctx.resilient_parsing:  # shell completion
        return
    content, place = _read(path), f"--options {path}: "
    ctx.meta[_BEAM_OF_FILE] = [str(word) for word in listed(content.pop("beam", None))]
    datasets = [str(name) for name in listed(content.pop("dataset", None))]
    functions: list[tuple[Any, Any]] = []
    options = {}
    for name, value in content.items():
        if name in FUNCTIONS:
            functions += [(name, spec) for spec in listed(value)]
        elif name == "functions":
            for entry in listed(value):
                functions += entry.items() if isinstance(entry, Mapping) else [(entry, None)]
        else:
            options[str(name).replace("-", "_")] = value
    for kind, spec in functions:
        if kind not in FUNCTIONS or not isinstance(spec, str):
            raise ConfigError(
                f"{place}{kind!r:.50}: {spec!r:.100}, expected map or filter with a text such as module:function",
                remedy="write for example `functions: [{map: 'clean:strip'}, {filter: 'clean:keep'}]`",
            )
    ctx.meta[_FUNCTIONS_OF_FILE] = tuple(functions)
    ctx.default_map = {**typed_options(options, place=place), **({"datasets": datasets} if datasets else {})}


def _read(path: str) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        cause = f"--options {path}: cannot be read: {' '.join(str(error).split())}"
        raise ConfigError(cause, remedy="correct the path, or the YAML in the file") from error
    if not isinstance(content, Mapping):
        cause = f"--options {path}: {type(content).__name__} at the top level, expected option names with values"
        raise ConfigError(cause, remedy="write lines such as `tokenizer: gpt2`")
    return dict(content)
