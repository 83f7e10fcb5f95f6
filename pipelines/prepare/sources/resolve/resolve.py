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
import hashlib
import json
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
from pipelines.prepare.options.split_options import SPLIT_NAME
from pipelines.prepare.options.suggestions import suggestion
from pipelines.prepare.sources.resolve import hub, identity, library, listing, saved_datasets, trust
from pipelines.prepare.sources.resolve.data_files import SourceListing
from pipelines.prepare.sources.resolve.library import Stream
from pipelines.prepare.sources.resolve.listing import ListedFile
from tfrecord_io.errors import ConfigError, PrepError, SourceError
from tfrecord_io.shown import first_line, without_access

__all__ = ["resolve"]

# Sources of more files are listed in the manifest by one digest.
_MOST_NAMED = 1_000
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
    _require_reader(config.format)
    if not config.more_paths and hub.is_repository(config.dataset):
        return _of_hub(config)
    if any(name.startswith("hf://") for name in (config.dataset, *config.more_paths)):
        return _of_hub_files(config)
    _refuse_revision(config)
    if not config.more_paths and saved_datasets.is_saved(config.dataset):
        return _of_saved(config)
    if not config.more_paths and (folder := storage.local_path(config.dataset)) and os.path.isdir(folder):
        return _of_folder(os.path.abspath(folder), config)
    return _of_files(config)


def _require_reader(name: str | None) -> None:
    """Refuse a --format that is no reader: `datasets` would take it for a dataset of the hub. Raises: ConfigError."""
    if name is not None and name not in (known := library.reader_names()):
        raise ConfigError(
            f"--format {name}: no such reader, expected one of {', '.join(known)}",
            remedy=f"{suggestion(name, known)}text reads lines, json also JSON lines, csv also TSV by its file name",
        )


def _of_folder(folder: str, config: SourceConfig) -> SourceListing:
    files = listing.list_folder(folder)
    if not files:
        raise SourceError(f"{folder}: no files, expected a dataset", remedy="check the path")
    if listing.has_outputs(folder) or glob.has_magic(folder):
        return _of_listed(list(files.values()), config, card=folder)
    options = _options(config)
    with _as_source_error(config):
        if config.format:
            builder = library.open_builder(config.format, data_dir=folder, name=config.config, **options)
        else:
            trust.require_modest_cards(folder, where=folder)
            builder = library.open_builder(folder, name=config.config, **options)
    return _listing(builder, config, where=folder, files={each.path: each for each in files.values()}, folder=folder)


def _of_files(config: SourceConfig) -> SourceListing:
    """List files named by any number of paths, each file once."""
    found: dict[str, ListedFile] = {}
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


def _of_listed(files: Sequence[ListedFile], config: SourceConfig, *, card: str | None) -> SourceListing:
    """Resolve these files as if they were all that is in their common folder; `card` is a folder that may have one."""
    shown = [without_access(each.path) for each in files]
    common = paths.common_folder(shown)
    below = {path[len(common) :].lstrip("/"): each for path, each in zip(shown, files, strict=True)}
    if len(below) < len(files):
        twice = next(path for path in shown if shown.count(path) > 1)
        raise SourceError(f"{twice}: named twice, with different queries", remedy="name each file once")
    where = without_access(config.dataset)
    with _as_source_error(config), _mirror(below, card=card) as folder:
        if config.format:
            found = library.open_builder(config.format, data_dir=folder, name=config.config, **_options(config))
        else:
            trust.require_modest_cards(folder, where=where)
            found = library.open_builder(folder, name=config.config, **_options(config))
        names = {
            str(split): [os.path.relpath(path, folder) for path in some]
            for split, some in found.config.data_files.items()
        }
        splits = {split: [below[name].path for name in some] for split, some in names.items()}
        builder = library.open_builder(
            found.name,
            data_files=library.listed(splits),
            features=found.info.features,
            **library.options_of(found.config),
        )
    return _listing(builder, config, where=where, files={each.path: each for each in files}, folder=None)


@contextlib.contextmanager
def _mirror(files: Mapping[str, ListedFile], *, card: str | None) -> Iterator[str]:
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
    _refuse_config(config)
    where = without_access(config.dataset)
    saved = saved_datasets.read(config.dataset)
    builders: dict[str | None, Any] = {}
    with _as_source_error(config):
        for name, (some, features) in saved.items():
            builders[name] = library.open_builder(
                "arrow", data_files=library.listed({"train": some}), features=features
            )
    files = {
        path: listing.describe(path, name=_below(path, config.dataset)) for some, _ in saved.values() for path in some
    }
    splits = {name: some for name, (some, _) in saved.items()}
    return _source(splits, files, kind="save_to_disk", stream=Stream(builders=builders), where=where, config=config)


