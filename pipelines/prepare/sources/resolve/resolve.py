"""Resolving DATASET to splits and files by `datasets`, before rows are read. DATASET is one of

    the Parquet parts of an object              those of its splits
    a folder written by `save_to_disk`          the Arrow files that its state.json names
    a local folder                              load_dataset(FOLDER)
    a folder elsewhere, files, globs            load_dataset(READER, data_files=...); reader and splits are those that
                                                load_dataset gives a folder with files of these names
    anything else                               load_dataset(NAME) of the hub; its revision is resolved once, and pinned

With --format, --data-files and --source-option these calls get a reader, `data_files` and further options.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import logging
import os
import posixpath
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.options import paths
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.source_config import SPLIT_NAME
from pipelines.prepare.sources.resolve import hub, library, listing, reader_options, saved_datasets, trust
from pipelines.prepare.sources.resolve.data_files import DataFile, SourceListing
from pipelines.prepare.sources.resolve.library import Stream
from pipelines.prepare.sources.resolve.reader_options import as_source_error
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import without_access

__all__ = ["resolve"]

_NAMED = 5
# Files beside the data that nobody expects to be rows; nor is a program.
_BESIDE = frozenset(
    {*trust.CARDS, "LICENSE", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}
)
_EVALUATED = re.compile(
    r"(?<![A-Za-z])(TEST|VALID|VALIDATION|VAL|DEV|EVAL)(?![A-Za-z])|^(Test|Valid|Validation|Dev|Eval)(?![a-z])"
)

_log = logging.getLogger(__name__)


def resolve(config: SourceConfig) -> SourceListing:
    """Return the splits of the dataset, and the files of each with their versions.

    Raises: SourceError if it does not exist, cannot be listed, or `datasets` cannot read it.
    """
    if config.object_splits:
        return _of_object(config)
    paths.require_dataset(config.dataset, *config.more_paths)
    reader_options.require_reader(config.format)
    if not config.more_paths and hub.is_repository(config.dataset):
        return _of_hub(config)
    if any(name.startswith("hf://") for name in (config.dataset, *config.more_paths)):
        return _of_hub_files(config)
    if config.revision:
        raise _chooses_nothing(config, "--revision is for hub datasets, but these are files", "--revision")
    if not config.more_paths and saved_datasets.is_saved(config.dataset):
        return _of_saved(config)
    if not config.more_paths and (folder := storage.local_path(config.dataset)) and os.path.isdir(folder):
        return _of_folder(os.path.abspath(folder), config)
    return _of_files(config)


def _of_folder(folder: str, config: SourceConfig) -> SourceListing:
    files = listing.list_folder(folder)
    if not files:
        raise SourceError(f"{folder}: no files, expected a dataset", remedy="check the path")
    if listing.has_outputs(folder) or glob.has_magic(folder):
        return _of_listed(list(files.values()), config, card=folder)
    with as_source_error(config):
        builder = _open_folder(folder, config, where=folder)
    trust.require_inside(_splits_of(builder), root=folder, where=folder)
    return _listing(builder, config, where=folder, files={each.path: each for each in files.values()}, folder=folder)


def _open_folder(folder: str, config: SourceConfig, *, where: str) -> Any:
    """Open a local folder by the reader that the user named, or else by its card and the names of its files."""
    options = reader_options.arguments(config)
    if config.format:
        return library.open_builder(config.format, data_dir=folder, name=config.config, **options)
    trust.require_modest_cards(folder, where=where)
    return library.open_builder(folder, name=config.config, **options)


def _of_files(config: SourceConfig) -> SourceListing:
    """List files named by any number of paths, each file once."""
    found: dict[str, DataFile] = {}
    card = None
    for name in (config.dataset, *config.more_paths):
        if listing.is_folder(name):
            card = None if config.more_paths else name
            found.update({each.path: each for each in listing.list_folder(name).values()})
        else:
            found.update({each.path: each for each in listing.list_files(name)})
    if not found:
        raise SourceError(f"{without_access(config.dataset)}: no files, expected a dataset", remedy="check the path")
    return _of_listed(sorted(found.values(), key=lambda each: each.path), config, card=card)


def _of_listed(files: Sequence[DataFile], config: SourceConfig, *, card: str | None) -> SourceListing:
    """Resolve these files as if they were all that is in their common folder; `card` is a folder that may have one."""
    shown = [without_access(each.path) for each in files]
    common = paths.common_folder(shown)
    below = {path[len(common) :].lstrip("/"): each for path, each in zip(shown, files, strict=True)}
    if len(below) < len(files):
        twice = next(path for path in shown if shown.count(path) > 1)
        raise SourceError(f"{twice}: named twice, with different queries", remedy="name each file once")
    where = without_access(config.dataset)
    with as_source_error(config), _mirror(below, card=card) as folder:
        found = _open_folder(folder, config, where=where)
        splits = {
            split: [below[os.path.relpath(path, folder)].path for path in some]
            for split, some in _splits_of(found).items()
        }
        builder = library.open_builder(
            found.name,
            data_files=library.listed(splits),
            features=found.info.features,
            **library.options_of(found.config),
        )
    return _listing(builder, config, where=where, files={each.path: each for each in files}, folder=None)


@contextlib.contextmanager
def _mirror(files: Mapping[str, DataFile], *, card: str | None) -> Iterator[str]:
    """Make a folder with links to local files, and empty files in place of remote ones, by which names are judged."""
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
        for name, file in files.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if "://" in file.path:
                open(path, "wb").close()
            else:
                os.symlink(file.path, path)
        for name in trust.CARDS if card else ():
            with contextlib.suppress(FileNotFoundError), storage.as_source_error(str(card)):
                content = storage.read_bytes(storage.join(str(card), name), most_bytes=trust.MOST_CARD_BYTES)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, name))
                with open(os.path.join(folder, name), "wb") as stream:
                    stream.write(content)
        yield folder


def _of_saved(config: SourceConfig) -> SourceListing:
    if config.config:
        raise _chooses_nothing(config, "--config chooses among those of a dataset card, but this has none", "--config")
    where = without_access(config.dataset)
    saved = saved_datasets.read(config.dataset)
    with as_source_error(config):
        builders: dict[str | None, Any] = {
            name: library.open_builder("arrow", data_files=library.listed({"train": some}), features=features)
            for name, (some, features) in saved.items()
        }
    splits = {name: some for name, (some, _) in saved.items()}
    files = {
        path: listing.describe(path, name=_below(path, config.dataset)) for some in splits.values() for path in some
    }
    return _source(splits, files, config, kind="save_to_disk", stream=Stream(builders=builders), where=where)


def _of_object(config: SourceConfig) -> SourceListing:
    """List the parts of an object that the user gave in Python (see `ingest.objects`)."""
    there = os.path.isdir(config.dataset)
    files = {each.path: each for each in listing.list_folder(config.dataset).values()} if there else {}
    splits = {
        split: [path for path, each in files.items() if re.fullmatch(rf"{re.escape(split)}-\d+-of-\d+\.\w+", each.name)]
        for split in config.object_splits
    }
    if not all(splits.values()):
        raise SourceError(
            f"the dataset was made from an object in Python, whose rows are not kept at {config.dataset}",
            remedy="save the object with save_to_disk, and name that folder with --source",
        )
    with as_source_error(config):
        stream = Stream(builders={None: library.open_builder("parquet", data_files=library.listed(splits))})
    found = _source(splits, files, config, kind="parquet", stream=stream, where="the object")
    return dataclasses.replace(found, described={**found.described, "kind": "object"})


def _of_hub(config: SourceConfig) -> SourceListing:
    repository = hub.repository(config.dataset, revision=config.revision)
    options = reader_options.arguments(config)
    with as_source_error(config):
        if repository.folder is not None or not config.format:
            trust.require_modest_cards(repository.folder or repository.root, where=repository.name)
        if repository.folder is not None:
            builder = library.open_builder(repository.folder, name=config.config, **options)
        elif config.format:
            patterns = options.get("data_files") or {"train": ["**"]}
            options["data_files"] = {
                split: [f"{repository.root}/{each}" for each in some] for split, some in patterns.items()
            }
            builder = library.open_builder(config.format, **options)
        else:
            builder = library.open_builder(repository.name, name=config.config, revision=repository.commit, **options)
    splits = _splits_of(builder)
    trust.require_inside(splits, root=repository.folder or repository.root, where=repository.name)
    files = {
        path: listing.describe(path, name=repository.name_of(path))
        for path in dict.fromkeys(path for some in splits.values() for path in some)
    }
    with as_source_error(config):
        stream = Stream(builders={None: library.with_members(builder)})
    found = _source(splits, files, config, kind=builder.name, stream=stream, where=repository.name)
    described = {"kind": "hub", "name": repository.name, "config": config.config, "revision": repository.commit}
    return dataclasses.replace(found, described={**described, **found.described}, needs_token=repository.needs_token)


def _of_hub_files(config: SourceConfig) -> SourceListing:
    """List files in a dataset of the hub, at one commit."""
    if config.more_paths:
        raise SourceError(
            f"{config.dataset}: an address of the hub with other paths, expected it alone",
            remedy="name one folder or one glob of a dataset of the hub",
        )
    address, repository = hub.pin(config.dataset, revision=config.revision)
    found = _of_files(dataclasses.replace(config, dataset=address))
    return dataclasses.replace(found, needs_token=repository.needs_token)


def _listing(
    builder: Any, config: SourceConfig, *, where: str, files: Mapping[str, DataFile], folder: str | None
) -> SourceListing:
    splits = _splits_of(builder)
    used = {path.rpartition("::")[2] for some in splits.values() for path in some}
    if builder.name == "harbor" and not any(path.endswith(("/task.toml", "/instruction.md")) for path in used):
        raise SourceError(
            f"{where}: Markdown files, which `datasets` reads as text only where it is told to",
            remedy="add --format text --sample-by document for a row of each file, --format text for one of each line",
        )
    _tell_oddities(files, used, splits, where=where)
    described = {path: files.get(path) or listing.describe(path, name=_below(path, folder)) for path in used}
    named = {path: dataclasses.replace(each, name=posixpath.basename(each.name)) for path, each in described.items()}
    with as_source_error(config):
        stream = Stream(builders={None: library.with_members(builder)})
    return _source(splits, named, config, kind=builder.name, stream=stream, where=where)


def _source(
    splits: Mapping[str, Sequence[str]],
    files: Mapping[str, DataFile],
    config: SourceConfig,
    *,
    kind: str,
    stream: Stream,
    where: str,
) -> SourceListing:
    if odd := next((split for split in splits if not SPLIT_NAME.match(split)), None):
        raise SourceError(
            f"{where}: split {odd!r}, expected letters, digits, '_' or '.', as in a file name",
            remedy="rename the split in the source",
        )
    by_path = dict(zip(files, listing.identify(list(files.values())), strict=True))
    return SourceListing(
        kind=kind,
        splits={split: [by_path[path.rpartition("::")[2]] for path in some] for split, some in splits.items()},
        described=reader_options.described(config),
        stream=stream,
    )


def _splits_of(builder: Any) -> dict[str, list[str]]:
    return {str(split): list(some) for split, some in (builder.config.data_files or {}).items()}


def _tell_oddities(
    files: Mapping[str, DataFile], used: set[str], splits: Mapping[str, Sequence[str]], *, where: str
) -> None:
    """Warn of files that are not used, and of names in capitals that `datasets` takes for training rows."""
    beside = (".py", ".ipynb", ".sh")
    left = [each.name for path, each in files.items() if path not in used and each.name not in _BESIDE]
    unused = sorted(name for name in left if not name.endswith(beside))
    if unused:
        more = f" and {len(unused) - _NAMED:,} more" if len(unused) > _NAMED else ""
        _log.warning("%s: not used: %s%s", where, ", ".join(unused[:_NAMED]), more)
    names = [posixpath.basename(without_access(path)) for path in splits.get("train", ())]
    if odd := [name for name in names if _EVALUATED.search(name)]:
        _log.warning("%s: %s is in split train, since `datasets` knows split names in lower case only", where, odd[0])


def _below(path: str, folder: str | None) -> str:
    root = (storage.local_path(folder) or folder).rstrip("/") if folder else ""
    shown = without_access(path)
    start = os.path.abspath(root) if root and "://" not in root else without_access(root)
    return shown[len(start) :].lstrip("/") if start and shown.startswith(f"{start}/") else posixpath.basename(shown)


def _chooses_nothing(config: SourceConfig, why: str, option: str) -> SourceError:
    return SourceError(f"{without_access(config.dataset)}: {why}", remedy=f"leave {option} out")
