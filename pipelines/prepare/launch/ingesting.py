"""Ingest rows that cannot be read in place: write them to a Parquet copy.

The copy is in OUT/.prep/rows-DIGEST, or for `plan` in a temporary folder. Remote workers lack this machine's disk and
the user's credentials, so local processes ingest such files.
"""

import dataclasses
import functools
from collections.abc import Collection, Sequence

from pipelines import stages
from pipelines.prepare import runners, storage
from pipelines.prepare.dataset import reservation
from pipelines.prepare.process import memory
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.runners.runner import Runner, Work
from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.parquet import access
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.sources.rows.opening import OpenedSource
from tfrecord_io.shown import some


def with_copies(opened: OpenedSource, splits: Collection[str], *, root: str, folder: str) -> OpenedSource:
    """Copy Parquet files of `splits` that remote workers cannot read to `folder`; return the source with the copies.

    `root`: the output folder. Raises: SourceError, OutputError.
    """
    is_object = opened.listing.identity["kind"] == "object"  # an object's parts are in a temporary folder
    files = [
        file
        for name in splits
        if opened.is_in_place(name)
        for file in opened.listing.splits[name]
        if is_object or not _is_readable(file, opened, root=root)
    ]
    if not files:
        return opened
    num_bytes = sum(file.size for file in files)
    stages.begin(f"copying {some(len(files), 'file')} to where workers can read them, {num_bytes / 1e6:,.1f} MB")
    copies = access.relay(files, folder=folder, addresses=opened.addresses, inside=root)
    return dataclasses.replace(opened, copies=copies)


def _is_readable(file: DataFile, opened: OpenedSource, *, root: str) -> bool:
    # Remote workers are assumed to share the disk of the output.
    if "://" not in file.path and storage.local_path(root) is not None:
        return True
    return access.is_readable_by_workers(file, needs_token=opened.listing.needs_token)


def ingest_files(
    source: ingest.IngestSource,
    tasks: Sequence[ingest.IngestTask],
    *,
    opened: OpenedSource,
    root: str,
    name: str,
    workers: int | None,
    runner: Runner,
    progress: Progress,
) -> None:
    """Run the tasks that write `source` to Parquet: on `runner` if its workers can read all files, else locally."""
    reservation.remove_copies(root, but=source.folder)  # there may not be room for two copies
    files = {file.path: file for stream in source.streams.values() for file in stream.files}.values()
    if not files or not all(_is_readable(file, opened, root=root) for file in files):
        runner = runners.local()
    stages.begin(f"ingesting {some(len(files), 'file')} of {sum(file.size for file in files) / 1e6:,.1f} MB")
    with ingest.naming_files(source):
        work = Work(
            function=functools.partial(ingest.run, source),
            tasks=tasks,
            processes=ingest.children(source, tasks, most=workers or cores()),
            name=f"{name}-ingest",
            place=f"{root} {source.folder}",
        )
        try:
            runner.run(work, progress)
        finally:
            storage.sweep(source.folder)  # a killed worker leaves a partial file
    # Shards will need this memory.
    memory.release_freed()
