"""Finding and opening the dataset, all through `datasets`.

DATASET is one of

    a folder written by `save_to_disk`          its Arrow files are used as they are
    a folder, file or glob of data files        parquet, arrow, jsonl, csv, tsv, txt, and .gz of the text formats
    anything else                               a hub id; its revision is resolved here, once, and pinned

`datasets` turns the last two into Arrow files in its cache. A `Source` then lists, for each split, those files, the
row ranges that were asked for, and the columns' types. Only paths travel to workers. Remote code is never run.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import datasets
import pyarrow as pa

from pipelines.prepare import hub
from pipelines.prepare.arrow_files import ArrowFiles
from pipelines.prepare.config import SourceConfig
from pipelines.prepare.content import files_digest
from tfrecord_io.errors import SourceError, SplitNotFoundError

__all__ = ["Source", "SplitSource", "open_source"]

_BUILDERS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
}
_PACKED = (".gz", ".bz2", ".xz", ".zst")
# What `datasets` and the tools around it leave beside the data.
_NOT_DATA = frozenset({"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "metadata.json"})
# The words by which a file says its split, as separate parts of its name.
_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSource:
    """The rows of one split: [start, stop) ranges of its files' rows, in the order asked for."""

    name: str
    files: ArrowFiles
    ranges: tuple[tuple[int, int], ...]

    @property
    def num_rows(self) -> int:
        """Rows in all ranges."""
        return sum(stop - start for start, stop in self.ranges)

    def read(self, segments: Sequence[tuple[int, int]], columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (first row number, record batch), as `ArrowFiles.read` does, for segments in any order."""
        for run in _ascending_runs(segments):
            yield from self.files.read(run, columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """An opened dataset. `identity` is what the fingerprint and the manifest say of it; it holds no secrets and no
    paths.
    """

    splits: Mapping[str, SplitSource]
    all_splits: Mapping[str, SplitSource]
    features: Mapping[str, datasets.Features]
    identity: Mapping[str, Any]


def open_source(config: SourceConfig) -> Source:
    """Opens the dataset and picks the splits.

    Raises: SourceError if it cannot be found or read; SplitNotFoundError if a split is not in it.
    """
    loaded, identity = _load(config)
    files: dict[str, ArrowFiles] = {}
    features: dict[str, datasets.Features] = {}
    lengths: dict[str, int] = {}
    for name, split in loaded.items():
        files[str(name)] = ArrowFiles(tuple(entry["filename"] for entry in split.cache_files))
        features[str(name)] = split.features
        lengths[str(name)] = split.num_rows
    everything = {
        name: SplitSource(name=name, files=files[name], ranges=((0, rows),)) for name, rows in lengths.items() if rows
    }
    chosen = _choose(config.splits or tuple(lengths), lengths=lengths, files=files, limit=config.limit)
    return Source(splits=chosen, all_splits=everything, features=features, identity=identity)


def _choose(
    specs: Sequence[str], *, lengths: Mapping[str, int], files: Mapping[str, ArrowFiles], limit: int | None
) -> dict[str, SplitSource]:
    chosen: dict[str, SplitSource] = {}
    for spec in specs:
        name, ranges = _ranges(spec, lengths)
        if limit is not None:
            ranges = _first_rows(ranges, limit)
        if name in chosen:
            raise SplitNotFoundError(
                f"--split {spec!r}: split {name!r} was already given, expected each split once",
                remedy=f"join the parts with a plus sign, as in --split '{name}[:10%]+{name}[90%:]'",
            )
        if not ranges:
            raise SplitNotFoundError(
                f"--split {spec!r} has no rows, expected at least one", remedy="choose another split or another slice"
            )
        chosen[name] = SplitSource(name=name, files=files[name], ranges=ranges)
    return chosen


def _ranges(spec: str, lengths: Mapping[str, int]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The split's name and the row ranges that `datasets` reads for a split specification such as `train[:1%]`."""
    try:
        parts = datasets.ReadInstruction.from_spec(spec).to_absolute(dict(lengths))
    except (ValueError, AssertionError, AttributeError, TypeError) as error:
        raise SplitNotFoundError(
            f"--split {spec!r}: {error}",
            remedy=f"choose among {', '.join(sorted(lengths))}, sliced as in 'train[:1%]' where wanted",
        ) from error
    names = {part.splitname for part in parts}
    if len(names) != 1:
        raise SplitNotFoundError(
            f"--split {spec!r} joins the splits {sorted(names)}, expected parts of one split",
            remedy="give --split once for each split",
        )
    name = names.pop()
    bounds = ((part.from_ or 0, lengths[name] if part.to is None else part.to) for part in parts)
    return name, tuple((start, stop) for start, stop in bounds if start < stop)


def _ascending_runs(segments: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    run: list[tuple[int, int]] = []
    for start, stop in segments:
        if run and start < run[-1][1]:
            yield run
            run = []
        run.append((start, stop))
    if run:
        yield run


def _first_rows(ranges: Sequence[tuple[int, int]], limit: int) -> tuple[tuple[int, int], ...]:
    kept: list[tuple[int, int]] = []
    for start, stop in ranges:
        if limit <= 0:
            break
        kept.append((start, min(stop, start + limit)))
        limit -= stop - start
    return tuple(kept)


def _load(config: SourceConfig) -> tuple[Mapping[str, datasets.Dataset], dict[str, Any]]:
    dataset = os.path.expanduser(config.dataset)
    if os.path.isdir(dataset) and _is_saved(dataset):
        return _load_saved(dataset)
    if os.path.isdir(dataset):
        return _load_files(_files_below(dataset), config)
    if os.path.exists(dataset) or glob.has_magic(dataset) or "://" in dataset or _builder(dataset):
        return _load_files(_expand(dataset), config)
    return _load_hub(config)


def _is_saved(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, name)) for name in ("dataset_dict.json", "state.json"))


