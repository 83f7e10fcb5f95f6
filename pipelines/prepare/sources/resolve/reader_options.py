"""Turn --source-option and --data-files into arguments of `load_dataset`, and explain its errors."""

import contextlib
import hashlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.suggestions import suggestion
from pipelines.prepare.sources.resolve import hub, library
from pipelines.prepare.sources.resolve.data_files import DataFile
from tfrecord_io.errors import ConfigError, PrepError, SourceError
from tfrecord_io.shown import first_line, without_access, without_secrets

# Modules next to the readers that --format does not accept.
_INTERNAL = ("cache", "folder_based_builder", "generator", "spark", "sql")

_OF_BUILD = {"name": "--config", "data_files": "--data-files", "revision": "--revision"}


def require_reader(name: str | None) -> None:
    """Raise ConfigError unless `name`, the value of --format or None, is a reader of `datasets`."""
    if name is None:
        return
    with library.quiet():
        from datasets import packaged_modules
    modules = (module.name for module in pkgutil.iter_modules(packaged_modules.__path__))
    known = [module for module in modules if module not in _INTERNAL]
    if name not in known:
        raise ConfigError(
            f"--format {name}: no such reader, expected one of {', '.join(known)}",
            remedy=f"{suggestion(name, known)}text reads lines, json also reads JSON lines, csv also reads .tsv files",
        )


def require_options(config: SourceConfig) -> None:
    """Raise ConfigError unless --source-option sets options of a reader, without credentials.

    Options are stored with the dataset, but most arguments of `load_dataset` itself name places or credentials.
    """
    with library.quiet() as datasets:
        of_library = {*inspect.signature(datasets.load_dataset_builder).parameters} - {"config_kwargs", "data_dir"}
    for text in config.source_options:
        name, _, value = text.partition("=")
        if name in of_library or without_secrets(text) != text:
            raise ConfigError(
                f"--source-option {name}=… would be stored with the dataset, expected an option of the reader without "
                "credentials or places",
                remedy=_instead(name, value, config.dataset),
            )


def _instead(name: str, value: str, dataset: str) -> str:
    if name == "storage_options":
        scheme = dataset.partition("://")[0] if "://" in dataset else "protocol"
        settings = _value(value)
        keys = [key for key in settings if key.isidentifier()] if isinstance(settings, dict) else ["key"]
        return f"set {', '.join(f'FSSPEC_{scheme}_{key}'.upper() for key in keys)} in the environment instead"
    if name in _OF_BUILD:
        return f"use {_OF_BUILD[name]} instead"
    return "set HF_TOKEN in the environment for the Hub, FSSPEC_PROTOCOL_KEY for another storage, or leave it out"


def arguments(config: SourceConfig) -> dict[str, Any]:
    """Return arguments for `load_dataset`: `data_files`, the patterns by split, and options of the reader."""
    files: dict[str, list[str]] = {}
    for text in config.data_files:
        split, equals, pattern = text.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.\w+)*", split):
            split, pattern = "train", text
        files.setdefault(split, []).append(pattern)
    options = {key: value for key, value in _options(config).items() if key != "dtype"}
    ours = {"data_files": files, "sample_by": config.sample_by}
    return {**options, **{name: value for name, value in ours.items() if value}}


def text_dtypes(config: SourceConfig) -> frozenset[str]:
    """Return the columns that `--source-option dtype=…` reads as text. Raises: ConfigError for other types."""
    dtypes = _options(config).get("dtype", {})
    if not isinstance(dtypes, dict) or not set(dtypes.values()) <= {"str", "string", "object"}:
        raise ConfigError(
            f"--source-option dtype={json.dumps(dtypes)}, expected a JSON object of columns to read as text",
            remedy='write it as in --source-option \'dtype={"zip": "str"}\'',
        )
    return frozenset(dtypes)


def _options(config: SourceConfig) -> dict[str, Any]:
    return {key: _value(text) for key, _, text in (option.partition("=") for option in config.source_options)}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.replace("\\t", "\t")


def described(config: SourceConfig) -> dict[str, Any]:
    """Return the user's options for reading the source, without credentials, for the source's identity."""
    parts = (option.partition("=") for option in config.source_options)
    options = {key: without_access(value) for key, _, value in parts if key != "chunksize"}
    patterns = list(map(without_access, config.data_files))
    entry = {"format": config.format, "data_files": patterns, "options": options, "sample_by": config.sample_by}
    return {name: value for name, value in entry.items() if value}


def largest_chunk(files: Iterable[DataFile]) -> int:
    """Return the `chunksize` in bytes for reading JSON files again after a LateKeysError."""
    return min(4 * max(file.size for file in files), 1_000_000_000)


def resolved(
    config: SourceConfig, builder: Any | None, files: Sequence[DataFile], *, is_pinned: bool
) -> dict[str, Any]:
    """Return a dataset card's options and features, and the chunk size of JSON, for the source's identity.

    `builder`: None if each split has its own. `is_pinned`: the card is left out, because a revision pins it. The chunk
    size may change values: in a nested object, 1 becomes 1.0 if the first chunk also contains 1.5. All sizes that hold
    whole files count as equal. `largest_chunk` is left out, because a build may choose it.
    """
    options, entry = _options(config), {}
    if builder is not None and not is_pinned:
        entry = {key: value for key, value in library.explicit_options(builder).items() if key not in options}
        if all(".tsv" in file.name.lower() for file in files):
            entry.pop("sep", None)  # `datasets` derives it from the file names
        if (features := builder.info.features) is not None:
            text = json.dumps(features.to_dict(), sort_keys=True)
            entry["features"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    if config.sample_by:
        entry.pop("sample_by", None)
    chunk = options.get("chunksize") if builder is not None and builder.name == "json" else None
    if chunk not in (None, largest_chunk(files)):
        holds_all = isinstance(chunk, int) and chunk >= max(file.size for file in files)
        entry["chunksize"] = "whole files" if holds_all else chunk
    return {"reader": json.loads(json.dumps(entry, default=str))} if entry else {}


@contextlib.contextmanager
def as_source_error(config: SourceConfig) -> Iterator[None]:
    """Within the context, turn errors of `datasets` into SourceError or ConfigError."""
    where = without_access(config.dataset)
    options = [*_options(config)] + ["sample_by"] * bool(config.sample_by)
    try:
        with hub.as_source_error(where):
            yield
    except PrepError:
        raise
    except Exception as error:
        if options and isinstance(error, TypeError | ValueError):
            raise ConfigError(
                f"{where}: its reader does not accept these options or their values: {', '.join(options)}",
                remedy="see the parameters of the reader in the documentation of `datasets`, under Loading methods",
            ) from error
        raise _refused(error, where) from error


def _refused(error: Exception, where: str) -> SourceError:
    if type(error).__name__ in ("DataFilesNotFoundError", "EmptyDatasetError"):
        remedy = "name the reader with --format; save a spreadsheet as CSV first"
        return SourceError(f"{where}: no file has a name that `datasets` knows a reader for", remedy=remedy)
    if "scripts are no longer supported" in str(error):
        return SourceError(
            f"{where}: {first_line(error)}; a dataset's own scripts are not run here",
            remedy="name its data files with a glob; for a dataset on the Hub add --revision refs/convert/parquet, "
            "where the Hub keeps the output of most such scripts",
        )
    reason = first_line(error).partition(" with any supported extension")[0]  # cuts a list of hundreds of extensions
    remedy = "name the files with --data-files, and their reader with --format, or choose another --config"
    return SourceError(f"{where}: `datasets` cannot open it ({reason})", remedy=remedy)
