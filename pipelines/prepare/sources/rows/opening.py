"""Open a dataset in two steps: find its splits and columns, then locate its stored rows.

Rows of Parquet files are read in place. Other formats, and splits with huge row groups, are first ingested (written to
Parquet parts) by the caller's workers.
"""

import collections
import dataclasses
import hashlib
import itertools
import json
import logging
import shutil
import tempfile
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.source_config import LAYOUT_COLUMNS
from pipelines.prepare.options.suggestions import listing
from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.ingest.ingest import IngestSource, IngestTask, RunTasks, SplitStream
from pipelines.prepare.sources.parquet import class_ids, row_groups, stored_columns
from pipelines.prepare.sources.parquet.class_ids import NewIds
from pipelines.prepare.sources.parquet.groups import Groups, Pieces, cover
from pipelines.prepare.sources.parquet.row_groups import Footer
from pipelines.prepare.sources.resolve import cells, features, library, line_ranges, resolve
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.sources.resolve.features import Columns
from pipelines.prepare.sources.resolve.library import SourceListing
from tfrecord_io.errors import FingerprintMismatchError
from tfrecord_io.shown import some, without_access

_log = logging.getLogger(__name__)
# Options of the reader of Parquet files that leave out rows.
_CHOOSE_ROWS = frozenset(("filters", "on_bad_files"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenedSource:
    """Dataset with known files and columns, before its rows are located.

    `footers`: of Parquet files, by path. `new_ids`: new class ids by path, for files with other class names than the
    split. `addresses`: see `access.opened`. `copies`: copies of files for remote workers, by original path.
    """

    listing: SourceListing
    columns: Mapping[str, Columns]
    footers: Mapping[str, Footer]
    addresses: Mapping[str, str]
    new_ids: Mapping[str, NewIds] = dataclasses.field(default_factory=dict)
    copies: Mapping[str, DataFile] = dataclasses.field(default_factory=dict)

    def types(self, split: str) -> pa.Schema:
        """Return the Arrow schema of a split's rows after they are cast."""
        return self.columns[split].arrow_schema

    def is_in_place(self, split: str) -> bool:
        """Return whether a split's rows can be read without ingest."""
        footers = [self.footers.get(file.path) for file in self.listing.splits[split]]
        if not all(footer and footer.is_in_place for footer in footers) or self.new_ids_of(split):
            return False
        return _CHOOSE_ROWS.isdisjoint(library.explicit_options(self._builder(split)))

    def streams(self, splits: Collection[str]) -> dict[str, SplitStream]:
        """Return a stream for each of `splits` that needs ingest, by split."""
        return {
            name: self._stream(name) for name in self.listing.splits if name in splits and not self.is_in_place(name)
        }

    def copy_folder(self, home: str) -> str:
        """Return the folder in `home` for the ingested rows of this source. Its name is a digest of the source."""
        listing, splits = self.listing, self.listing.splits.items()
        files = {split: [[file.name, file.size, file.version] for file in files] for split, files in splits}
        content = [ingest.VERSION, listing.kind, listing.identity, files]
        total = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
        for split in listing.splits:
            total.update(b"\0" + self.types(split).serialize().to_pybytes())
        return storage.join(home, f"rows-{total.hexdigest()[:16]}")

    def new_ids_of(self, split: str) -> dict[str, NewIds]:
        return {file.path: self.new_ids[file.path] for file in self.listing.splits[split] if file.path in self.new_ids}

    def _builder(self, split: str) -> Any:
        return self.listing.builders.get(None) or self.listing.builders[split]

    def _stream(self, split: str) -> SplitStream:
        listing, files = self.listing, tuple(self.listing.splits[split])
        builder, dataset = self._builder(split), listing.streams[split]
        ids = self.new_ids_of(split)
        if ids:  # as numbers: the first file's classes don't fit others
            plain = type(dataset.features).from_arrow_schema(self.types(split))
            mapped = {name for by_column in ids.values() for name in by_column}
            numbers = {name: (plain if name in mapped else dataset.features)[name] for name in dataset.features}
            builder = library.with_files(
                builder, {split: [file.path for file in files]}, features=type(dataset.features)(numbers)
            )
            with library.quiet():
                dataset = builder.as_streaming_dataset()[split]
        # An archive has one shard per member.
        members = collections.Counter(path.rpartition("::")[2] for path in library.splits_of(builder).get(split, ()))
        counts = [members[file.path] or 1 for file in files]
        if self.footers:
            dataset = dataset.reshard()  # one shard per row group
            counts = [len(self.footers[file.path].groups) for file in files]
        elif sum(counts) == len(files) and not library.explicit_options(builder):
            ranges = [line_ranges.ranges_of(file, kind=listing.kind) for file in files]
            counts = list(map(len, ranges))
            if sum(counts) > len(files):
                paths = list(itertools.chain.from_iterable(ranges))
                builder = library.with_files(builder, {split: paths}, features=dataset.features)
                with library.quiet():
                    dataset = builder.as_streaming_dataset()[split]
        shard_files = tuple(np.repeat(np.arange(len(files)), counts).tolist())
        if len(shard_files) != dataset.num_shards:
            shard_files = ()
        return SplitStream(
            dataset=dataset,
            reader=listing.kind,
            types=self.types(split),
            batch_rows=listing.batch_rows,
            files=files,
            shard_files=shard_files,
            in_groups=bool(self.footers) and not library.explicit_options(builder),
            delimiter=cells.delimiter_of(builder),
            new_ids=ids,
        )


def open_source(
    config: SourceConfig, *, columns: Collection[str] | None, former: Sequence[Mapping[str, Any]] = ()
) -> OpenedSource:
    """List the files of a dataset, and find its columns.

    `columns`: columns to read later, None for all. `former`: the files' entries in an earlier manifest, which are
    listed before new files. Raises: like `resolve`.
    """
    listing = resolve.resolve(config).with_first(former)
    files = list({file.path: file for split in listing.splits.values() for file in split}.values())
    addresses = {shown: file.path for file in files if (shown := without_access(file.path)) != file.path}
    footers: dict[str, Footer] = {}
    if listing.kind == "parquet":
        footers = dict(zip((file.path for file in files), row_groups.read_footers(files, columns), strict=True))
    schemas_of_splits = class_ids.schemas_of(listing, footers)  # before a stream sets the features
    if listing.kind == "parquet":
        described = {
            name: features.columns_of(footers[split[0].path].schema, listing.features_of(name))
            for name, split in listing.splits.items()
        }
    else:
        first = without_access(files[0].path if files else config.dataset)
        is_csv = listing.kind == "csv"
        with library.reading(lambda: first, remedy=cells.REMEDY if is_csv else library.CORRECT):
            if is_csv:
                listing, cell_features = cells.as_written(listing, config)
                opened = dict.fromkeys(listing.splits, cell_features)
            else:
                opened = {name: listing.streams[name].features for name in listing.splits}
        described = {name: features.columns_of(known.arrow_schema, known) for name, known in opened.items()}
    new_ids: dict[str, NewIds] = {}
    for name, schemas in schemas_of_splits.items():
        used = (config.label_column, *config.keep_columns, *(getattr(config, option) for option in LAYOUT_COLUMNS))
        names = [*described[name]] if config.functions else list(filter(None, used))
        described[name], ids = class_ids.united(described[name], schemas, names=names)
        new_ids.update(ids)
    return OpenedSource(listing=listing, columns=described, footers=footers, addresses=addresses, new_ids=new_ids)


def locate_rows(
    source: OpenedSource,
    splits: Collection[str],
    *,
    folder: str,
    inside: str | None,
    columns: Collection[str] | None,
    run: RunTasks,
    known: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Groups]:
    """Return the row groups of each split; call `run` to ingest parts missing in `folder`.

    `columns`: columns to read later, None for all. `known`: by split, row counts of its first S files, int64 [S], which
    will not be read: a part with only such files is not ingested, and counts as one group. `inside`: see
    `storage.write_atomic`. Raises: SourceError, OutputError.
    """
    note = "split %r, column %r: its files have different classes; all files get the classes %s"
    for name in splits:
        for column in dict.fromkeys(column for ids in source.new_ids_of(name).values() for column in ids):
            _log.warning(note, name, column, listing(source.columns[name][column].classes or (), most=20))
    for name in splits if source.footers else ():
        types = stored_columns.schema_of(source.types(name), _existing(source.types(name), columns))
        last, as_named = None, source.listing.features_of(name) is not None
        for file in source.listing.splits[name]:
            if (schema := source.footers[file.path].schema) is not last:  # files with the same columns share a schema
                stored_columns.require_castable(schema, types, where=without_access(file.path), as_named=as_named)
            last = schema
    ingested = IngestSource(streams=source.streams(splits), folder=folder, inside=inside)
    located = {}
    for task in ingested.tasks():
        stream, rows = ingested.streams[task.split], (known or {}).get(task.split, np.zeros(0, np.int64))
        shards = stream.shards_of(task)
        # `known` counts the rows of files, not of their shards.
        if len(set(stream.shard_files)) in (0, stream.num_shards) and shards.stop <= len(rows):
            names = _existing(source.types(task.split), columns)
            located[task] = Groups.unread(rows[shards.start : shards.stop], columns=names)
    wanted = [task for task in ingested.tasks() if task not in located]
    located |= ingest.read_groups(ingested, wanted, columns, run_tasks=run)
    groups = {}
    for name, files in source.listing.splits.items():
        if name in ingested.streams:
            stream = ingested.streams[name]
            joined = Groups.joined([located[task] for task in stream.tasks(name)])
            if stream.shard_files:
                sums = np.bincount(stream.shard_files, weights=joined.source_rows, minlength=len(stream.files))
                joined = dataclasses.replace(joined, source_rows=sums.astype(np.int64))
            groups[name] = joined
        elif name in splits:
            joined = Groups.joined([source.footers[file.path].groups for file in files])
            copies = tuple(source.copies.get(file.path, file).as_planned for file in files)
            groups[name] = dataclasses.replace(joined, files=copies)
    return groups


def _existing(types: pa.Schema, columns: Collection[str] | None) -> list[str]:
    return types.names if columns is None else [name for name in columns if stored_columns.path_of(types, name)]


class RowsOnDemand:
    """Rows of a finished dataset's source split. Only files with requested rows are ingested.

    `source_rows`: rows of each of S files when the dataset was made, int64 [S]. `is_longer`: ignore files added since
    then. Raises: FingerprintMismatchError if the number of files differs.
    """

    def __init__(self, source: OpenedSource, split: str, source_rows: np.ndarray, *, is_longer: bool = False) -> None:
        folder = tempfile.mkdtemp(prefix="prep-tfrecords-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._source, self._split, self._rows = source, split, source_rows
        self._ingest = IngestSource(streams=source.streams([split]), folder=folder)
        self._files: Sequence[DataFile | None] = source.listing.splits[split]
        if (stream := self._ingest.streams.get(split)) and not stream.shard_files:
            self._files = [None] * stream.num_shards
        if is_longer:
            self._files = self._files[: len(source_rows)]
        if len(self._files) != len(source_rows):
            raise FingerprintMismatchError(
                f"split {split!r}: {some(len(self._files), 'file')}, expected {len(source_rows):,}",
                remedy="install the package versions that made the dataset, or build it again with --overwrite",
            )
        self._ends = np.cumsum(source_rows)
        self._groups = [Groups.unread(rows) for rows in source_rows.reshape(-1, 1)]
        self._opened: set[int] = set()
        self._joined = Groups.joined(self._groups)

    @property
    def num_rows(self) -> int:
        return int(self._rows.sum())

    def pieces(self, row_ranges: Sequence[tuple[int, int]]) -> Pieces:
        """Return where rows are, by their numbers; ingest their files as needed. Raises: like `locate_rows`."""
        if new := set(cover(self._ends, row_ranges).groups.tolist()) - self._opened:
            for index in sorted(new):
                self._groups[index] = self._open(index)
            self._opened |= new
            self._joined = Groups.joined(self._groups)
        return self._joined.pieces(row_ranges)

    def locate(self, row: int) -> tuple[DataFile | None, int]:
        """Return a row's file, and the row's number in it, from 0; or (None, `row`) if the file is unknown."""
        index = int(np.searchsorted(self._ends, row, "right"))
        file = self._files[index]
        return file, row if file is None else row - int(self._ends[index] - self._rows[index])

    def _open(self, index: int) -> Groups:
        if (stream := self._ingest.streams.get(self._split)) is None:
            return self._source.footers[self._source.listing.splits[self._split][index].path].groups
        shard_files = stream.shard_files or range(stream.num_shards)
        shards = [shard for shard, file in enumerate(shard_files) if file == index]
        tasks = [IngestTask(self._split, shard, stream.num_shards) for shard in shards]
        located = ingest.read_groups(self._ingest, tasks, None, run_tasks=ingest.run_here)
        return Groups.joined(list(located.values()))
