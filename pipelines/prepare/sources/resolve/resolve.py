"""Resolve DATASET to splits and files with `datasets`, before rows are read.

DATASET                          resolved by
Parquet parts of an object       the split names in the file names
a folder of `save_to_disk`       the Arrow files that its state.json names
a local folder                   load_dataset(FOLDER)
other folders, files, globs      load_dataset(READER, data_files=...), with the reader and splits that load_dataset
                                 chooses for a folder with these file names
anything else                    load_dataset(NAME) of the Hub, at a pinned revision
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
from pipelines.prepare.sources.resolve import data_files, hub, library, reader_options, saved_datasets, trust
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.sources.resolve.library import SourceListing
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

# Files that may be left unused without a warning.
_BESIDE = {*trust.CARDS, "LICENSE", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}
_EVALUATED = r"(?<![A-Za-z])(TEST|VALID|VALIDATION|VAL|DEV|EVAL)(?![A-Za-z])|^(Test|Valid|Validation|Dev|Eval)(?![a-z])"
_SPLIT_WORD = r"(?i)(?<![A-Za-z])(train|training|test|testing|validation|valid|val|dev|eval)(?![A-Za-z])"
# Text files below this average size are probably documents.
_DOCUMENT_BYTES = 1_000_000

_log = logging.getLogger(__name__)


def resolve(config: SourceConfig) -> SourceListing:
    """Find the splits of DATASET, and their files. Raises: ConfigError for wrong options; SourceError."""
    reader_options.require_options(config)
    if not config.object_splits:
        paths.require_dataset(config.dataset, *config.more_paths)
        reader_options.require_reader(config.format)
        for path in (config.dataset, *config.more_paths):
            if "::" in (real := os.path.realpath(path)) and os.path.exists(real):
                cause = f"{real}: its name has '::', which joins addresses in `datasets`"
                raise SourceError(cause, remedy="rename this file or folder")
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
        cause = f"{where}: --revision is for datasets on the Hub, but DATASET names files"
        raise SourceError(cause, remedy="leave --revision out")
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
    by_path: dict[str, DataFile] = {}
    card = None
    for name in (config.dataset, *config.more_paths):
        if is_folder := data_files.is_folder(name):
            card = None if config.more_paths else name
        files = data_files.list_folder(name)[0] if is_folder else data_files.list_files(name)
        by_path.update({file.path: file for file in files})
    return _of_listed([by_path[path] for path in sorted(by_path)], config, card=card)


def _of_listed(files: Sequence[DataFile], config: SourceConfig, *, card: str | None) -> SourceListing:
    where = without_access(config.dataset)
    if not files:
        raise SourceError(f"{where}: no files, expected a dataset", remedy="check the path")
    shown = [without_access(file.path) for file in files]
    common = paths.common_folder(shown)
    inner = [path[len(common) :].lstrip("/") for path in shown]
    # `datasets` would leave out hidden files.
    visible = [re.sub(r"(?<![^/])(\.+|__(?=.*/))(?=.)", "", path) for path in inner]
    plain = [path if name in inner else name for path, name in zip(inner, visible, strict=True)]
    below = dict(zip(plain, files, strict=True))
    if len(below) < len(files):
        twice = next(path for path, name in zip(shown, plain, strict=True) if plain.count(name) > 1)
        cause = f"{twice}: this file is given twice, with different queries after the '?'"
        raise SourceError(cause, remedy="give each file once")
    # Show `datasets` only these files.
    with _mirror(below, card=card) as folder:
        of_mirror = _open_folder(folder, config, where=where)
        links = library.splits_of(of_mirror)
        splits = {split: [below[os.path.relpath(path, folder)].path for path in links[split]] for split in links}
        builder = library.with_files(of_mirror, splits)
    for name in filter(None, map(storage.local_path, (config.dataset, *config.more_paths))):
        if os.path.isfile(name):
            continue  # a link that the user names is followed
        folder = name if os.path.isdir(name) else os.path.dirname(re.split(r"[*?[]", name)[0]) or "."
        root = f"{os.path.abspath(folder)}/"
        inside = {split: [path for path in used if path.startswith(root)] for split, used in splits.items()}
        trust.require_inside(inside, root=folder, where=where)
    return _of_builder(builder, config, where=where, files=files)


@contextlib.contextmanager
def _mirror(files: Mapping[str, DataFile], *, card: str | None) -> Iterator[str]:
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
    used = {path.rpartition("::")[2] for in_split in splits.values() for path in in_split}
    if builder.name == "harbor" and not any(path.endswith(("/task.toml", "/instruction.md")) for path in used):
        raise SourceError(
            f"{where}: Markdown files, which `datasets` reads as text only with --format text",
            remedy="add --format text --sample-by document for one row per file, or --format text for one row per line",
        )
    used |= set(map(os.path.realpath, used))  # `datasets` follows links in the path of a folder
    left = [file.name for file in files if not used & {file.path, os.path.realpath(file.path)}]
    if unused := sorted(name for name in left if name not in _BESIDE and not name.endswith((".py", ".ipynb", ".sh"))):
        _log.warning("%s: not used: %s", where, listing(unused))
    names = [posixpath.basename(without_access(path)) for path in splits.get("train", ())]
    if odd := [name for name in names if re.search(_EVALUATED, name)]:
        reason = "is in split train, since `datasets` knows split names only in lower case; rename the file"
        _log.warning("%s: %s %s", where, odd[0], reason)
    _warn_of_joined_splits(splits, where=where)
    pairs = sorted({part for file in files for part in file.name.split("/")[:-1] if "=" in part})
    if pairs and not config.data_files:
        hint = "add --data-files SPLIT=PATTERN to make splits of them"
        _log.warning("%s: the folders %s become neither splits nor a column; %s", where, listing(pairs), hint)
    size = sum(file.size for file in files if file.path in used)
    if builder.name == "text" and not config.sample_by and len(used) > 1 and size < len(used) * _DOCUMENT_BYTES:
        hint = "add --sample-by document for one row per file"
        _log.warning("%s: each line of %s text files becomes a row; %s", where, f"{len(used):,}", hint)
    return _listing({None: builder}, config, where=where, files=files)


def _warn_of_joined_splits(splits: Mapping[str, Sequence[str]], *, where: str) -> None:
    in_splits: dict[str, list[str]] = {}
    for split, in_split in splits.items():
        for path in dict.fromkeys(inner.rpartition("::")[2] for inner in in_split):
            in_splits.setdefault(path, []).append(split)
    for path, names in in_splits.items():
        shown, joined = posixpath.basename(without_access(path)), " and in ".join(names)
        members = library.members(path)
        if len({word[0].lower() for name in members if (word := re.search(_SPLIT_WORD, name))}) > 1:
            remedy = "unpack it to make a split of each"
            _log.warning("%s: %s holds %s, all in %s; %s", where, shown, listing(members), joined, remedy)
        elif len(names) > 1:
            remedy = "rename it, or name the files of each split with --data-files SPLIT=PATTERN"
            _log.warning("%s: all rows of %s are in %s, because of the file's name; %s", where, shown, joined, remedy)


def _of_saved(config: SourceConfig, *, where: str) -> SourceListing:
    if config.config:
        cause = f"{where}: --config chooses a configuration of a dataset card, but this folder has no card"
        raise SourceError(cause, remedy="leave --config out")
    splits, builders = dict[str, list[str]](), dict[str | None, Any]()
    for name, (files, features) in saved_datasets.read(config.dataset).items():
        splits[name] = files
        builders[name] = library.open_builder("arrow", data_files=library.listed({"train": files}), features=features)
    root = storage.local_path(config.dataset) or config.dataset.rstrip("/")
    trust.require_inside(splits, root=root, where=where)
    name_of: Any = lambda path: without_access(path).removeprefix(f"{without_access(root)}/")  # noqa: E731
    return _listing(builders, config, kind="save_to_disk", splits=splits, where=where, name_of=name_of)


def _of_object(config: SourceConfig) -> SourceListing:
    files = data_files.list_folder(config.dataset)[0] if os.path.isdir(config.dataset) else []
    splits = {
        split: [file.path for file in files if re.fullmatch(rf"{re.escape(split)}-\d+-of-\d+\.\w+", file.name)]
        for split in config.object_splits
    }
    if not all(splits.values()):
        raise SourceError(
            f"the dataset was made from an object in Python, but its rows are not kept at {config.dataset}",
            remedy="save the object with save_to_disk, and name that folder with --source",
        )
    builder = library.open_builder("parquet", data_files=library.listed(splits))
    return _listing({None: builder}, config, where="the object", files=files, described={"kind": "object"})


def _of_hub(config: SourceConfig) -> SourceListing:
    dataset = hub.repository(config.dataset, revision=config.revision)
    options = reader_options.arguments(config)
    if dataset.folder is not None:
        builder = _open_folder(dataset.folder, config, where=dataset.name)
    elif config.format:
        patterns = options.get("data_files") or {"train": ["**"]}
        options["data_files"] = {split: [f"{dataset.root}/{name}" for name in patterns[split]] for split in patterns}
        builder = library.open_builder(config.format, **options)
    else:
        trust.require_modest_cards(dataset.root, where=dataset.name)
        builder = library.open_builder(dataset.name, name=config.config, revision=dataset.commit, **options)
    trust.require_inside(library.splits_of(builder), root=dataset.folder or dataset.root, where=dataset.name)
    return _listing(
        {None: builder},
        config,
        where=dataset.name,
        name_of=dataset.name_of,
        described={"kind": "hub", "name": dataset.name, "config": config.config, "revision": dataset.commit},
        needs_token=dataset.needs_token,
    )


def _of_hub_files(config: SourceConfig) -> SourceListing:
    if config.more_paths:
        cause = f"{config.dataset}: an address on the Hub cannot be combined with other paths"
        raise SourceError(cause, remedy="name one folder or one glob of a dataset on the Hub")
    address, repository = hub.pin(config.dataset, revision=config.revision)
    source = _of_files(dataclasses.replace(config, dataset=address))
    return dataclasses.replace(source, needs_token=repository.needs_token)


def _listing(
    builders: Mapping[str | None, Any],
    config: SourceConfig,
    *,
    where: str,
    kind: str = "",
    splits: Mapping[str, Sequence[str]] | None = None,
    files: Sequence[DataFile] = (),
    name_of: Callable[[str], str] = lambda path: posixpath.basename(without_access(path)),
    described: Mapping[str, Any] | None = None,
    needs_token: bool = False,
) -> SourceListing:
    splits = library.splits_of(builders[None]) if splits is None else splits
    library.require_split_names(splits, where=where)
    in_splits = {split: [path.rpartition("::")[2] for path in inner] for split, inner in splits.items()}
    used = list(dict.fromkeys(path for in_split in in_splits.values() for path in in_split))
    listed = {file.path: file for file in files}
    if odd := next((path for path in used if "//" in path.partition("://")[2]), None):
        cause = f"{without_access(odd)}: '//' in its name, which `datasets` reads as '/'"
        raise SourceError(cause, remedy="copy the file to a name without '//'")
    known = (listed.get(path) or data_files.describe(path) for path in used)
    named = [dataclasses.replace(file, name=name_of(file.path)) for file in known]
    by_path = dict(zip(used, data_files.identify(named), strict=True))
    builders = {split: library.with_own_default(library.with_members(builder)) for split, builder in builders.items()}
    is_asked = any(option.startswith(f"{library.AGENT_TRACES}=") for option in config.source_options)
    for builder in builders.values():
        if builder.name == "json" and not is_asked:
            builder.config.parse_agent_traces = False
    described = dict(described or {})
    resolved = reader_options.resolved(config, builders.get(None), named, is_pinned="revision" in described)
    return SourceListing(
        kind=kind or builders[None].name,
        splits={split: [by_path[path] for path in in_split] for split, in_split in in_splits.items()},
        described={**described, **reader_options.described(config), **resolved},
        builders=builders,
        needs_token=needs_token,
    )
