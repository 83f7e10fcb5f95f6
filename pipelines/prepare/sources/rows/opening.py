"""Opening a dataset: its splits and columns first, then where its rows are stored.

open_source    splits and files, and the types of their columns, from `datasets` and footers
locate_rows    Parquet row groups of the source's own files; for other formats, and for splits with huge row groups,
               those of the ingested parts, whose missing ones the caller makes, wherever its workers are
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.ingest import parts
from pipelines.prepare.sources.ingest.tasks import IngestSource, IngestTask, SplitStream, folder_of
from pipelines.prepare.sources.parquet import footers, nested
from pipelines.prepare.sources.parquet.footers import Footer
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.resolve import features, library, line_ranges, resolve
from pipelines.prepare.sources.resolve.data_files import DataFile, SourceListing
from pipelines.prepare.sources.resolve.features import Columns
from tfrecord_io.errors import OutputError
from tfrecord_io.shown import without_access

__all__ = ["Ingest", "OpenedSource", "locate_rows", "open_source"]

# Runs ingest tasks, or raises.
Ingest = Callable[[IngestSource, Sequence[IngestTask]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenedSource:
    """A dataset before its rows are located.

    `columns` by split; `footers` of Parquet files by path; `addresses` with credentials by those without; `copies` that
    workers can read, by the path of the file.
    """

    listing: SourceListing
    columns: Mapping[str, Columns]
    footers: Mapping[str, Footer]
    addresses: Mapping[str, str]
    copies: Mapping[str, DataFile] = dataclasses.field(default_factory=dict)

    def types(self, split: str) -> pa.Schema:
        """Return the columns of a split as they are read."""
        return self.columns[split].arrow_schema

    def is_in_place(self, split: str) -> bool:
        """Whether the rows of a split are read from its own files, without ingest."""
        files = self.listing.splits[split]
        return all(file.path in self.footers and footers.is_in_place(self.footers[file.path]) for file in files)

    def streams(self, splits: Collection[str]) -> dict[str, SplitStream]:
        """Return the streams of those splits that must be ingested."""
        return {
            name: self._stream(name) for name in self.listing.splits if name in splits and not self.is_in_place(name)
        }

    def copy_folder(self, home: str) -> str:
        """Return the folder in `home` for the ingested rows."""
        return folder_of(home, self.listing, {name: self.types(name) for name in self.listing.splits})

    def _stream(self, split: str) -> SplitStream:
        files = tuple(self.listing.splits[split])
        dataset = self.listing.stream.splits[split]
        if self.footers:
            dataset = dataset.reshard()  # a shard for each row group
            counts = [len(self.footers[file.path].num_rows) for file in files]
        else:
            stream, kind = self.listing.stream, self.listing.kind
            members = stream.members(split)
            opened = [members.get(file.path, [file.path]) for file in files]
            ranges = (
                opened if stream.has_options or members else [line_ranges.ranges_of(file, kind=kind) for file in files]
            )
            counts = [len(each) for each in ranges]
            if ranges != opened:
                paths = [path for each in ranges for path in each]
                dataset = stream.reopened(split, paths, dataset.features)
        shard_files = tuple(np.repeat(np.arange(len(files)), counts).tolist())
        if len(shard_files) != dataset.num_shards:
            shard_files = ()
        return SplitStream(
            dataset=dataset,
            types=self.types(split),
            batch_rows=self.listing.stream.batch_rows,
            files=files,
            shard_files=shard_files,
        )


def open_source(config: SourceConfig, *, columns: Collection[str] | None) -> OpenedSource:
    """List the dataset's files and find its columns; `columns` are those that will be read, None for all.

    Raises: SourceError if it does not exist, or cannot be read.
    """
    listing = resolve.resolve(config)
    files = list({file.path: file for split in listing.splits.values() for file in split}.values())
    addresses = {shown: file.path for file in files if (shown := without_access(file.path)) != file.path}
    by_path: dict[str, Footer] = {}
    if listing.kind == "parquet":
        by_path = dict(zip((file.path for file in files), footers.read_footers(files, columns), strict=True))
        described = {
            name: features.columns_of(by_path[split[0].path].schema, listing.stream.described(name))
            for name, split in listing.splits.items()
        }
    else:
        # Its first rows give the features if nothing else does.
        first = without_access(files[0].path if files else config.dataset)
        with library.reading(lambda: first):
            streams = listing.stream.splits
        described = {
            name: features.columns_of(streams[name].features.arrow_schema, streams[name].features)
            for name in listing.splits
        }
    return OpenedSource(listing=listing, columns=described, footers=by_path, addresses=addresses)


def locate_rows(
    source: OpenedSource,
    splits: Collection[str],
    *,
    folder: str,
    inside: str | None,
    columns: Collection[str] | None,
    run: Ingest,
    known: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Groups]:
    """Return the groups of rows of some splits, by split, after `run` has ingested into `folder` what is missing there.

    `known`, int64 [S] by split, are the rows of its first files (see `Groups.source_rows`) that nobody will read: parts
    of these alone are not ingested, and count as one group each.

    Raises: SourceError if rows cannot be read, or a Parquet file lacks columns of its split; OutputError if a part
        cannot be written.
    """
    if source.footers:
        _require_columns(source, splits, columns)
    ingest = IngestSource(streams=source.streams(splits), folder=folder, inside=inside)
    unread = {task: rows for task in ingest.tasks() if (rows := _known(ingest, task, known or {})) is not None}
    wanted = [task for task in ingest.tasks() if task not in unread]
    located = parts.read_groups(_parts(ingest, wanted, run=run), columns)
    found = {}
    for name in (name for name in source.listing.splits if name in splits):
        if name not in ingest.streams:
            found[name] = Groups.joined(
                [
                    footers.groups_of(source.copies.get(file.path, file), source.footers[file.path])
                    for file in source.listing.splits[name]
                ]
            )
            continue
        names = _there(source.types(name), columns)
        tasks = ingest.streams[name].tasks(name)
        joined = Groups.joined(
            [located[task] if task in located else Groups.unread(unread[task], columns=names) for task in tasks]
        )
        found[name] = dataclasses.replace(joined, source_rows=_by_file(ingest.streams[name], joined.source_rows))
    return found


def _there(types: pa.Schema, columns: Collection[str] | None) -> list[str]:
    """Return those of the columns that there are; all by default."""
    return types.names if columns is None else [name for name in columns if nested.path_of(types, name)]


def _known(ingest: IngestSource, task: IngestTask, known: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the rows of the shards of a task if all of them are known and need not be read, int64 [S]."""
    stream, rows = ingest.streams[task.split], known.get(task.split)
    shards = stream.shards_of(task)
    # Where a file has several shards, its rows are known but not theirs.
    is_one_each = len(set(stream.shard_files)) in (0, stream.num_shards)
    if rows is None or not is_one_each or shards.stop > len(rows):
        return None
    return rows[shards.start : shards.stop]


