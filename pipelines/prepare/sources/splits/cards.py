"""What a dataset card says: which files belong to which split of which configuration, and what the columns are.

    README.md                     ---
                                  configs:
                                  - config_name: en
                                    data_files:
                                    - split: train
                                      path: en/*.parquet
                                  dataset_info: ...
                                  ---
    .huggingface.yaml             the same without the lines; what it says goes before the card
    dataset_infos.json            columns, as old releases of `datasets` wrote them

It is read as `datasets` reads it. A card comes from whoever made the dataset: it names files of its own folder only.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.prepare.options.suggestions import suggestion
from pipelines.prepare.sources.files.folder_listing import Place
from pipelines.prepare.sources.splits import card_features
from tfrecord_io.errors import SourceError

__all__ = ["Card", "Config", "chosen", "read"]

_BLOCK = re.compile(r"\A\s*---[\r\n]+([\S\s]*?)[\r\n]+---(?:\r\n|\n|\Z)")
_NAMES = ("README.md", ".huggingface.yaml")
_INFOS = "dataset_infos.json"
_MOST_VALUES = 1_000_000
# What of a configuration changes no row of any reader.
_HARMLESS = frozenset({"config_name", "data_files", "data_dir", "default", "features", "version", "description"})
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
    """One configuration. `data_files` gives the patterns of each split, None if the files' names say the splits; both
    count from `data_dir`, a folder below that of the card.
    """

    name: str
    data_files: Mapping[str, Sequence[str]] | None = None
    data_dir: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    features: Any = None

    def options_of(self, kind: str) -> dict[str, Any]:
        """What the card tells the reader of files of this kind, but for what has the reader's own default."""
        names = _OPTIONS["csv" if kind == "tsv" else kind].split()
        return {name: value for name, value in self.options.items() if name in names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """All of the configurations that a card lists, and the name of the one that is meant where none is named."""

    configs: Mapping[str, Config] = dataclasses.field(default_factory=dict)
    default: str | None = None
    features: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read(place: Place) -> Card:
    """The card of a folder, an empty one if it has none. Raises: SourceError if it cannot be understood."""
    said: dict[str, Any] = {}
    for name in _NAMES:
        if (content := place.read(name)) is not None:
            said.update(_front_matter(content, name=name, place=place.shown))
    infos = _old_features(place)
    with _explained(place.shown):
        listed = [_config(entry) for entry in _entries(said.get("configs"))]
        infos.update(_features(said.get("dataset_info")))
    configs = {config.name: config for config in listed}
    default = _default(said.get("configs") or [], configs=configs, infos=infos, place=place.shown)
    return Card(configs=configs, default=default, features=infos)


def chosen(card: Card, name: str | None, *, place: str) -> Config:
    """The configuration of this name; without a name the default one, or the only one.

    Raises: SourceError if it is not there, or none is named among several.
    """
    configs = card.configs or {"default": Config(name="default", features=card.features.get("default"))}
    if name is None and (name := card.default if card.configs else "default") is None:
        raise SourceError(
            f"{place}: has the configurations {_listed(configs)}, and none of them is the default",
            remedy=f"choose one, such as --config {next(iter(configs))}",
        )
    if name not in configs:
        raise SourceError(
            f"{place}: no configuration {name!r}, expected {_listed(configs)}",
            remedy=f"{suggestion(name, sorted(configs))}choose one of them with --config"
            if card.configs
            else "leave --config out",
        )
    found = configs[name]
    return dataclasses.replace(found, features=card.features.get(name, found.features))


def _listed(names: Sequence[str] | Mapping[str, Any], most: int = 20) -> str:
    shown = [*names][:most]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def _front_matter(content: bytes, *, name: str, place: str) -> dict[str, Any]:
    import yaml  # most sources have no card

    with _explained(f"{place}: {name}"):
        text = content.decode("utf-8")
        if name.endswith(".md"):
            found = _BLOCK.match(text)
            text = found[1] if found else ""
        said = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        _require_few_values(said)
    if said is not None and not isinstance(said, dict):
        raise _unclear(f"{place}: {name}", f"{type(said).__name__} at its top, expected names and values")
    return said or {}


class _explained:
    """Around the reading of what a card says."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        import yaml

        if isinstance(error, ValueError | TypeError | KeyError | AttributeError | RecursionError | yaml.YAMLError):
            said = " ".join(str(error).split()) or type(error).__name__
            raise _unclear(self._place, said) from error


def _unclear(place: str, what: str) -> SourceError:
    return SourceError(
        f"{place}: the dataset card cannot be understood: {what}",
        remedy="mend it, or name the data files by a glob, such as 'data/*.parquet'",
    )


def _require_few_values(said: Any) -> None:
    """Aliases make few lines stand for any number of values, even for endless ones. Raises: ValueError."""
    waiting = [said]
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
        raise ValueError("configs, expected a list in which each entry has a config_name")
    return configs


def _config(entry: Mapping[str, Any]) -> Config:
    files = entry.get("data_files")
    features = entry.get("features")
    return Config(
        name=str(entry["config_name"]),
        data_files=None if files is None else _patterns(files),
        data_dir=str(entry.get("data_dir") or ""),
        options={str(name): value for name, value in entry.items() if name not in _HARMLESS},
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
            raise ValueError(f"data_files, split {each['split']!r} is there twice")
        splits[str(each["split"])] = some
    return splits


def _features(infos: Any) -> dict[str, Any]:
    """By configuration; None for one that says nothing of its columns."""
    entries = infos if isinstance(infos, list) else [infos] if isinstance(infos, dict) else []
    return {
        str(entry.get("config_name", "default")): card_features.as_json(entry["features"])
        if entry.get("features") is not None
        else None
        for entry in entries
    }


def _old_features(place: Place) -> dict[str, Any]:
    if (content := place.read(_INFOS)) is None:
        return {}
    with _explained(f"{place.shown}: {_INFOS}"):
        infos = {str(name): info.get("features") for name, info in json.loads(content).items()}
    # One that was alone had a name that nobody gives.
    return {"default": next(iter(infos.values()))} if len(infos) == 1 else infos


def _default(
    entries: Sequence[Mapping[str, Any]], *, configs: Mapping[str, Config], infos: Mapping[str, Any], place: str
) -> str | None:
    marked = {str(entry["config_name"]) for entry in entries if entry.get("default")}
    found = [name for name in configs if len(configs) == 1 or name == "default" or name in marked]
    if len(found) > 1:
        raise _unclear(place, f"{' and '.join(found)} are both the default configuration")
    return next(iter(found), next(iter(infos)) if len(infos) == 1 else None)
