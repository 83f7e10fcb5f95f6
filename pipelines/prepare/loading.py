"""Finding and opening the dataset, all through `datasets`.

DATASET is one of

    a folder written by `save_to_disk`          its Arrow files are used as they are
    a folder, file or glob of data files        parquet, arrow, jsonl, csv, tsv, txt, and .gz of the text formats
    anything else                               a hub id; its revision is resolved here, once, and pinned

`datasets` turns the last two into Arrow files in its cache. A `Source` then lists, for each split, those files, the
row ranges that were asked for, and the columns' types. Only paths travel to workers. Remote code is never run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pyarrow as pa
from datasets.table import CastError

from pipelines.prepare import data_files, hub, memory, packed_files, paths
from pipelines.prepare.arrow_files import ArrowFiles, Stamp, stamps_of
from pipelines.prepare.config import SourceConfig
from pipelines.prepare.content import files_digest
from pipelines.prepare.hints import suggestion
from pipelines.prepare.opened import Column, Columns, Source, SplitSource
from tfrecord_io.errors import ColumnError, SourceError, SplitNotFoundError

__all__ = ["described", "open_source"]

# Split names become file names.
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]*\Z")

_BYTES_PER_PROCESS = 1 << 29

_log = logging.getLogger(__name__)


class _Loaded(NamedTuple):
    splits: Mapping[str, datasets.Dataset]
    identity: Mapping[str, Any]
    files: Mapping[str, Sequence[str]]
    stamps: Mapping[str, Stamp]


def open_source(config: SourceConfig, *, processes: int = 1) -> Source:
    """Opens the dataset and picks the splits. Many large files are prepared by up to `processes` forks of this one,
    which should be one without threads then.

    Raises: SourceError if it cannot be found or read; SplitNotFoundError if a split is not in it.
    """
    loaded, identity, data, stamps = _load(config, processes)
    # What Arrow needed to prepare the files is of no more use, and a worker in this process will want the room.
    memory.give_back()
    files: dict[str, ArrowFiles] = {}
    columns: dict[str, Columns] = {}
    lengths: dict[str, int] = {}
    for name, split in loaded.items():
        _check_name(str(name), dataset=config.dataset)
        files[str(name)] = ArrowFiles.of([entry["filename"] for entry in split.cache_files], known=stamps)
        columns[str(name)] = described(split.features)
        lengths[str(name)] = split.num_rows
    everything = {
        name: SplitSource(name=name, files=files[name], ranges=((0, rows),)) for name, rows in lengths.items() if rows
    }
    if not everything:
        raise SourceError(
            f"{config.dataset}: no rows, expected at least one", remedy="check the files for their content"
        )
    chosen = _choose(config.splits or tuple(everything), lengths=lengths, files=files, limit=config.limit)
    return Source(splits=chosen, all_splits=everything, columns=columns, identity=identity, files=data)


def described(features: datasets.Features) -> Columns:
    """The columns that have these features."""
    return Columns(
        (name, Column(kind=field.type, text=str(held), names=_names(held), item_names=_item_names(held)))
        for (name, held), field in zip(features.items(), features.arrow_schema, strict=True)
    )


def _names(feature: Any) -> tuple[str, ...] | None:
    names = getattr(feature, "names", None)
    return None if names is None else tuple(names)


def _item_names(feature: Any) -> tuple[str, ...] | None:
    """Of a feature that is a list: releases have written it in three ways."""
    return _names(feature[0] if isinstance(feature, list) else getattr(feature, "feature", None))


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
    if spec in lengths:  # saved splits may have names that a specification cannot hold, such as `my-split`
        return spec, ((0, lengths[spec]),) if lengths[spec] else ()
    try:
        parts = datasets.ReadInstruction.from_spec(spec).to_absolute(dict(lengths))
    except (ValueError, AssertionError, AttributeError, TypeError) as error:
        raise SplitNotFoundError(f"--split {spec!r}: {error}", remedy=_split_remedy(spec, lengths)) from error
    names = {part.splitname for part in parts}
    if len(names) != 1:
        raise SplitNotFoundError(
            f"--split {spec!r} joins the splits {sorted(names)}, expected parts of one split",
            remedy="give --split once for each split",
        )
    name = names.pop()
    bounds = ((part.from_ or 0, lengths[name] if part.to is None else part.to) for part in parts)
    return name, tuple((start, stop) for start, stop in bounds if start < stop)


def _split_remedy(spec: str, lengths: Mapping[str, int]) -> str:
    if set(spec.split(",")) <= set(lengths) and "," in spec:
        return f"give each by itself: {' '.join(f'--split {name}' for name in spec.split(','))}"
    known = ", ".join(sorted(lengths))
    near = suggestion(spec.partition("[")[0], sorted(lengths))
    return f"{near}choose among {known}, sliced as in 'train[:1%]' where wanted"


def _check_name(name: str, *, dataset: str) -> None:
    if not _SPLIT_NAME.match(name):
        raise SourceError(
            f"{dataset}: split {name!r}, expected letters, digits, '_', '-', '+' or '.', as in a file name",
            remedy="rename the split in the source",
        )


def _first_rows(ranges: Sequence[tuple[int, int]], limit: int) -> tuple[tuple[int, int], ...]:
    kept: list[tuple[int, int]] = []
    for start, stop in ranges:
        if limit <= 0:
            break
        kept.append((start, min(stop, start + limit)))
        limit -= stop - start
    return tuple(kept)


def _load(config: SourceConfig, processes: int) -> _Loaded:
    dataset = os.path.expanduser(config.dataset)
    paths.require(config.dataset, *config.more)
    if os.path.isdir(dataset) and _is_saved(dataset) and not config.more:
        return _load_saved(dataset, config)
    if config.more or paths.is_files(config.dataset):
        return _load_files(data_files.find(config.dataset, *config.more), config, processes)
    return _load_hub(config)


def _is_saved(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, name)) for name in ("dataset_dict.json", "state.json"))


def _load_saved(folder: str, config: SourceConfig) -> _Loaded:
    _refuse_hub_options(config)
    with hub.explained(folder):
        if os.path.exists(os.path.join(folder, "dataset_dict.json")):
            names = json.loads(Path(folder, "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
            splits = {str(name): _load_split(os.path.join(folder, name)) for name in names}
        else:
            only = _load_split(folder)
            splits = {_own_name(only): only}
    loaded = {name: split for name, split in splits.items() if split is not None}
    _leave_out(splits.keys() - loaded.keys(), place=folder)
    files = {name: [entry["filename"] for entry in split.cache_files] for name, split in loaded.items()}
    paths = sorted({path for split in files.values() for path in split})
    # Before the digest: workers then notice whatever changes after it.
    stamps = stamps_of(paths)
    return _Loaded(loaded, {"kind": "save_to_disk", "files": files_digest(paths, root=folder)}, files, stamps)


def _load_split(folder: str) -> datasets.Dataset | None:
    """A split as saved; None if it has no rows, since `datasets` cannot load those again."""
    state = json.loads(Path(folder, "state.json").read_text(encoding="utf-8"))
    return datasets.load_from_disk(folder, keep_in_memory=False) if state["_data_files"] else None


def _own_name(split: datasets.Dataset | None) -> str:
    """The name that a saved dataset has for itself: of one split or slice that split's, else `train`."""
    said = "" if split is None else str(split.split or "")
    names = {part.partition("[")[0] for part in said.split("+")}
    return (names.pop() if len(names) == 1 else "") or "train"


