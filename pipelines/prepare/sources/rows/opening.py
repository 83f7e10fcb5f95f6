"""Opening a dataset: its splits and columns first, then where its rows are stored.

open_source    splits and files, and the types of their columns, from footers, heads of files, or a dataset card
locate_rows    Parquet row groups of the source's own files; for other kinds, and for huge row groups, record batches of
               the ingested copy, whose missing parts the caller makes, wherever its workers are
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.files.data_files import DataFile, SourceListing
from pipelines.prepare.sources.formats import features, footers, nested, plain_tables, type_inference
from pipelines.prepare.sources.formats.features import Columns
from pipelines.prepare.sources.formats.footers import Footer
from pipelines.prepare.sources.formats.groups import Groups
from pipelines.prepare.sources.ingest import ingest_tasks
from pipelines.prepare.sources.ingest.ingest_receipts import IngestReceipt, find_receipts, groups_of
from pipelines.prepare.sources.ingest.ingest_tasks import IngestTask
from pipelines.prepare.sources.splits import resolve
from tfrecord_io.errors import OutputError
from tfrecord_io.shown import without_access

__all__ = ["Ingest", "OpenedSource", "ingest_tasks_of", "locate_rows", "open_source"]

# Runs ingest tasks, or raises.
Ingest = Callable[[Sequence[IngestTask]], None]


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

    def is_in_place(self, file: DataFile) -> bool:
        """Whether the file's rows are read from the file itself, without ingest."""
        return file.path in self.footers and footers.is_in_place(self.footers[file.path])

    def copy_folder(self, home: str) -> str:
        """Return the folder in `home` for the ingested rows."""
        return ingest_tasks.folder_of(home, self.listing, {name: self.types(name) for name in self.listing.splits})


def open_source(config: SourceConfig, *, columns: Collection[str] | None) -> OpenedSource:
    """List the dataset's files and find its columns; `columns` are those that will be read, None for all.

    Raises: SourceError if it does not exist, or cannot be read; ColumnError for a header line that cannot be used.
    """
    listing = resolve.resolve(config)
    files = [file for split in listing.splits.values() for file in split]
    addresses = {shown: file.path for file in files if (shown := without_access(file.path)) != file.path}
    kind = files[0].kind
    if kind == "parquet":
        read = footers.read_footers(files, columns)
        by_path = {file.path: footer for file, footer in zip(files, read, strict=True)}
        schemas = {name: by_path[split[0].path].schema for name, split in listing.splits.items()}
    elif kind == "arrow":
        by_path = {}
        schemas = {
            name: plain_tables.arrow_schema(split[0], addresses=addresses) for name, split in listing.splits.items()
        }
    else:
        by_path = {}
        types = type_inference.text_types(listing.splits, kind, addresses=addresses, wanted=columns or ())
        schemas = dict.fromkeys(listing.splits, types)
    described = {name: features.columns_of(schema, listing.features_of(name)) for name, schema in schemas.items()}
    return OpenedSource(listing=listing, columns=described, footers=by_path, addresses=addresses)


def ingest_tasks_of(
    source: OpenedSource, splits: Collection[str], *, folder: str, inside: str | None = None
) -> tuple[IngestTask, ...]:
    """Return the ingest tasks of some splits, including those already done."""
    wanted = [name for name in source.listing.splits if name in splits]
    in_place = {file.path for name in wanted for file in source.listing.splits[name] if source.is_in_place(file)}
    return tuple(
        task
        for name in wanted
        for task in ingest_tasks.tasks_of(
            {name: source.listing.splits[name]},
            source.types(name),
            folder=folder,
            in_place=in_place,
            copies=source.copies,
            addresses=source.addresses,
            inside=inside,
        )
    )


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

    `known`, int64 [F] by split, are the rows of its first stored files that nobody will read: these are not ingested,
    and count as one group each.

    Raises: SourceError if rows cannot be read, or a Parquet file lacks columns of its split; OutputError if the copy
        cannot be written.
    """
    if source.footers:
        _require_columns(source, splits, columns)
    every = ingest_tasks_of(source, splits, folder=folder, inside=inside)
    unread = _unread(source, every, known or {})
    wanted = [task for task in every if _key(task) not in unread]
    receipts = dict(zip(map(_key, wanted), _receipts(wanted, run=run), strict=True))
    by_file: dict[tuple[str, int], list[Groups]] = {}
    for task in every:
        names = _there(source.types(task.split), columns)
        rows = unread.get(_key(task))
        groups = groups_of([receipts[_key(task)]], names) if rows is None else Groups.unread(rows, columns=names)
        by_file.setdefault((task.split, task.number), []).append(groups)
    return {
        name: Groups.joined(
            [
                groups
                for number, file in enumerate(files)
                for groups in (
                    [footers.in_place_groups(source.copies.get(file.path, file), source.footers[file.path])]
                    if source.is_in_place(file)
                    else by_file[name, number]
                )
            ]
        )
        for name, files in source.listing.splits.items()
        if name in splits
    }


def _there(types: pa.Schema, columns: Collection[str] | None) -> list[str]:
    """Return those of the columns that there are; all by default."""
    return types.names if columns is None else [name for name in columns if nested.path_of(types, name)]


def _key(task: IngestTask) -> tuple[str, int, int]:
    return task.split, task.number, task.part


def _unread(
    source: OpenedSource, tasks: Sequence[IngestTask], known: Mapping[str, np.ndarray]
) -> dict[tuple[str, int, int], int]:
    """Return the rows of the stored files that are not to be ingested, by the keys of their tasks."""
    found = {}
    for name, rows in known.items():
        of_file: dict[int, list[IngestTask | None]] = {}
        for each in tasks:
            if each.split == name:
                of_file.setdefault(each.number, []).append(each)
        # A file that is read in place is one stored file; each part of any other one is another.
        slots: list[IngestTask | None] = []
        for number in range(len(source.listing.splits.get(name, ()))):
            slots += of_file.get(number, [None])
        for slot, num_rows in zip(slots, rows.tolist(), strict=False):
            if slot is not None:
                found[_key(slot)] = num_rows
    return found


def _require_columns(source: OpenedSource, splits: Collection[str], columns: Collection[str] | None) -> None:
    """Check the columns in every footer on the launcher, before workers read rows. Raises: SourceError."""
    for name in splits:
        files = source.listing.splits[name]
        types = source.types(name)
        types = nested.schema_of(types, _there(types, columns))
        footers.require_columns(files, [source.footers[file.path] for file in files], types)


def _receipts(wanted: Sequence[IngestTask], *, run: Ingest) -> list[IngestReceipt]:
    found = find_receipts(wanted)
    missing = [task for task, receipt in zip(wanted, found, strict=True) if receipt is None]
    if missing:
        run(missing)
        found = find_receipts(wanted)
    if gone := [task for task, receipt in zip(wanted, found, strict=True) if receipt is None]:
        raise OutputError(
            f"{gone[0].path}: missing, though {gone[0].shown} was ingested",
            remedy="if workers are on other machines, choose an --output that all can reach, such as gs://; else run "
            "the same command again",
        )
    return [receipt for receipt in found if receipt is not None]