def _load_saved(folder: str) -> tuple[Mapping[str, datasets.Dataset], dict[str, Any]]:
    with hub.explained(folder):
        loaded = datasets.load_from_disk(folder, keep_in_memory=False)
    splits = loaded if isinstance(loaded, dict) else {str(loaded.split or "train").partition("[")[0]: loaded}
    paths = sorted({entry["filename"] for split in splits.values() for entry in split.cache_files})
    return splits, {"kind": "save_to_disk", "name": _base(folder), "files": files_digest(paths, root=folder)}


def _load_files(paths: Sequence[str], config: SourceConfig) -> tuple[Mapping[str, datasets.Dataset], dict[str, Any]]:
    builders = {_builder(path) or "unknown" for path in paths}
    if len(builders) != 1 or "unknown" in builders:
        raise SourceError(
            f"{config.dataset}: files of the kinds {sorted(builders)}, expected one kind of {sorted(set(_BUILDERS))}",
            remedy="name the data files by a glob, such as 'data/*.jsonl'",
        )
    if config.config or config.revision:
        raise SourceError(
            f"{config.dataset}: --config and --revision belong to hub datasets, but these are files",
            remedy="leave them out",
        )
    data_files: dict[str, list[str]] = {}
    for path in paths:
        data_files.setdefault(_split_of(path), []).append(path)
    builder = builders.pop()
    options: dict[str, Any] = {"sep": "\t"} if builder == "csv" and _suffix(paths[0]) == ".tsv" else {}
    with hub.explained(config.dataset):
        loaded = datasets.load_dataset(builder, data_files=data_files, keep_in_memory=False, **options)
    identity = {"kind": builder, "name": _base(config.dataset), "files": files_digest(paths)}
    return loaded, identity


def _load_hub(config: SourceConfig) -> tuple[Mapping[str, datasets.Dataset], dict[str, Any]]:
    with hub.explained(config.dataset):
        revision = hub.resolve_dataset_revision(config.dataset, revision=config.revision)
        loaded = datasets.load_dataset(config.dataset, config.config, revision=revision, keep_in_memory=False)
    return loaded, {"kind": "hub", "name": config.dataset, "config": config.config, "revision": revision}


def _files_below(folder: str) -> list[str]:
    found = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    visible = (path for path in found if not any(part.startswith(".") for part in path[len(folder) :].split(os.sep)))
    if not (files := sorted(path for path in visible if _builder(path) and posixpath.basename(path) not in _NOT_DATA)):
        raise SourceError(
            f"{folder}: no data file, expected {', '.join(sorted(_BUILDERS))} or a folder written by save_to_disk",
            remedy="name the data files by a glob, such as 'data/**/*.parquet'",
        )
    return files


def _expand(pattern: str) -> list[str]:
    if "://" in pattern:
        return hub.expand_url(pattern)
    paths = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]
    if not (files := [path for path in paths if os.path.isfile(path)]):
        raise SourceError(f"{pattern}: no such file", remedy="check the path; quote a glob so that the shell leaves it")
    return files


def _builder(path: str) -> str | None:
    return _BUILDERS.get(_suffix(path))


def _suffix(path: str) -> str:
    stem, suffix = posixpath.splitext(path.lower())
    return posixpath.splitext(stem)[1] if suffix in _PACKED else suffix


def _split_of(path: str) -> str:
    """The split that a file's name says, as a separate word of it: `train-00000-of-00002.parquet`; else `train`."""
    stem = posixpath.basename(path).partition(".")[0].lower()
    words = re.split(r"[^a-z]+", stem)
    return next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), "train")


def _base(path: str) -> str:
    return posixpath.basename(path.rstrip("/"))
