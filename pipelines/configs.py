"""Make the configs of a build from option values, for the command line and for Python."""

import dataclasses
import datetime
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from pipelines.option_fields import values_of
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

# Options that run in the order in which they are given.
FUNCTIONS: tuple[FunctionKind, ...] = get_args(FunctionKind)
CONFIGS = (SourceConfig, TokenizerConfig, LayoutConfig, OutputConfig, PrepareConfig)


def functions_of(pairs: Sequence[tuple[str, str]]) -> tuple[FunctionOption, ...]:
    """Convert the --map and --filter values of `WithFunctions` to FunctionOptions. Raises: ConfigError."""
    return tuple(FunctionOption(kind=cast(Any, kind), spec=spec) for kind, spec in pairs)


def source_of(request: Mapping[str, Any]) -> SourceConfig:
    """Make a SourceConfig from parsed options. Raises: ConfigError."""
    dataset, *more = request["datasets"]
    return SourceConfig(
        dataset=dataset,
        more_paths=tuple(more),
        functions=functions_of(request["functions"]),
        **values_of(SourceConfig, request),
    )


def config_of(request: Mapping[str, Any]) -> PrepareConfig:
    """Make a PrepareConfig from parsed options. Raises: ConfigError, SourceError, TokenizerError."""
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


def is_word(value: Any) -> bool:
    """Return whether a value can be one word of the command line."""
    return isinstance(value, str | int | float | os.PathLike | datetime.date) and not isinstance(value, bool)


def listed(value: Any) -> list[Any]:
    """Return an option's values as a list."""
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
