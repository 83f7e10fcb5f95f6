"""Objects given to `build` and `plan` in Python: each becomes what the command line takes, while the call lasts.

a dataset, a frame, a table     its rows, in a folder of Parquet parts (see `ingest.objects`)
a tokenizer                     a folder of save_pretrained
a function                      its name, and its text if it is not of a module
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.cli import keywords, request
from pipelines.prepare.options.config import FunctionKind, FunctionOption, PrepareConfig
from tfrecord_io.errors import ConfigError

__all__ = ["config_of"]

_FUNCTIONS: tuple[FunctionKind, ...] = ("map", "filter")


@contextlib.contextmanager
def config_of(
    datasets: Sequence[Any], options: Mapping[str, Any], *, beam_args: Sequence[str] = ()
) -> Iterator[PrepareConfig]:
    """Yield the config of these options; what was written for objects is deleted afterwards.

    Raises: ConfigError for an object that cannot be used; SourceError if its rows cannot be read; as
        `request.config_of`.
    """
    given = {name: value for name, value in options.items() if name not in _FUNCTIONS}
    functions = _functions(options)
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as home:
        if not isinstance(tokenizer := given.get("tokenizer"), str | os.PathLike | None):
            given["tokenizer"] = _save(tokenizer, home)
        is_object = any(not isinstance(each, str | os.PathLike) for each in datasets)
        if is_object:
            _check_object(datasets, given)
            found = keywords.parsed(["object"], {"name": "dataset", **given}, beam_args=beam_args)
        else:
            found = keywords.parsed(datasets, given, beam_args=beam_args)
        config = request.config_of(found)
        source = dataclasses.replace(config.source, functions=functions)
        if is_object:
            from pipelines.prepare.sources.ingest import objects

            place = os.path.abspath(config.keep_ingested or home)
            os.makedirs(place, exist_ok=True)
            folder, splits = objects.store(datasets[0], place)
            source = dataclasses.replace(source, dataset=folder, object_splits=splits)
        yield dataclasses.replace(config, source=source)


def _functions(options: Mapping[str, Any]) -> tuple[FunctionOption, ...]:
    """Return the functions in the order in which they are given."""
    from pipelines.prepare.sources.rows import given_functions

    given = (
        (kind, each)
        for kind, value in options.items()
        if kind in _FUNCTIONS and value is not None
        for each in (value if isinstance(value, list | tuple) else [value])
    )
    return tuple(
        FunctionOption(kind=kind, spec=each) if isinstance(each, str) else given_functions.option_of(kind, each)
        for kind, each in given
    )


def _save(tokenizer: Any, home: str) -> str:
    """Save a tokenizer to a folder with its name; return that. Raises: ConfigError if it is no tokenizer."""
    if not hasattr(tokenizer, "save_pretrained"):
        raise ConfigError(
            f"tokenizer={tokenizer!r:.100}, expected a hub id, a folder, or a tokenizer of `transformers`",
            remedy="wrap one of `tokenizers` as transformers.PreTrainedTokenizerFast(tokenizer_object=...)",
        )
    stem = os.path.basename(str(getattr(tokenizer, "name_or_path", "")).rstrip("/"))
    folder = os.path.join(home, "tokenizer", re.sub(r"[^\w.\-]", "_", stem).lstrip(".") or "tokenizer")
    tokenizer.save_pretrained(folder)
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
            remedy="leave it out: what the object holds is what is built",
        )
    keep = options.get("keep_ingested")
    if keep is not None and "://" in str(keep):
        raise ConfigError(
            f"keep_ingested={keep} with an object, whose rows are kept on this machine only",
            remedy="name a folder of this machine",
        )
