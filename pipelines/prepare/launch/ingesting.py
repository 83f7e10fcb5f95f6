"""Locating the rows of a request: where the ingested copy goes, and who makes it.

    output            workers                  the copy goes to                       made by
    any               of this machine          OUT/.prep/rows-DIGEST                  child processes
    any               of a Beam runner         the same                               a Beam job of its own
    none (`plan`)     this process             a temporary folder                     child processes

Workers elsewhere cannot read files on this machine's disk or behind the user's own credentials. The launcher ingests
those itself, into the copy's folder; Parquet files, which are read in place, must lie where workers can read them.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

from pipelines.prepare import storage
from pipelines.prepare.dataset import reservation
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.launch import task_runs
from pipelines.prepare.launch.request import Request, columns_read
from pipelines.prepare.launch.task_runs import works_here
from pipelines.prepare.process import memory
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.ingest.ingest import IngestSource, IngestTask
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.sources.rows import opening
from pipelines.prepare.sources.rows.opening import OpenedSource
from pipelines.prepare.storage.storage_errors import bucket_of
from pipelines.terminal import stages
from tfrecord_io.errors import SourceError
from tfrecord_io.shown import is_web, without_access

__all__ = ["ingest_files", "is_readable", "locate_rows"]


def locate_rows(
    request: Request, *, progress: Progress, home: str | None = None
) -> tuple[Request, dict[str, Groups], str | None]:
    """Return the request, the groups of rows of its splits, and the folder of the ingested copy that ends with the
    build. With `home`, everything is done here, and that is where the copy goes.

    Raises: SourceError if rows cannot be read, here or by workers elsewhere; OutputError if the copy cannot be written.
    """
    config = request.config
    root, beam_args = config.output.root, () if home else config.beam_args
    folder = request.found.copy_folder(home or storage.join(root, WORK_FOLDER))
    inside = None if home else root
    if not works_here(beam_args):
        _require_readable(request.found, request.needed_splits(), root=root)

    def run(source: IngestSource, tasks: Sequence[IngestTask]) -> None:
        if inside is not None:  # there may not be room for two copies
            reservation.remove_copies(inside, but=folder)
        ingest_files(
            source,
            tasks,
            request.found,
            root=home or root,
            name=config.output.name,
            workers=config.workers,
            beam_args=beam_args,
            progress=progress,
        )

    groups = opening.locate_rows(
        request.found,
        request.needed_splits(),
        folder=folder,
        inside=inside,
        columns=columns_read(config),
        run=run,
        known=request.append.known_rows(config) if request.append else None,
    )
    return request, groups, folder if inside else None


def _require_readable(found: OpenedSource, splits: Collection[str], *, root: str) -> None:
    """Raise SourceError if a Parquet file lies where workers elsewhere cannot read it."""
    if found.listing.identity["kind"] == "object":
        raise SourceError(
            "the object's rows are in a temporary folder of this machine, expected a place that workers elsewhere read",
            remedy="write them to a bucket, as by dataset.to_parquet('gs://BUCKET/data.parquet'), and give that path",
        )
    files = (file for name in splits if found.is_in_place(name) for file in found.listing.splits[name])
    if hidden := next((file for file in files if not is_readable(file, found, root=root)), None):
        path = without_access(hidden.path)
        first = "hf download NAME --repo-type dataset --local-dir DATA, then " if path.startswith("hf://") else ""
        raise SourceError(
            f"{path}: workers elsewhere cannot read it, since it is on this machine's disk or needs your credentials",
            remedy=f"copy the files to a bucket ({first}gcloud storage cp -r DATA gs://BUCKET/), and give that address",
        )


def is_readable(file: DataFile, found: OpenedSource, *, root: str) -> bool:
    """Return whether workers elsewhere can read a file: it is on gs://, or on the hub or the web for everybody.

    Workers that see the output's disk see the source's too.
    """
    if "://" not in file.path:
        return storage.local_path(root) is not None
    if file.path.startswith("hf://"):
        return not found.listing.needs_token
    return bucket_of(file.path) is not None or (is_web(file.path) and without_access(file.path) == file.path)


def ingest_files(
    source: IngestSource,
    tasks: Sequence[IngestTask],
    found: OpenedSource,
    *,
    root: str,
    name: str,
    workers: int | None,
    beam_args: Sequence[str] = (),
    progress: Progress,
) -> None:
    """Ingest a source: in `workers` processes of this machine, or as a Beam job `name` of the output `root`.

    Raises: SourceError if rows cannot be read; OutputError if the copy cannot be written.
    """
    files = {file.path: file for stream in source.streams.values() for file in stream.files}.values()
    is_shared = files and not works_here(beam_args) and all(is_readable(file, found, root=root) for file in files)
    stages.begin(f"ingesting {len(files):,} files of {sum(file.size for file in files) / 1e6:,.1f} MB")
    with ingest.naming_files(source):
        task_runs.run(
            functools.partial(ingest.call, source),
            tasks,
            processes=ingest.children(source, tasks, most=workers or cores()),
            folder=source.folder,
            root=root,
            name=f"{name}-ingest",
            workers=workers,
            beam_args=beam_args if is_shared else (),
            progress=progress,
        )
    # The readers' memory is no longer needed, and shards will need it.
    memory.release_freed()
