"""Resolve DATASET to splits and files with `datasets`, before rows are read.

    DATASET                                     resolved by
    the Parquet parts of an object              the split names in the file names
    a folder written by `save_to_disk`          the Arrow files that its state.json names
    a local folder                              load_dataset(FOLDER)
    a folder elsewhere, files, globs            load_dataset(READER, data_files=...), with the reader and splits that
                                                load_dataset chooses for a folder with these file names
    anything else                               load_dataset(NAME) of the hub; its revision is resolved once, and pinned

With --format, --data-files and --source-option, these calls get further arguments.
"""

import contextlib
import dataclasses
import glob
import logging
import os
import posixpath
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.options import paths
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.suggestions import listing
from pipelines.prepare.sources.resolve import (
    agent_traces,
    data_files,
    hub,
    library,
    reader_options,
    saved_datasets,
    trust,
)
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.sources.resolve.library import SourceListing
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

# Files next to the data that may be left unused without a warning.
_BESIDE = frozenset(
    {*trust.CARDS, "LICENSE", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}
)
_EVALUATED = re.compile(
    r"(?<![A-Za-z])(TEST|VALID|VALIDATION|VAL|DEV|EVAL)(?![A-Za-z])|^(Test|Valid|Validation|Dev|Eval)(?![a-z])"
)
_SPLIT_WORD = re.compile(
    r"(?<![A-Za-z])(train|training|test|testing|validation|valid|val|dev|eval)(?![A-Za-z])", re.IGNORECASE
)
# Text files below this average size are probably documents, not lists of lines.
_DOCUMENT_BYTES = 1_000_000

_log = logging.getLogger(__name__)


def resolve(config: SourceConfig) -> SourceListing:
    """Resolve the dataset to its splits, and their files with versions. Raises: SourceError."""
    reader_options.require_options(config)
    if not config.object_splits:
        paths.require_dataset(config.dataset, *config.more_paths)
        reader_options.require_reader(config.format)
        for path in (config.dataset, *config.more_paths):
            if "::" in (real := os.path.realpath(path)) and os.path.exists(real):
                raise SourceError(f"{real}: '::' in its name, which joins addresses for `datasets`", remedy="rename it")
    with reader_options.as_source_error(config):
        return _resolve(config)


def _resolve(config: SourceConfig) -> SourceListing:
    if config.object_splits:
        return _of_object(config)
    if not config.more_paths and hub.is_repository(config.dataset):
        return _of_hub(config)
    if any(name.startswith("hf://") for name in (config.dataset, *config.more_paths)):
        return _of_hub_files(config)
    where = without_access(config.dataset)
    if config.revision:
        raise SourceError(
            f"{where}: --revision is for hub datasets, but these are files", remedy="leave --revision out"
        )
    if not config.more_paths and saved_datasets.is_saved(config.dataset):
        return _of_saved(config, where=where)
    if not config.more_paths and (folder := storage.local_path(config.dataset)) and os.path.isdir(folder):
        return _of_folder(os.path.abspath(folder), config)
    return _of_files(config)


def _of_folder(folder: str, config: SourceConfig) -> SourceListing:
    files, has_outputs = data_files.list_folder(folder)
    if has_outputs or glob.has_magic(folder) or not files:
        return _of_listed(files, config, card=folder)
    builder = _open_folder(folder, config, where=folder)
    trust.require_inside(library.splits_of(builder), root=folder, where=folder)
    return _of_builder(builder, config, where=folder, files=files)


def _open_folder(folder: str, config: SourceConfig, *, where: str) -> Any:
    options = reader_options.arguments(config)
    if config.format:
        return library.open_builder(config.format, data_dir=folder, name=config.config, **options)
    trust.require_modest_cards(folder, where=where)
    return library.open_builder(folder, name=config.config, **options)


def _of_files(config: SourceConfig) -> SourceListing:
    found: dict[str, DataFile] = {}
    card = None
    for name in (config.dataset, *config.more_paths):
        if is_folder := data_files.is_folder(name):
            card = None if config.more_paths else name
        files = data_files.list_folder(name)[0] if is_folder else data_files.list_files(name)
        found.update({each.path: each for each in files})
    return _of_listed(sorted(found.values(), key=lambda each: each.path), config, card=card)


