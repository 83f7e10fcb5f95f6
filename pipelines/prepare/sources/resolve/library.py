"""Call `datasets` without side effects: no download counter, log, progress bars or import of torch."""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import posixpath
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipelines.prepare.options.source_config import SPLIT_NAME
from pipelines.prepare.options.suggestions import to_utf8
from pipelines.prepare.runners import here
from pipelines.prepare.runners.child import WorkerDiedError
from pipelines.prepare.sources.resolve import data_files, json_values
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.sources.resolve.features import without_views
from tfrecord_io.errors import PrepError, SourceError
from tfrecord_io.shown import first_line, without_access

_ROWS = 1000
_CUT = 16
_SMALL_BYTES = 16_000_000
# For more files, the manifest holds one digest.
_MOST_NAMED = 1_000
CORRECT = "correct the file or leave it out; if files have different types, convert them to the same types"
_LATE = r"Couldn't cast|JSON parse error: Column\(.*\) changed from|Float value .* was truncated"
_NO_ROWS = ("no rows, expected at least one", "check the content of the files")
TARS = (".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tgz")

# Warning of pandas when it drops cells of rows longer than the header.
_LONG_ROWS = "Length of header or names does not match length of data"
# Option of a reader, its default in `datasets`, and our value. The defaults keep byte order marks in texts; take the
# first cells for row names if rows end with a delimiter; and put texts in quotes if numbers follow later.
_OURS: Mapping[str, tuple[str, Any, Any]] = {
    "text": ("encoding", "utf-8", "utf-8-sig"),
    "csv": ("index_col", None, False),
    "json": ("on_mixed_types", "use_json", None),
}

# The JSON reader would replace the columns of files that look like traces of an agent.
AGENT_TRACES = "parse_agent_traces"

# Registered on import, so that every process can read streams from others.
fsspec.register_implementation("lines", f"{__package__}.line_ranges.LineRanges", clobber=True)

# The settings of `datasets` are process-wide, and the first use of a reader patches its module.
_lock = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[Any]:
    """Yield the module `datasets` with its output and counters turned off, to one thread at a time."""
    import datasets
    from huggingface_hub.utils import logging as hub_logging

    settings = {"HF_UPDATE_DOWNLOAD_COUNTS": False}
    if "torch" not in sys.modules:  # each stream would import it to become a torch dataset
        settings["TORCH_AVAILABLE"] = False
    with _lock, contextlib.ExitStack() as restored:
        config = vars(datasets.config)
        restored.callback(config.update, {name: config[name] for name in settings})
        config.update(settings)
        for log in (datasets.logging, hub_logging):  # hub_logging reports README.md files without a card
            restored.callback(log.set_verbosity, log.get_verbosity())
            log.set_verbosity(datasets.logging.CRITICAL)
        if not datasets.are_progress_bars_disabled():
            restored.callback(datasets.enable_progress_bars)
            datasets.disable_progress_bars()
        restored.enter_context(json_values.as_written())
        restored.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("error", f"{_LONG_ROWS}.*", Warning)
        yield datasets


def open_builder(path: str, **options: Any) -> Any:
    """Return the builder from `load_dataset_builder`, which leaves no files."""
    with quiet() as datasets, contextlib.ExitStack() as restored, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from readers that a later release will drop
        # `datasets` lists a folder for each of its 66 patterns: 1.3 ms of CPU time per file, or 0.5 ms with a cache.
        restored.callback(setattr, LocalFileSystem, "find", LocalFileSystem.find)
        LocalFileSystem.find = functools.cache(LocalFileSystem.find)
        with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as cache:
            return datasets.load_dataset_builder(path, cache_dir=cache, **options)


