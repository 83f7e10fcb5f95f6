"""Keyword arguments of `build` and `plan` in Python, converted to a config.

text_column=["question", "context"]     as if given twice
bucket_lengths=[16, 32]                 "16,32"
overwrite=True, no_shuffle=True         other names of an option are keywords too
limit=None                              the default

During the call, a value that a config can hold replaces each object:

a dataset, a frame, a table     a folder of Parquet files with its rows (see `ingest.objects`)
a tokenizer                     a folder that loads as the same tokenizer (see `saved_copy`)
a function                      its name, and its source text if no module has it
"""

import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines import configs
from pipelines.option_fields import Option, declared
from pipelines.prepare.options.config import FunctionOption, PrepareConfig
from pipelines.prepare.options.suggestions import suggestion
from tfrecord_io.errors import ConfigError

_EXPECTED = {int: "a whole number", float: "a number"}


@contextlib.contextmanager
def config_of(
    datasets: Sequence[Any], options: Mapping[str, Any], *, beam_args: Sequence[str] = ()
) -> Iterator[PrepareConfig]:
    """Yield the config of these options; files written for objects are deleted afterwards.

    Raises: ConfigError for an object that cannot be used; SourceError if its rows cannot be read; as
        `configs.config_of`.
    """
    given = {name: value for name, value in options.items() if name not in configs.FUNCTIONS}
    functions = _functions(options)
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as home:
        if not isinstance(tokenizer := given.get("tokenizer"), str | os.PathLike | None):
            given["tokenizer"] = _save(tokenizer, home)
        is_object = any(not isinstance(each, str | os.PathLike) for each in datasets)
        if is_object:
            _check_object(datasets, given)
            found = parsed(["object"], {"name": "dataset", **given}, beam_args=beam_args)
        else:
            found = parsed(datasets, given, beam_args=beam_args)
        config = configs.config_of(found)
        source = dataclasses.replace(config.source, functions=functions)
        if is_object:
            from pipelines.prepare.sources.ingest import objects

            folder, splits = objects.store(datasets[0], home)
            source = dataclasses.replace(source, dataset=folder, object_splits=splits)
        yield dataclasses.replace(config, source=source)


def _functions(options: Mapping[str, Any]) -> tuple[FunctionOption, ...]:
    from pipelines.prepare.sources.rows import user_functions

    given = (
        (kind, each) for kind, value in options.items() if kind in configs.FUNCTIONS for each in configs.listed(value)
    )
    return tuple(
        FunctionOption(kind=kind, spec=each) if isinstance(each, str) else user_functions.option_of(kind, each)
        for kind, each in given
    )


def _save(tokenizer: Any, home: str) -> str:
    """Save a tokenizer to a folder named after it. Raises: ConfigError if it is no tokenizer."""
    if not hasattr(tokenizer, "save_pretrained"):
        raise ConfigError(
            f"tokenizer={tokenizer!r:.100}, expected a hub id, a folder, or a tokenizer of `transformers`",
            remedy="wrap one of `tokenizers` as transformers.PreTrainedTokenizerFast(tokenizer_object=...)",
        )
    stem = os.path.basename(str(getattr(tokenizer, "name_or_path", "")).rstrip("/"))
    from pipelines.prepare.tokenize import saved_copy

    folder = os.path.join(home, "tokenizer", re.sub(r"[^\w.\-]", "_", stem).lstrip(".") or "tokenizer")
    saved_copy.require_kind(tokenizer, stem)
    saved_copy.write(saved_copy.save(tokenizer, stem)[1], folder)
    return folder


def _check_object(datasets: Sequence[Any], options: Mapping[str, Any]) -> None:
    if len(datasets) > 1:
        raise ConfigError(
            f"{len(datasets)} datasets, one of them an object, expected one object alone",
            remedy="join them with datasets.concatenate_datasets, or give a dict of them by split",
        )
    for_files = ("config", "revision", "format", "data_files", "source_option", "sample_by", "append")
    if given := [name for name in for_files if options.get(name)]:
        raise ConfigError(
            f"{', '.join(given)} with an object, expected a path or a name of the hub",
            remedy="leave it out: all rows of the object are built",
        )


def parsed(
    datasets: Sequence[str | os.PathLike[str]], options: Mapping[str, Any], *, beam_args: Sequence[str] = ()
) -> dict[str, Any]:
    """Convert options to the parameters of `build`. Raises: ConfigError for a wrong name or value."""
    if isinstance(beam_args, str):
        raise ConfigError(f"beam_args={beam_args!r}, expected a list of words", remedy=f"give [{beam_args!r}]")
    if not datasets:
        raise ConfigError("no dataset was given", remedy="name a hub id, files or a folder first, or give an object")
    known = keywords()
    params: dict[str, Any] = {"datasets": tuple(map(os.fspath, datasets)), "functions": (), "beam_args": beam_args}
    for name, value in options.items():
        if name not in known:
            raise ConfigError(
                f"no option {name!r}",
                remedy=f"{suggestion(name, sorted(known))}options have the names of `prep-tfrecords build --help`",
            )
        option, means_yes = known[name]
        if value is not None:
            params[option.name] = _typed(option, value, name=name, means_yes=means_yes)
    if params.get("tokenizer") is None:
        raise ConfigError("tokenizer=None, expected a tokenizer", remedy="give a hub id, a folder, or an object")
    return params


def keywords() -> dict[str, tuple[Option, bool]]:
    """Map the keywords of options to the option, and whether True switches it on."""
    found = {}
    for option in (option for config in configs.CONFIGS for option in declared(config)):
        for spelling in filter(lambda text: text.startswith("--"), option.spellings):
            for flag, means_yes in zip(spelling.split("/"), (True, False), strict=False):
                found[flag.removeprefix("--").replace("-", "_")] = option, means_yes
    return found


def _typed(option: Option, value: Any, *, name: str, means_yes: bool) -> Any:
    if option.kind is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{name}={value!r:.100}, expected True or False", remedy="give one of them")
        return value == means_yes
    several = configs.listed(value)
    for each in several:
        if not configs.is_word(each):
            raise ConfigError(
                f"{name}={each!r:.100}, expected {_EXPECTED.get(option.kind, 'a text')}",
                remedy=f"see {option.flag} of `prep-tfrecords build --help`",
            )
    if option.is_repeatable:
        return tuple(map(str, several))
    text = ",".join(map(str, several))  # bucket lengths are one word on the command line
    if option.parse or option.kind not in _EXPECTED:
        return text
    try:
        return option.kind(text)
    except ValueError:
        raise ConfigError(
            f"{name}={value!r:.100}, expected {_EXPECTED[option.kind]}", remedy="give a number, or None for the default"
        ) from None