def _of_listed(files: Sequence[DataFile], config: SourceConfig, *, card: str | None) -> SourceListing:
    """Resolve files as if their common folder held nothing else; `card`: a folder with a card."""
    where = without_access(config.dataset)
    if not files:
        raise SourceError(f"{where}: no files, expected a dataset", remedy="check the path")
    shown = [without_access(each.path) for each in files]
    common = paths.common_folder(shown)
    inner = [path[len(common) :].lstrip("/") for path in shown]
    plain = [path if (name := _visible(path)) in inner else name for path in inner]
    below = dict(zip(plain, files, strict=True))
    if len(below) < len(files):
        twice = next(path for path, name in zip(shown, plain, strict=True) if plain.count(name) > 1)
        raise SourceError(f"{twice}: named twice, with different queries", remedy="name each file once")
    with _mirror(below, card=card) as folder:
        found = _open_folder(folder, config, where=where)
        splits = {
            split: [below[os.path.relpath(path, folder)].path for path in some]
            for split, some in library.splits_of(found).items()
        }
        builder = library.with_files(found, splits)
    for folder in filter(os.path.isdir, filter(None, map(storage.local_path, (config.dataset, *config.more_paths)))):
        below_it = f"{os.path.abspath(folder)}/"
        inside = {split: [path for path in some if path.startswith(below_it)] for split, some in splits.items()}
        trust.require_inside(inside, root=folder, where=where)
    return _of_builder(builder, config, where=where, files=files)


def _visible(path: str) -> str:
    """Remove the prefixes of hidden files, which `datasets` leaves out."""
    return re.sub(r"(?<![^/])(\.+|__(?=.*/))(?=.)", "", path)


@contextlib.contextmanager
def _mirror(files: Mapping[str, DataFile], *, card: str | None) -> Iterator[str]:
    """Yield a folder with these file names: links to local files, empty files for remote ones."""
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
        for name, file in files.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if "://" in file.path:
                Path(path).touch()
            else:
                os.symlink(file.path, path)
        for name in trust.CARDS if card else ():
            with contextlib.suppress(FileNotFoundError), storage.as_source_error(str(card)):
                content = storage.read_bytes(storage.join(str(card), name), most_bytes=trust.MOST_CARD_BYTES)
                Path(folder, name).unlink(missing_ok=True)
                Path(folder, name).write_bytes(content)
        yield folder


def _of_builder(builder: Any, config: SourceConfig, *, where: str, files: Sequence[DataFile]) -> SourceListing:
    splits = library.splits_of(builder)
    used = {path.rpartition("::")[2] for some in splits.values() for path in some}
    if builder.name == "harbor" and not any(path.endswith(("/task.toml", "/instruction.md")) for path in used):
        raise SourceError(
            f"{where}: Markdown files, which `datasets` reads as text only with --format text",
            remedy="add --format text --sample-by document for a row of each file, --format text for one of each line",
        )
    beside = (".py", ".ipynb", ".sh")
    used |= set(map(os.path.realpath, used))  # `datasets` follows links in the path of a folder
    left = [each.name for each in files if not used & {each.path, os.path.realpath(each.path)}]
    left = [name for name in left if name not in _BESIDE]
    if unused := sorted(name for name in left if not name.endswith(beside)):
        _log.warning("%s: not used: %s", where, listing(unused))
    names = [posixpath.basename(without_access(path)) for path in splits.get("train", ())]
    if odd := [name for name in names if _EVALUATED.search(name)]:
        _log.warning("%s: %s is in split train, since `datasets` knows split names in lower case only", where, odd[0])
    _say_what_joins(splits, where=where)
    pairs = sorted({part for each in files for part in each.name.split("/")[:-1] if "=" in part})
    if pairs and not config.data_files:
        hint = "--data-files SPLIT=PATTERN makes a split of each"
        _log.warning("%s: folders %s give no split and no column; %s", where, listing(pairs), hint)
    size = sum(each.size for each in files if each.path in used)
    if builder.name == "text" and not config.sample_by and len(used) > 1 and size < len(used) * _DOCUMENT_BYTES:
        hint = "--sample-by document makes a row of each file"
        _log.warning("%s: each line of %s text files becomes a row; %s", where, f"{len(used):,}", hint)
    return _listing({None: library.with_members(builder)}, splits, config, kind=builder.name, where=where, files=files)


def _say_what_joins(splits: Mapping[str, Sequence[str]], *, where: str) -> None:
    in_splits: dict[str, list[str]] = {}
    for split, some in splits.items():
        for path in dict.fromkeys(each.rpartition("::")[2] for each in some):
            in_splits.setdefault(path, []).append(split)
    for path, names in in_splits.items():
        shown = posixpath.basename(without_access(path))
        members = library.members(path)
        if len({word[0].lower() for name in members if (word := _SPLIT_WORD.search(name))}) > 1:
            joined = f"all in {' and in '.join(names)}"
            _log.warning("%s: %s holds %s, %s; unpack it for a split of each", where, shown, listing(members), joined)
        elif len(names) > 1:
            remedy = "rename it, or name the files of each split with --data-files SPLIT=PATTERN"
            _log.warning("%s: all rows of %s are in %s, by its name; %s", where, shown, " and in ".join(names), remedy)