def listed(splits: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the argument `data_files` of `load_dataset` for existing paths, which it then doesn't check."""
    from datasets.data_files import DataFilesList

    return {split: DataFilesList(list(paths), [()] * len(paths)) for split, paths in splits.items()}


def splits_of(builder: Any) -> dict[str, list[str]]:
    """Return a builder's files by split."""
    return {str(split): list(paths) for split, paths in (builder.config.data_files or {}).items()}


def with_files(builder: Any, splits: Mapping[str, Sequence[str]], *, features: Any = None) -> Any:
    """Return a copy of a builder that reads the paths in `splits`, by default with the same features."""
    features = features or builder.info.features
    options = options_of(builder.config)
    return with_own_default(open_builder(builder.name, data_files=listed(splits), features=features, **options))


def with_members(builder: Any) -> Any:
    """Return a builder that reads the members of tar archives, which `datasets` doesn't unpack in streams.

    A builder with options is always opened again, because `datasets` ignores options such as `delimiter` for folders.
    Raises: OSError, tarfile.TarError, SourceError.
    """
    files = members = splits_of(builder)
    if builder.name != "webdataset":
        members = {split: [inner for path in paths for inner in _members(path)] for split, paths in files.items()}
    return builder if members == files and not options_of(builder.config) else with_files(builder, members)


def members(path: str) -> list[str]:
    """Return the names of the files in a zip or tar archive; [] for another file. Raises: like `with_members`."""
    if path.endswith(".zip"):
        return sorted(fsspec.core.url_to_fs(f"zip://::{path}")[0].find(""))
    return [inner.partition("::")[0].removeprefix("tar://") for inner in _members(path) if inner != path]


def _members(path: str) -> list[str]:
    if not path.endswith(TARS):
        return [path]
    # fsspec doesn't infer the compression of this extension.
    archive = f"gzip://{posixpath.basename(path)[:-4]}::{path}" if path.endswith(".tgz") else path
    opened, _ = fsspec.core.url_to_fs(f"tar://::{archive}")
    names = opened.find("")
    if odd := [name for name in names if "::" in name or "://" in name or name.startswith("./")]:
        raise SourceError(
            f"{without_access(path)}: the archive has a file {odd[0]!r}, expected names such as 'folder/0.csv'",
            remedy="unpack the archive, and name its folder as DATASET",
        )
    paths = [name.split("/") for name in names]
    visible = [parts for parts in paths if not any(part.startswith((".", "__")) for part in parts)]
    # In a folder, files come before subfolders.
    ordered = sorted(visible, key=lambda parts: [*((1, part) for part in parts[:-1]), (0, parts[-1])])
    return [f"tar://{'/'.join(parts)}::{archive}" for parts in ordered]


def options_of(config: Any) -> dict[str, Any]:
    """Return the options in `config`, a builder's configuration, that differ from the reader's defaults."""
    default = type(config)()
    fixed = {"name", "version", "data_dir", "data_files", "description", "features"}
    names = [field.name for field in dataclasses.fields(config) if field.name not in fixed]
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(default, name)}


def with_own_default(builder: Any) -> Any:
    """Replace an unsuitable default of a reader (`_OURS`), unless JSON has unknown types; return the builder."""
    option, default, ours = _OURS.get(builder.name, ("", None, None))
    is_untyped = builder.name == "json" and builder.info.features is None
    if option and not is_untyped and getattr(builder.config, option) == default:
        setattr(builder.config, option, ours)
    return builder


def explicit_options(builder: Any) -> dict[str, Any]:
    """Return a builder's options that the user or a dataset card has set."""
    option, _, ours = _OURS.get(builder.name, ("", None, None))
    of_build = [(option, ours), (AGENT_TRACES, False)]
    return {name: value for name, value in options_of(builder.config).items() if (name, value) not in of_build}


class LateKeysError(SourceError):
    """Rows of JSON have keys or types that do not occur in the first rows."""


@contextlib.contextmanager
def reading(where: Callable[[], str], *, remedy: str = CORRECT, reader: str = "") -> Iterator[None]:
    """Within the context, turn a reader's errors into SourceError. `where` returns the place for the message."""
    try:
        yield
    except PrepError:
        raise
    except Exception as error:  # each reader has its own errors
        is_late = re.match(_LATE, str(error), re.DOTALL)
        cause, remedy = _late_keys(error, remedy) if is_late else _explained(error, remedy, reader)
        raise (LateKeysError if is_late else SourceError)(f"{where()}: {cause}", remedy=remedy) from error


