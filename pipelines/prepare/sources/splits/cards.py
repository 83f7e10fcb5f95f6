"""Dataset cards: configurations, the files of their splits, and the columns.

    README.md                     ---
                                  configs:
                                  - config_name: en
                                    data_files:
                                    - split: train
                                      path: en/*.parquet
                                  dataset_info: ...
                                  ---
    .huggingface.yaml             the same without the `---` lines; overrides the card
    dataset_infos.json            columns, as old releases of `datasets` wrote them

Cards are interpreted as by `datasets`, but may only name files below their own folder, since they may come from a
stranger.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.prepare.options.suggestions import suggestion
from pipelines.prepare.sources.files.folder_listing import FolderListing
from pipelines.prepare.sources.splits import card_features
from tfrecord_io.errors import SourceError

__all__ = ["Card", "Config", "chosen", "read"]

_BLOCK = re.compile(r"\A\s*---[\r\n]+([\S\s]*?)[\r\n]+---(?:\r\n|\n|\Z)")
_NAMES = ("README.md", ".huggingface.yaml")
_INFOS = "dataset_infos.json"
_MOST_VALUES = 1_000_000
# Keys of a configuration that are not options of a reader.
_NOT_OPTIONS = frozenset({"config_name", "data_files", "data_dir", "default", "features", "version", "description"})
# Options that the readers of `datasets` take from a configuration: each changes what the rows are.
_OPTIONS = {
    "csv": "sep delimiter header names column_names index_col usecols prefix mangle_dupe_cols engine converters "
    "true_values false_values skipinitialspace skiprows nrows na_values keep_default_na na_filter verbose "
    "skip_blank_lines thousands decimal lineterminator quotechar quoting escapechar comment encoding dialect "
    "error_bad_lines warn_bad_lines skipfooter doublequote memory_map float_precision chunksize encoding_errors "
    "on_bad_lines date_format",
    "json": "encoding encoding_errors field use_threads block_size chunksize newlines_in_values on_mixed_types "
    "parse_agent_traces",
    "text": "encoding encoding_errors chunksize keep_linebreaks sample_by",
    "parquet": "batch_size columns filters fragment_scan_options on_bad_files",
    "arrow": "",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One configuration. `data_files` are the glob patterns of each split, None if file names decide the splits.

    Both are relative to `data_dir`, a folder below that of the card.
    """

    name: str
    data_files: Mapping[str, Sequence[str]] | None = None
    data_dir: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    features: Any = None

    def options_of(self, kind: str) -> dict[str, Any]:
        """Return the configuration's options for the reader of files of this kind."""
        names = _OPTIONS["csv" if kind == "tsv" else kind].split()
        return {name: value for name, value in self.options.items() if name in names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """The configurations that a card lists, the name of the default one, and columns by configuration."""

    configs: Mapping[str, Config] = dataclasses.field(default_factory=dict)
    default: str | None = None
    features: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read(listing: FolderListing) -> Card:
    """Read the card of a folder; an empty card if there is none. Raises: SourceError if it is malformed."""
    document: dict[str, Any] = {}
    for name in _NAMES:
        if (content := listing.read(name)) is not None:
            document.update(_front_matter(content, name=name, where=listing.shown))
    infos = _old_features(listing)
    with _as_source_error(listing.shown):
        listed = [_config(entry) for entry in _entries(document.get("configs"))]
        infos.update(_features(document.get("dataset_info")))
    configs = {config.name: config for config in listed}
    default = _default(document.get("configs") or [], configs=configs, infos=infos, where=listing.shown)
    return Card(configs=configs, default=default, features=infos)


def chosen(card: Card, name: str | None, *, where: str) -> Config:
    """Return the configuration of this name; without a name the default one, or the only one.

    Raises: SourceError if there is no such configuration, or there are several and none is named.
    """
    configs = card.configs or {"default": Config(name="default", features=card.features.get("default"))}
    if name is None and (name := card.default if card.configs else "default") is None:
        raise SourceError(
            f"{where}: has the configurations {_listed(configs)}, and none of them is the default",
            remedy=f"choose one, such as --config {next(iter(configs))}",
        )
    if name not in configs:
        raise SourceError(
            f"{where}: no configuration {name!r}, expected {_listed(configs)}",
            remedy=f"{suggestion(name, sorted(configs))}choose one of them with --config"
            if card.configs
            else "leave --config out",
        )
    found = configs[name]
    return dataclasses.replace(found, features=card.features.get(name, found.features))


def _listed(names: Sequence[str] | Mapping[str, Any], most: int = 20) -> str:
    shown = [*names][:most]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def _front_matter(content: bytes, *, name: str, where: str) -> dict[str, Any]:
    import yaml  # most sources have no card

    with _as_source_error(f"{where}: {name}"):
        text = content.decode("utf-8")
        if name.endswith(".md"):
            found = _BLOCK.match(text)
            text = found[1] if found else ""
        document = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        _require_few_values(document)
    if document is not None and not isinstance(document, dict):
        raise _malformed(f"{where}: {name}", f"{type(document).__name__} at the top level, expected names and values")
    return document or {}


class _as_source_error:
    """Context that turns errors of parsing a card into a SourceError; imports yaml only when one is raised."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        import yaml

        if isinstance(error, ValueError | TypeError | KeyError | AttributeError | RecursionError | yaml.YAMLError):
            raise _malformed(self._where, " ".join(str(error).split()) or type(error).__name__) from error


def _malformed(where: str, what: str) -> SourceError:
    return SourceError(
        f"{where}: the dataset card cannot be understood: {what}",
        remedy="correct it, or name the data files by a glob, such as 'data/*.parquet'",
    )


def _require_few_values(document: Any) -> None:
    """Raise ValueError for too many values: with aliases, a few lines of YAML stand for any number of them."""
    waiting = [document]
    for _ in range(_MOST_VALUES):
        if not waiting:
            return
        value = waiting.pop()
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
    raise ValueError(f"more than {_MOST_VALUES:,} values")


def _entries(configs: Any) -> list[dict[str, Any]]:
    if not configs:
        return []
    if not isinstance(configs, list) or not all(
        isinstance(entry, dict) and "config_name" in entry for entry in configs
    ):
        raise ValueError("configs, expected a list of entries with a config_name")
    return configs


def _config(entry: Mapping[str, Any]) -> Config:
    files = entry.get("data_files")
    features = entry.get("features")
    return Config(
        name=str(entry["config_name"]),
        data_files=None if files is None else _patterns(files),
        data_dir=str(entry.get("data_dir") or ""),
        options={str(name): value for name, value in entry.items() if name not in _NOT_OPTIONS},
        features=None if features is None else card_features.as_json(features),
    )


def _patterns(files: Any) -> dict[str, list[str]]:
    if isinstance(files, str):
        return {"train": [files]}
    if isinstance(files, list) and all(isinstance(each, str) for each in files):
        return {"train": files}
    splits: dict[str, list[str]] = {}
    for each in files if isinstance(files, list) else [files]:
        path = each.get("path") if isinstance(each, dict) and set(each) == {"split", "path"} else None
        some = [path] if isinstance(path, str) else path
        if not isinstance(some, list) or not all(isinstance(one, str) for one in some):
            raise ValueError("data_files, expected a pattern, a list of them, or entries with a split and a path")
        if str(each["split"]) in splits:
            raise ValueError(f"data_files, split {each['split']!r} is listed twice")
        splits[str(each["split"])] = some
    return splits


def _features(infos: Any) -> dict[str, Any]:
    """Return the columns by configuration; None for a configuration without any."""
    entries = infos if isinstance(infos, list) else [infos] if isinstance(infos, dict) else []
    return {
        str(entry.get("config_name", "default")): card_features.as_json(entry["features"])
        if entry.get("features") is not None
        else None
        for entry in entries
    }


def _old_features(listing: FolderListing) -> dict[str, Any]:
    if (content := listing.read(_INFOS)) is None:
        return {}
    with _as_source_error(f"{listing.shown}: {_INFOS}"):
        infos = {str(name): info.get("features") for name, info in json.loads(content).items()}
    # Old releases gave a single configuration an arbitrary name.
    return {"default": next(iter(infos.values()))} if len(infos) == 1 else infos


def _default(
    entries: Sequence[Mapping[str, Any]], *, configs: Mapping[str, Config], infos: Mapping[str, Any], where: str
) -> str | None:
    marked = {str(entry["config_name"]) for entry in entries if entry.get("default")}
    found = [name for name in configs if len(configs) == 1 or name == "default" or name in marked]
    if len(found) > 1:
        raise _malformed(where, f"{' and '.join(found)} are both the default configuration")
    return next(iter(found), next(iter(infos)) if len(infos) == 1 else None)