def _of_saved(config: SourceConfig, *, where: str) -> SourceListing:
    if config.config:
        raise SourceError(
            f"{where}: --config chooses a configuration of a dataset card, but this has none",
            remedy="leave --config out",
        )
    saved = saved_datasets.read(config.dataset)
    builders: dict[str | None, Any] = {
        name: library.open_builder("arrow", data_files=library.listed({"train": some}), features=features)
        for name, (some, features) in saved.items()
    }
    splits = {name: some for name, (some, _) in saved.items()}
    root = storage.local_path(config.dataset) or config.dataset.rstrip("/")
    trust.require_inside(splits, root=root, where=where)
    root = without_access(root)
    return _listing(
        builders,
        splits,
        config,
        kind="save_to_disk",
        where=where,
        name_of=lambda path: without_access(path).removeprefix(f"{root}/"),
    )


def _of_object(config: SourceConfig) -> SourceListing:
    files = data_files.list_folder(config.dataset)[0] if os.path.isdir(config.dataset) else []
    splits = {
        split: [each.path for each in files if re.fullmatch(rf"{re.escape(split)}-\d+-of-\d+\.\w+", each.name)]
        for split in config.object_splits
    }
    if not all(splits.values()):
        raise SourceError(
            f"the dataset was made from an object in Python; its rows are not kept at {config.dataset}",
            remedy="save the object with save_to_disk, and name that folder with --source",
        )
    builders: dict[str | None, Any] = {None: library.open_builder("parquet", data_files=library.listed(splits))}
    described = {"kind": "object"}
    return _listing(builders, splits, config, kind="parquet", where="the object", files=files, described=described)


def _of_hub(config: SourceConfig) -> SourceListing:
    found = hub.repository(config.dataset, revision=config.revision)
    options = reader_options.arguments(config)
    if found.folder is not None:
        builder = _open_folder(found.folder, config, where=found.name)
    elif config.format:
        patterns = options.get("data_files") or {"train": ["**"]}
        options["data_files"] = {split: [f"{found.root}/{each}" for each in some] for split, some in patterns.items()}
        builder = library.open_builder(config.format, **options)
    else:
        trust.require_modest_cards(found.root, where=found.name)
        builder = library.open_builder(found.name, name=config.config, revision=found.commit, **options)
    splits = library.splits_of(builder)
    trust.require_inside(splits, root=found.folder or found.root, where=found.name)
    return _listing(
        {None: library.with_members(builder)},
        splits,
        config,
        kind=builder.name,
        where=found.name,
        name_of=found.name_of,
        described={"kind": "hub", "name": found.name, "config": config.config, "revision": found.commit},
        needs_token=found.needs_token,
    )


def _of_hub_files(config: SourceConfig) -> SourceListing:
    if config.more_paths:
        raise SourceError(
            f"{config.dataset}: an address of the hub with other paths, expected it alone",
            remedy="name one folder or one glob of a dataset of the hub",
        )
    address, repository = hub.pin(config.dataset, revision=config.revision)
    found = _of_files(dataclasses.replace(config, dataset=address))
    return dataclasses.replace(found, needs_token=repository.needs_token)


def _listing(
    builders: Mapping[str | None, Any],
    splits: Mapping[str, Sequence[str]],
    config: SourceConfig,
    *,
    kind: str,
    where: str,
    files: Sequence[DataFile] = (),
    name_of: Callable[[str], str] = lambda path: posixpath.basename(without_access(path)),
    described: Mapping[str, Any] | None = None,
    needs_token: bool = False,
) -> SourceListing:
    library.require_split_names(splits, where=where)
    in_splits = {split: [path.rpartition("::")[2] for path in some] for split, some in splits.items()}
    used = list(dict.fromkeys(path for some in in_splits.values() for path in some))
    listed = {each.path: each for each in files}
    if odd := next((path for path in used if "//" in path.partition("://")[2]), None):
        raise SourceError(
            f"{without_access(odd)}: '//' in its name, which `datasets` reads as '/'", remedy="copy it to a plain name"
        )
    known = [listed.get(path) or data_files.describe(path) for path in used]
    named = [dataclasses.replace(each, name=name_of(each.path)) for each in known]
    by_path = dict(zip(used, data_files.identify(named), strict=True))
    return SourceListing(
        kind=kind,
        splits={split: [by_path[path] for path in some] for split, some in in_splits.items()},
        described={
            **(described or {}),
            **reader_options.described(config),
            **reader_options.resolved(config, builders.get(None), named, is_pinned="revision" in (described or {})),
        },
        builders={split: library.with_ours(builder) for split, builder in builders.items()},
        needs_token=needs_token,
        named=None
        if any(each.startswith(f"{agent_traces.OPTION}=") for each in config.source_options)
        else config.named_columns,
    )