def _explained(error: Exception, remedy: str, reader: str) -> tuple[str, str]:
    smaller = "write it again with row_group_size=10" if reader == "parquet" else "convert it to Parquet"
    if isinstance(error, UnicodeDecodeError):
        odd = error.object[error.start : error.start + 8]
        return f"cannot be read: not UTF-8, {error.reason} at {odd!r}", to_utf8(error.object)
    if isinstance(error, WorkerDiedError):
        reason = "the file is damaged, nested too deeply, or needs too much memory"
        return f"the process that read this file {error.how}", f"leave the file out, or {smaller}; {reason}"
    if isinstance(error, MemoryError):
        cause = "cannot be read: this needs more than half of the machine's memory"
        return cause, f"divide the file's rows among several files, {smaller}, or use a machine with more memory"
    if isinstance(error, StopIteration):
        return _NO_ROWS
    if isinstance(error, ImportError):  # readers import some packages late
        return f"cannot be read: {first_line(error)}", "install this package with pip, and run the same command again"
    if str(error).startswith(_LONG_ROWS):
        add = "add names to the header, or add --source-option index_col=0 to omit the first cell of each row"
        return "rows have more cells than the header has names", add
    if uneven := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
        expected, line, num_cells = map(int, uneven.groups())
        return (
            f"line {line:,} has {num_cells} cells, expected {expected} as in the lines before it",
            "remove delimiters from the ends of rows, and put quotes around cells that contain a delimiter",
        )
    return f"cannot be read: {first_line(error)}", remedy


def _late_keys(error: Exception, remedy: str) -> tuple[str, str]:
    names = set(getattr(error, "table_column_names", ())) - set(getattr(error, "requested_column_names", ()))
    late = f"column {', '.join(map(repr, sorted(names)))}" if names else " ".join(str(error).split())[:200]
    first = "give every key a value in the first row of the first file, or leave the key out of later files; "
    return f"the first rows do not have all keys or types: {late}", first * bool(names) + remedy


def no_rows(where: str) -> SourceError:
    return SourceError(f"{where}: {_NO_ROWS[0]}", remedy=_NO_ROWS[1])