def _by_file(stream: SplitStream, rows: np.ndarray) -> np.ndarray:
    """Sum the rows of shards by file, int64 [S], where it is known which file a shard is of."""
    if not stream.shard_files:
        return rows
    return np.bincount(stream.shard_files, weights=rows, minlength=len(stream.files)).astype(np.int64)


def _require_columns(source: OpenedSource, splits: Collection[str], columns: Collection[str] | None) -> None:
    """Check the columns in every footer on the launcher, before workers read rows. Raises: SourceError."""
    for name in splits:
        files = source.listing.splits[name]
        types = source.types(name)
        types = nested.schema_of(types, _there(types, columns))
        footers.require_columns(files, [source.footers[file.path] for file in files], types)


def _parts(source: IngestSource, wanted: Sequence[IngestTask], *, run: Ingest) -> dict[IngestTask, DataFile]:
    found = parts.find_parts(source, wanted)
    if missing := [task for task in wanted if task not in found]:
        run(source, missing)
        found = parts.find_parts(source, wanted)
    if gone := next((task for task in wanted if task not in found), None):
        raise OutputError(
            f"{source.path(gone)}: missing, though it was ingested",
            remedy="if workers are on other machines, choose an --output that all can reach, such as gs://; else run "
            "the same command again",
        )
    return found