def _of_object(config: SourceConfig) -> SourceListing:
    """List the parts of an object that the user gave in Python (see `ingest.objects`)."""
    if not os.path.isdir(config.dataset):
        raise SourceError(
            f"the dataset was made from an object in Python, whose rows are not kept at {config.dataset}",
            remedy="save the object with save_to_disk, and name that folder with --source",
        )
    files = sorted(listing.list_folder(config.dataset).values(), key=lambda each: each.name)
    splits = {
        split: [each.path for each in files if each.name.rpartition("-of-")[0].rpartition("-")[0] == split]
        for split in config.object_splits
    }
    if not all(splits.values()):
        raise SourceError(
            f"{config.dataset}: not the Parquet parts of an object with the splits {', '.join(splits)}",
            remedy="save the object with save_to_disk, and name that folder",
        )
    with _as_source_error(config):
        builders: dict[str | None, Any] = {
            split: library.open_builder("parquet", data_files=library.listed({"train": some}))
            for split, some in splits.items()
        }
    by_path = {each.path: each for each in files}
    stream = Stream(builders=builders)
    found = _source(splits, by_path, kind="parquet", stream=stream, where="the object", config=config)
    return dataclasses.replace(found, identity={**found.identity, "kind": "object"})


def _of_hub(config: SourceConfig) -> SourceListing:
    repository = hub.repository(config.dataset, revision=config.revision)
    with _as_source_error(config):
        if repository.folder is not None or not config.format:
            trust.require_modest_cards(repository.folder or repository.root, where=repository.name)
        if repository.folder is not None:
            builder = library.open_builder(repository.folder, name=config.config, **_options(config))
        elif config.format:
            builder = library.open_builder(
                config.format, data_files=hub.data_files(repository, _data_files(config)), **_source_options(config)
            )
        else:
            builder = library.open_builder(
                repository.name, name=config.config, revision=repository.commit, **_options(config)
            )
    splits = _splits_of(builder)
    files = {
        path: listing.describe(path, name=repository.name_of(path))
        for path in dict.fromkeys(path for some in splits.values() for path in some)
    }
    trust.require_inside(splits, root=repository.folder or repository.root, where=repository.name)
    with _as_source_error(config):
        stream = Stream(builders={None: library.with_members(builder)})
    found = _source(splits, files, kind=builder.name, stream=stream, where=repository.name, config=config)
    described = {"kind": "hub", "name": repository.name, "config": config.config, "revision": repository.commit}
    return dataclasses.replace(
        found, identity={**described, **_described_options(config)}, needs_token=repository.needs_token
    )


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
    builder: Any, config: SourceConfig, *, where: str, files: Mapping[str, ListedFile], folder: str | None
) -> SourceListing:
    splits = _splits_of(builder)
    if folder is not None:
        trust.require_inside(splits, root=folder, where=where)
    used = {path.rpartition("::")[2] for some in splits.values() for path in some}
    if builder.name == "harbor" and not any(path.endswith(("/task.toml", "/instruction.md")) for path in used):
        raise SourceError(
            f"{where}: Markdown files, which `datasets` reads as text only where it is told to",
            remedy="add --format text --sample-by document for a row of each file, --format text for one of each line",
        )
    _tell_unused(files, used, where=where)
    _tell_capitals(splits, where=where)
    described = {
        path: files[path] if path in files else listing.describe(path, name=_below(path, folder)) for path in used
    }
    named = {path: dataclasses.replace(each, name=posixpath.basename(each.name)) for path, each in described.items()}
    with _as_source_error(config):
        stream = Stream(builders={None: library.with_members(builder)})
    return _source(splits, named, kind=builder.name, stream=stream, where=where, config=config)


def _source(
    splits: Mapping[str, Sequence[str]],
    files: Mapping[str, ListedFile],
    *,
    kind: str,
    stream: Stream,
    where: str,
    config: SourceConfig,
) -> SourceListing:
    for split in splits:
        if not SPLIT_NAME.match(split):
            raise SourceError(
                f"{where}: split {split!r}, expected letters, digits, '_' or '.', as in a file name",
                remedy="rename the split in the source",
            )
    by_path = dict(zip(files, identity.identify(list(files.values())), strict=True))
    found = {split: [by_path[path.rpartition("::")[2]] for path in some] for split, some in splits.items()}
    entries = [{**entry, "split": split} for split, some in found.items() for _, entry in some]
    return SourceListing(
        kind=kind,
        splits={split: [file for file, _ in some] for split, some in found.items()},
        identity={"kind": kind, "files": _entries(entries), **_described_options(config)},
        stream=stream,
        entries=entries,
    )


def _splits_of(builder: Any) -> dict[str, list[str]]:
    return {str(split): list(some) for split, some in (builder.config.data_files or {}).items()}


