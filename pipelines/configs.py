"""Make the config of a build from option values, for the command line and for Python."""

import dataclasses
import datetime
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from pipelines.option_fields import Option, declared, values_of
from pipelines.prepare.options import paths
from pipelines.prepare.options.config import (
    FunctionKind,
    FunctionOption,
    LayoutConfig,
    OutputConfig,
    PrepareConfig,
    SourceConfig,
    TokenizerConfig,
)
from pipelines.prepare.options.suggestions import suggestion
from tfrecord_io.errors import ConfigError

FUNCTIONS: tuple[FunctionKind, ...] = get_args(FunctionKind)
CONFIGS = (SourceConfig, TokenizerConfig, LayoutConfig, OutputConfig, PrepareConfig)
_EXPECTED = {int: "a whole number", float: "a number"}


def functions_of(pairs: Sequence[tuple[str, str]]) -> tuple[FunctionOption, ...]:
    """Convert pairs ("map" or "filter", value) to FunctionOptions. Raises: ConfigError if a value is no function."""
    return tuple(FunctionOption(kind=cast(Any, kind), spec=spec) for kind, spec in pairs)


def source_of(request: Mapping[str, Any]) -> SourceConfig:
    """Make a SourceConfig from a command's parameters. Raises: ConfigError if a value is wrong."""
    dataset, *more = request["datasets"]
    functions, values = functions_of(request["functions"]), values_of(SourceConfig, request)
    return SourceConfig(dataset=dataset, more_paths=tuple(more), functions=functions, **values)


def config_of(request: Mapping[str, Any]) -> PrepareConfig:
    """Make a PrepareConfig from the parameters of `build`. Raises: ConfigError, SourceError, TokenizerError."""
    layout, template = LayoutConfig(**values_of(LayoutConfig, request)), None
    if (name := layout.chat_template) and (os.path.isfile(name) or name.endswith(".jinja") or os.sep in name):
        layout, template = dataclasses.replace(layout, chat_template="default"), paths.read_template(name)
    config = PrepareConfig(
        source=source_of(request),
        tokenizer=TokenizerConfig(chat_template=template, **values_of(TokenizerConfig, request)),
        output=OutputConfig(**{"root": ".", **values_of(OutputConfig, request)}),
        layout=layout,
        beam_args=request.get("beam_args", ()),
        **values_of(PrepareConfig, request),
    )
    # Report misspelt paths before slow imports.
    paths.require_dataset(*request["datasets"])
    paths.require_tokenizer(config.tokenizer.name)
    return config


def typed_options(options: Mapping[str, Any], *, place: str = "") -> dict[str, Any]:
    """Convert options from Python to parameters of the command `build`, omitting None. `place`: prefix of messages."""
    params, known = {}, _keywords()
    for name, value in options.items():
        if name not in known:
            remedy = f"{suggestion(name, sorted(known))}`prep-tfrecords build --help-all` lists the options"
            raise ConfigError(f"{place}there is no option {name!r}", remedy=remedy)
        option, means_yes = known[name]
        if value is not None:
            params[option.name] = _typed(option, value, place=place + name, means_yes=means_yes)
    return params


def _keywords() -> dict[str, tuple[Option, bool]]:
    keywords = {}  # by keyword: the option, and whether True switches it on
    for option in (option for config in CONFIGS for option in declared(config)):
        for spelling in filter(lambda text: text.startswith("--"), option.spellings):
            for flag, means_yes in zip(spelling.split("/"), (True, False), strict=False):
                keywords[flag.removeprefix("--").replace("-", "_")] = option, means_yes
    return keywords


def _typed(option: Option, value: Any, *, place: str, means_yes: bool) -> Any:
    if option.kind is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{place}={value!r:.100}, expected True or False", remedy="give True or False")
        return value == means_yes
    expected, values = _EXPECTED.get(option.kind, "a text"), listed(value)
    for word in values:
        if not isinstance(word, str | int | float | os.PathLike | datetime.date) or isinstance(word, bool):
            cause = f"{place}={word!r:.100}, expected {expected}"
            raise ConfigError(cause, remedy=f"see {option.flag} of `prep-tfrecords build --help-all`")
    if option.is_repeatable:
        return tuple(map(str, values))
    if type(value) is option.kind and not option.parse:
        return value
    text = ",".join(map(str, values))  # bucket lengths are one word on the command line
    if option.parse or option.kind not in _EXPECTED:
        return text
    try:
        return option.kind(text)
    except ValueError:
        remedy = f"give a number, or leave {option.name} out"
        raise ConfigError(f"{place}={value!r:.100}, expected {expected}", remedy=remedy) from None


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
