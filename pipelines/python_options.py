"""Convert Python's keyword arguments of `build` and `plan` to a config.

Every spelling of an option is a keyword, such as `no_shuffle`, and None is the default. A config contains a name in
place of an object: a temporary folder for a table (`ingest.objects`) or tokenizer (`saved_copy`), or a function's name,
with its source text if no module contains it.
"""

import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines import configs
from pipelines.build_options import Path
from pipelines.prepare.options.config import FunctionOption, PrepareConfig
from tfrecord_io.errors import ConfigError


@contextlib.contextmanager
def config_of(
    datasets: Sequence[Any], options: Mapping[str, Any], *, beam_args: Sequence[str] = ()
) -> Iterator[PrepareConfig]:
    """Yield the config for these options. Objects are in temporary folders while the context is open.

    Raises: ConfigError if an object is unsuitable; SourceError; the errors of `configs.config_of`.
    """
    plain = {name: value for name, value in options.items() if name not in configs.FUNCTIONS}
    functions = _functions(options)
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as home:
        if not isinstance(tokenizer := plain.get("tokenizer"), str | os.PathLike | None):
            plain["tokenizer"] = _save(tokenizer, home)
        is_object = any(not isinstance(dataset, str | os.PathLike) for dataset in datasets)
        if is_object:
            _check_object(datasets, plain)
            request = parsed(["object"], {"name": "dataset", **plain}, beam_args=beam_args)
        else:
            request = parsed(datasets, plain, beam_args=beam_args)
        config = configs.config_of(request)
        source = dataclasses.replace(config.source, functions=functions)
        if is_object:
            from pipelines.prepare.sources.ingest import objects

            folder, splits = objects.store(datasets[0], home)
            source = dataclasses.replace(source, dataset=folder, object_splits=splits)
        yield dataclasses.replace(config, source=source)


def _functions(options: Mapping[str, Any]) -> tuple[FunctionOption, ...]:
    from pipelines.prepare.sources.rows import user_functions

    return tuple(
        FunctionOption(kind=kind, spec=function)
        if isinstance(function, str)
        else user_functions.option_of(kind, function)
        for kind in options
        if kind in configs.FUNCTIONS
        for function in configs.listed(options[kind])
    )


def _save(tokenizer: Any, home: str) -> str:
    if not hasattr(tokenizer, "save_pretrained"):
        raise ConfigError(
            f"tokenizer={tokenizer!r:.100}, expected a Hub id, a folder, or a tokenizer of `transformers`",
            remedy="wrap a tokenizer of `tokenizers`: transformers.PreTrainedTokenizerFast(tokenizer_object=...)",
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
            f"{len(datasets)} datasets were given, at least one of them an object, expected a single object",
            remedy="join them with datasets.concatenate_datasets, or give a dict of objects by split",
        )
    for_files = ("config", "revision", "format", "data_files", "source_option", "sample_by", "append")
    if unfit := [name for name in for_files if options.get(name)]:
        cause = f"{', '.join(unfit)} with an object as dataset, expected a path or a Hub id as dataset"
        raise ConfigError(cause, remedy=f"leave {', '.join(unfit)} out; all rows of the object are used")


def parsed(datasets: Sequence[Path], options: Mapping[str, Any], *, beam_args: Sequence[str] = ()) -> dict[str, Any]:
    """Convert options to the parameters of the command `build`. Raises: ConfigError if a name or value is wrong."""
    if isinstance(beam_args, str):
        raise ConfigError(f"beam_args={beam_args!r}, expected a list of arguments", remedy=f"give [{beam_args!r}]")
    if not datasets:
        raise ConfigError("no dataset was given", remedy="begin with a Hub id, files, a folder or an object")
    params: dict[str, Any] = {"datasets": tuple(map(os.fspath, datasets)), "functions": (), "beam_args": beam_args}
    params |= configs.typed_options(options)
    if params.get("tokenizer") is None:
        raise ConfigError("tokenizer=None, expected a tokenizer", remedy="give a Hub id, a folder or an object")
    return params
