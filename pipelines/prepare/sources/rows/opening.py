"""Opening a dataset: what is in it, and where its rows lie.

find      splits and files, and the types of their columns: from footers, the files' heads, a dataset card
locate    row groups of Parquet where they are; of everything else, and of Parquet in huge row groups, the ingested
          copy, whose missing parts the caller makes wherever its workers are
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.files.data_files import DataFile, SourceListing
from pipelines.prepare.sources.formats import features, footers, plain_tables, type_inference
from pipelines.prepare.sources.formats.features import Columns
from pipelines.prepare.sources.formats.footers import Footer
from pipelines.prepare.sources.formats.groups import Groups
from pipelines.prepare.sources.ingest import ingest_tasks
from pipelines.prepare.sources.ingest.ingest_receipts import IngestReceipt, find_receipts, groups_of
from pipelines.prepare.sources.ingest.ingest_tasks import IngestTask
from pipelines.prepare.sources.splits import resolve
from tfrecord_io.errors import OutputError
from tfrecord_io.shown import without_access

__all__ = ["Ingest", "OpenedSource", "find", "locate", "tasks"]

# Makes the ingested files of some tasks, or raises.
Ingest = Callable[[Sequence[IngestTask]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenedSource:
    """A dataset before its rows are located: its files, the columns of each split, the footers of Parquet files by
    path, the addresses with credentials by those without, and copies where workers reach them, by the path of the file.
    """

    listing: SourceListing
    columns: Mapping[str, Columns]
    footers: Mapping[str, Footer]
    addresses: Mapping[str, str]
    copies: Mapping[str, DataFile] = dataclasses.field(default_factory=dict)

    def types(self, split: str) -> pa.Schema:
        """The columns of a split as they are read."""
        return self.columns[split].arrow_schema

    def is_in_place(self, file: DataFile) -> bool:
        """Whether its rows are read where they lie."""
        return file.path in self.footers and footers.is_in_place(self.footers[file.path])


def find(config: SourceConfig, *, columns: Collection[str] | None) -> OpenedSource:
    """Looks at the dataset. `columns` are those that will be read, None for all of them.

    Raises: SourceError if it is not there, or cannot be read; ColumnError for a header line that cannot be used.
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


def tasks(
    found: OpenedSource, splits: Collection[str], *, folder: str, inside: str | None = None
) -> tuple[IngestTask, ...]:
    """What has to be ingested of some splits, whether or not that has been done."""
    wanted = [name for name in found.listing.splits if name in splits]
    in_place = {file.path for name in wanted for file in found.listing.splits[name] if found.is_in_place(file)}
    return tuple(
        task
        for name in wanted
        for task in ingest_tasks.tasks_of(
            {name: found.listing.splits[name]},
            found.types(name),
            folder=folder,
            in_place=in_place,
            copies=found.copies,
            addresses=found.addresses,
            inside=inside,
        )
    )


def locate(
    found: OpenedSource,
    splits: Collection[str],
    *,
    folder: str,
    inside: str | None,
    columns: Collection[str] | None,
    run: Ingest,
) -> dict[str, Groups]:
    """Where the rows of some splits lie, by split; what is not ingested yet `run` has to ingest into `folder`.

    Raises: SourceError if rows cannot be read, or a Parquet file does not have the columns of its split; OutputError if
        the copy cannot be written.
    """
    if found.footers:
        _require_columns(found, splits, columns)
    wanted = tasks(found, splits, folder=folder, inside=inside)
    receipts = _receipts(wanted, run=run)
    by_file: dict[tuple[str, int], list[IngestReceipt]] = {}
    for task, receipt in zip(wanted, receipts, strict=True):
        by_file.setdefault((task.split, task.number), []).append(receipt)
    return {
        name: Groups.joined(
            [
                footers.in_place_groups(found.copies.get(file.path, file), found.footers[file.path])
                if found.is_in_place(file)
                else groups_of(by_file[name, number], list(columns or found.types(name).names))
                for number, file in enumerate(files)
            ]
        )
        for name, files in found.listing.splits.items()
        if name in splits
    }


def _require_columns(found: OpenedSource, splits: Collection[str], columns: Collection[str] | None) -> None:
    """Checks every footer, so that it is the launcher that names a file with other columns. Raises: SourceError."""
    for name in splits:
        files = found.listing.splits[name]
        types = pa.schema([field for field in found.types(name) if columns is None or field.name in columns])
        footers.require_columns(files, [found.footers[file.path] for file in files], types)


def _receipts(wanted: Sequence[IngestTask], *, run: Ingest) -> list[IngestReceipt]:
    found = find_receipts(wanted)
    missing = [task for task, receipt in zip(wanted, found, strict=True) if receipt is None]
    if missing:
        run(missing)
        found = find_receipts(wanted)
    if gone := [task for task, receipt in zip(wanted, found, strict=True) if receipt is None]:
        raise OutputError(
            f"{gone[0].path}: not there, though {gone[0].shown} was ingested",
            remedy="workers on other machines need an --output that they share with this one, such as gs://; else run "
            "the same command again",
        )
    return [receipt for receipt in found if receipt is not None]