def _load_files(named: Sequence[str], config: SourceConfig, processes: int) -> _Loaded:
    _refuse_hub_options(config)
    kind = data_files.kind_of_all(named, dataset=config.dataset)
    every = data_files.by_split(named, dataset="" if config.more else os.path.expanduser(config.dataset))
    packed_files.require_whole_zst(named)
    filled = {name: [path for path in files if data_files.has_rows(path)] for name, files in every.items()}
    # `datasets` takes each entry for a glob.
    entries = {name: [data_files.literal(path) for path in files] for name, files in filled.items() if files}
    _leave_out(every.keys() - entries.keys(), place=config.dataset)
    before = stamps_of(named)
    with hub.explained(config.dataset, files=named), _told_apart(config.dataset):
        _check_headers(filled, kind=kind, config=config)
        loaded = _prepared(entries, kind=kind, processes=_worthwhile(filled, processes)) if entries else {}
    identity = {"kind": kind, "files": files_digest(named)}
    if changed := sorted(path for path, stamp in stamps_of(named).items() if stamp != before.get(path)):
        raise SourceError(f"{changed[0]}: was changed while it was read", remedy="run the same command again")
    return _Loaded(loaded, identity, filled, {})


def _prepared(entries: Mapping[str, Sequence[str]], *, kind: str, processes: int | None) -> datasets.DatasetDict:
    """The files as Arrow files, in their order, whoever prepared them."""
    try:
        return datasets.load_dataset(
            data_files.BUILDERS[kind],
            data_files=entries,
            keep_in_memory=False,
            num_proc=processes,
            **data_files.options(kind),
        )
    except Exception:
        if processes is None:
            raise
        # What is wrong with a file does not survive the way between processes.
        return _prepared(entries, kind=kind, processes=None)