def require_split_names(names: Iterable[str], *, where: str) -> None:
    """Raise SourceError unless split names can be parts of file names."""
    if odd := next((name for name in names if not SPLIT_NAME.match(name)), None):
        raise SourceError(
            f"{where}: split {odd!r}, expected a name of letters, digits, '_' or '.', because file names contain it",
            remedy="rename the split in the source",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceListing:
    """Files of each split, in the order of `datasets`.

    `kind`: `save_to_disk`, or the files' reader in `datasets`, such as `json`. `described`: further entries of
    `identity`. `builders`: one for all splits under the key None, or one by split.
    """

    kind: str
    splits: Mapping[str, Sequence[DataFile]]
    described: Mapping[str, Any]
    builders: Mapping[str | None, Any]
    needs_token: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """The source's entry in fingerprint and manifest, without paths and secrets."""
        if self.described.get("kind") == "hub":  # the revision identifies the files
            return dict(self.described)
        entries: Any = self.entries
        if len(entries) > _MOST_NAMED:
            digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
            entries = {"count": len(entries), "bytes": sum(file["bytes"] for file in entries), "sha256": digest}
        return {"kind": self.kind, "files": entries, **self.described}

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [{**file.entry, "split": split} for split, files in self.splits.items() for file in files]

    def with_first(self, entries: Sequence[Mapping[str, Any]]) -> "SourceListing":
        """Return the listing with each split's files reordered: first those in `entries`, then all others."""
        splits = {
            name: data_files.with_first(files, [entry for entry in entries if entry["split"] == name])
            for name, files in self.splits.items()
        }
        builder = self.builders.get(None)
        if builder is None or all(splits[name] == list(files) for name, files in self.splits.items()):
            return self
        of_file: dict[str, dict[str, list[str]]] = {name: collections.defaultdict(list) for name in splits}
        for name, inner in splits_of(builder).items():
            for path in inner:  # an archive has one path per member
                of_file[name][path.rpartition("::")[2]].append(path)
        paths = {name: [path for file in files for path in of_file[name][file.path]] for name, files in splits.items()}
        return dataclasses.replace(self, splits=splits, builders={None: with_files(builder, paths)})

    @property
    def batch_rows(self) -> int:
        """Rows per read: 1 if a generator reads them, because `datasets` infers types for each batch."""
        import datasets

        is_generated = any(isinstance(builder, datasets.GeneratorBasedBuilder) for builder in self.builders.values())
        return 1 if is_generated else _ROWS

    def features_of(self, split: str) -> Any | None:
        """Return the features that a dataset card declares for a split, or None."""
        return self.builders[split if split in self.builders else None].info.features

    @functools.cached_property
    def streams(self) -> dict[str, Any]:
        """IterableDataset of each split. Missing features are inferred from the first rows, in a child process."""
        return in_child(_open, self.builders)


def in_child(function: Callable[..., Any], builders: Mapping[str | None, Any]) -> Any:
    """Call `function` with `builders`, in a child process if the reader may crash and a child can see the files."""
    files = [path for builder in builders.values() for paths in splits_of(builder).values() for path in paths]
    reader = next(iter(builders.values())).name
    is_safe = reader == "parquet" or are_small_texts(reader, files)
    if is_seen_by_others(files) and not is_safe:
        return here.call(function, builders)
    return function(builders)


def _open(builders: Mapping[str | None, Any]) -> dict[str, Any]:
    def opened() -> dict[str, Any]:
        by_builder = {split: builder.as_streaming_dataset() for split, builder in builders.items()}
        return {str(split or name): stream for split, streams in by_builder.items() for name, stream in streams.items()}

    with quiet():
        streams = opened()
        first = None if all(stream.features for stream in streams.values()) else features_of_rows(streams)
        for builder in builders.values():
            if builder.name == "json" and first is not None:  # rows are in an array; later files get the same types
                builder.info.features = first
                streams = opened()
            with_own_default(builder)
        for name, stream in streams.items():
            features = without_views(stream.features or first)
            streams[name] = stream if stream.features == features else stream.cast(features)
        return streams


def is_seen_by_others(paths: Iterable[str]) -> bool:
    """Return whether other processes of this machine can read all paths: they are local or on the Hub."""
    files = (path.rpartition("::")[2] for path in paths)
    return all("://" not in file or file.startswith("hf://") for file in files)


def are_small_texts(reader: str, paths: Sequence[str]) -> bool:
    """Return whether all files are plain texts, so small that a child process isn't worth starting."""
    is_plain = reader == "text" and all(path.endswith(".txt") and "://" not in path for path in paths)
    return is_plain and sum(map(os.path.getsize, paths)) < _SMALL_BYTES


def shards_of(dataset: Any) -> Iterator[Any]:
    """Yield an IterableDataset's shards in order. Division is recursive, because taking one shard of n costs O(n)."""
    count = min(dataset.num_shards, _CUT)
    if count <= 1:
        yield dataset
        return
    for index in range(count):
        yield from shards_of(dataset.shard(num_shards=count, index=index))


def features_of_rows(splits: Mapping[str, Any]) -> Any:
    """Return the features of the first rows of the IterableDatasets in `splits`. Raises: SourceError without rows."""
    import datasets

    # By shard, because a stream would read further files to fill a batch.
    shards = (shard for dataset in splits.values() for shard in shards_of(dataset.with_format("arrow")))
    tables = (next(shard.iter(_ROWS), None) for shard in shards)
    first = next((table for table in tables if table is not None), None)
    if first is None:
        raise no_rows(", ".join(splits))
    return datasets.Features.from_arrow_schema(first.schema)