def _entries(entries: Sequence[Mapping[str, Any]]) -> Any:
    """Return each file's entry, or one digest of very many: the manifest is to stay small."""
    if len(entries) <= _MOST_NAMED:
        return list(entries)
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    return {"count": len(entries), "bytes": sum(entry["bytes"] for entry in entries), "sha256": digest}


def _tell_unused(files: Mapping[str, ListedFile], used: set[str], *, where: str) -> None:
    unused = sorted(each.name for path, each in files.items() if path not in used and _could_be_data(each.name))
    if unused:
        more = f" and {len(unused) - _NAMED:,} more" if len(unused) > _NAMED else ""
        _log.warning("%s: not used: %s%s", where, ", ".join(unused[:_NAMED]), more)


def _could_be_data(name: str) -> bool:
    return name not in _BESIDE and not name.endswith((".py", ".ipynb", ".sh"))


def _tell_capitals(splits: Mapping[str, Sequence[str]], *, where: str) -> None:
    names = [posixpath.basename(without_access(path)) for path in splits.get("train", ())]
    if odd := [name for name in names if _EVALUATED.search(name)]:
        _log.warning("%s: %s is in split train, since `datasets` knows split names in lower case only", where, odd[0])


def _below(path: str, folder: str | None) -> str:
    root = (storage.local_path(folder) or folder).rstrip("/") if folder else ""
    shown = without_access(path)
    start = os.path.abspath(root) if root and "://" not in root else without_access(root)
    return shown[len(start) :].lstrip("/") if start and shown.startswith(f"{start}/") else posixpath.basename(shown)


def _options(config: SourceConfig) -> dict[str, Any]:
    """Return the arguments of `load_dataset` for the options of a source."""
    data_files = _data_files(config)
    return {**({"data_files": data_files} if data_files else {}), **_source_options(config)}


def _data_files(config: SourceConfig) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in config.data_files:
        split, equals, pattern = text.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.\w+)*", split):
            split, pattern = "train", text
        found.setdefault(split, []).append(pattern)
    return found


def _source_options(config: SourceConfig) -> dict[str, Any]:
    values = {key: _value(text) for key, _, text in (each.partition("=") for each in config.source_options)}
    return {**values, **({"sample_by": config.sample_by} if config.sample_by else {})}


def _value(text: str) -> Any:
    r"""Return a value of --source-option: JSON, or else the text itself, with \t as a tab."""
    try:
        return json.loads(text)
    except ValueError:
        return text.replace("\\t", "\t")


def _described_options(config: SourceConfig) -> dict[str, Any]:
    """Return the options for the identity, without those that are not given."""
    options = {key: without_access(value) for key, _, value in (each.partition("=") for each in config.source_options)}
    given = {
        "format": config.format,
        "data_files": list(map(without_access, config.data_files)),
        "options": options,
        "sample_by": config.sample_by,
    }
    return {name: value for name, value in given.items() if value}


@contextlib.contextmanager
def _as_source_error(config: SourceConfig) -> Iterator[None]:
    """Turn errors of `datasets` into errors with a remedy."""
    where = without_access(config.dataset)
    try:
        with hub.as_source_error(where):
            yield
    except PrepError:
        raise
    except (TypeError, ValueError) as error:
        given = [each.partition("=")[0] for each in config.source_options] + ["sample_by"] * bool(config.sample_by)
        if not given:
            raise _refused(error, where) from error
        raise ConfigError(
            f"{where}: its reader does not take these options, or not these values: {', '.join(given)}",
            remedy="see the parameters of the reader in the documentation of `datasets`, under Loading methods",
        ) from error
    except Exception as error:  # resolution of any format, with errors of its own
        raise _refused(error, where) from error


def _refused(error: Exception, where: str) -> SourceError:
    if type(error).__name__ in ("DataFilesNotFoundError", "EmptyDatasetError"):
        return SourceError(
            f"{where}: no file that `datasets` knows a reader for by its name",
            remedy="name the reader by --format; save a spreadsheet as CSV first",
        )
    if "scripts are no longer supported" in str(error):
        return SourceError(
            f"{where}: {first_line(error)}; no code of a dataset is run",
            remedy="name its data files by a glob; for a dataset of the hub give --revision refs/convert/parquet, "
            "where the hub keeps the output of most such scripts",
        )
    reason = first_line(error).partition(" with any supported extension")[0]  # hundreds of them
    return SourceError(
        f"{where}: `datasets` cannot open it ({reason})",
        remedy="name the files by --data-files, and their reader by --format, or choose another --config",
    )


def _refuse_config(config: SourceConfig) -> None:
    if config.config:
        raise SourceError(
            f"{without_access(config.dataset)}: --config chooses among those of a dataset card, but this has none",
            remedy="leave --config out",
        )


def _refuse_revision(config: SourceConfig) -> None:
    if config.revision:
        raise SourceError(
            f"{without_access(config.dataset)}: --revision is for hub datasets, but these are files",
            remedy="leave --revision out",
        )