def _worthwhile(files: Mapping[str, Sequence[str]], processes: int) -> int | None:
    """How many processes are to prepare the files: each takes whole ones, and time and memory to start."""
    paths = [path for split in files.values() for path in split]
    if any("://" in path for path in paths):
        return None
    total = sum(os.path.getsize(path) for path in paths)
    count = min(processes, max(map(len, files.values()), default=0), total // _BYTES_PER_PROCESS)
    return count if count > 1 else None


def _check_headers(files: Mapping[str, Sequence[str]], *, kind: str, config: SourceConfig) -> None:
    """Looks at each split's first file; `datasets` refuses others with other columns. It would take the first of two
    columns without a word, and of a first row with more fields than the header the first for the names of rows, so
    that every column has the values of the one before it.
    """
    wanted = {*config.text_columns, config.label_column, *config.keep_columns}
    for path in (some[0] for some in files.values() if some and kind in data_files.SEPARATORS):
        names, num_fields = data_files.header(path, separator=data_files.SEPARATORS[kind])
        if repeated := sorted({name for name in names if name in wanted and names.count(name) > 1}):
            raise ColumnError(
                f"{path}: the header line names several columns {', '.join(map(repr, repeated))}, "
                "expected one of each name",
                remedy="rename them in the file",
            )
        if num_fields > len(names):
            raise SourceError(
                f"{path}: {num_fields} fields in the first row, but {len(names)} names in the header line",
                remedy="name every column in the header line, and end no row with a separator",
            )


@contextlib.contextmanager
def _told_apart(place: str) -> Iterator[None]:
    """Says which columns differ, where the files of a dataset have not all the same."""
    try:
        yield
    except datasets.exceptions.DatasetGenerationError as error:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, CastError):
            details = cause.details()
        elif isinstance(cause, pa.ArrowInvalid) and str(cause).startswith("Schema at index"):
            details = "; ".join(" ".join(side.split()) for side in str(cause).partition(":")[2].split("\nvs\n"))
        else:
            raise
        raise SourceError(
            f"{place}: cannot be read: its files have not the same columns ({details})",
            remedy="bring all files into the same columns, or name only some of them by a glob",
        ) from error


def _load_hub(config: SourceConfig) -> _Loaded:
    with hub.explained(config.dataset):
        revision = hub.resolve_dataset_revision(config.dataset, revision=config.revision)
        loaded = datasets.load_dataset(config.dataset, config.config, revision=revision, keep_in_memory=False)
    if revision is None:
        paths = [entry["filename"] for split in loaded.values() for entry in split.cache_files]
        revision = hub.cached_revision(paths, dataset=config.dataset, wanted=config.revision)
    identity = {"kind": "hub", "name": config.dataset, "config": config.config, "revision": revision}
    return _Loaded(loaded, identity, {}, {})


def _refuse_hub_options(config: SourceConfig) -> None:
    if config.config or config.revision:
        raise SourceError(
            f"{config.dataset}: --config and --revision belong to hub datasets, but these are files",
            remedy="leave them out",
        )


def _leave_out(names: Iterable[str], *, place: str) -> None:
    for name in sorted(names):
        _log.warning("%s: split %r has no rows and is left out", place, name)
