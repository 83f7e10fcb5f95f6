"""From a request that is begun to a job whose rows are located: where the ingested copy goes, and who makes it.

    output            workers                  the copy goes to                       made by
    any               threads of this process  OUT/.prep/rows-DIGEST                  threads
    any               a Beam runner's          the same                               a Beam job of its own
    --keep-ingested F either                   F/rows-DIGEST, which stays             either
    none (`plan`)     this process             a temporary folder                     threads

What workers cannot read by themselves, files of this machine's disk or behind the user's own credentials, the launcher
passes on to the copy's folder, byte by byte and without its disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Sequence

from pipelines.prepare import storage
from pipelines.prepare.dataset import reservation
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.launch import resolving
from pipelines.prepare.launch.resolving import OpenedRequest, Resolved
from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.process import memory
from pipelines.prepare.sources.ingest import ingest, ingest_tasks, relay
from pipelines.prepare.sources.ingest.ingest_tasks import IngestTask
from pipelines.prepare.sources.rows import opening
from pipelines.terminal import stages
from tfrecord_io.errors import ConfigError, OutputError

__all__ = ["resolved", "resolved_for_looking"]


def resolved(request: OpenedRequest) -> Resolved:
    """The job of a build, with the copy of its source wherever workers read it.

    Raises: as `resolving.finish`; SourceError if rows cannot be read; OutputError if the copy cannot be written.
    """
    config = request.config
    root = config.output.root
    keep = _kept_at(config)
    place = _Place.of(request, home=keep or storage.join(root, WORK_FOLDER), inside=None if keep else root)
    request = _with_copies(request, place)
    found = _finish(request, place, run=lambda tasks: _ingest(tasks, request, place))
    goes = place.folder if keep is None else None
    return dataclasses.replace(found, job=dataclasses.replace(found.job, ingested=goes))


@contextlib.contextmanager
def resolved_for_looking(request: OpenedRequest) -> Iterator[Resolved]:
    """The job of a build that is not made: what has to be ingested is in a temporary folder while the context lasts."""
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
        place = _Place.of(request, home=_kept_at(request.config) or folder)
        yield _finish(request, place, run=lambda tasks: _ingest_here(tasks, request))


def _kept_at(config: PrepareConfig) -> str | None:
    """Where the copy stays, if it does. Plans take a path that is not absolute for one inside of the output.

    Raises: ConfigError if it would be read with the source next time.
    """
    keep = config.keep_ingested
    if keep is None or "://" in keep:
        return keep
    folder = os.path.abspath(keep)
    for dataset in map(os.path.abspath, (config.source.dataset, *config.source.more_paths)):
        if os.path.isdir(dataset) and os.path.commonpath([dataset, folder]) == dataset:
            raise ConfigError(
                f"--keep-ingested {keep}: in the dataset's folder, expected one outside of it",
                remedy="choose another folder: what is in there would be read with the dataset",
            )
    return folder


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Place:
    """Where the copy of a source goes: a `folder` of its own, `inside` of one that must be there when it is written."""

    folder: str
    inside: str | None

    @classmethod
    def of(cls, request: OpenedRequest, *, home: str, inside: str | None = None) -> _Place:
        listing = request.found.listing
        types = {name: request.found.types(name) for name in listing.splits}
        return cls(folder=ingest_tasks.folder_of(home, listing, types), inside=inside)


def _finish(request: OpenedRequest, place: _Place, *, run: opening.Ingest) -> Resolved:
    with _naming_its_option(request.config):
        groups = opening.locate(
            request.found,
            resolving.needed_splits(request),
            folder=place.folder,
            inside=place.inside,
            columns=resolving.columns_read(request.config),
            run=run,
        )
    return resolving.finish(request, groups)


@contextlib.contextmanager
def _naming_its_option(config: PrepareConfig) -> Iterator[None]:
    """A copy that stays and cannot be written is a matter of its own option."""
    try:
        yield
    except OutputError as error:
        if config.keep_ingested is None:
            raise
        raise OutputError(error.cause, remedy=error.remedy.replace("an --output", "a --keep-ingested")) from error


def _with_copies(request: OpenedRequest, place: _Place) -> OpenedRequest:
    """With copies of the files that workers cannot read, if there are any."""
    if _works_here(request):
        return request
    found, root = request.found, request.config.output.root
    every = [file for name in resolving.needed_splits(request) for file in found.listing.splits[name]]
    if storage.local_path(root) is not None:  # workers that share the output's disk have the source's too
        every = [file for file in every if "://" in file.path]
    needs_token = found.listing.needs_token
    files = [file for file in every if not relay.readable_by_workers(file, needs_token=needs_token)]
    if not files:
        return request
    stages.begin(
        f"passing {len(files):,} files on to where workers read them, {sum(f.size for f in files) / 1e6:,.1f} MB"
    )
    copies = relay.relay(files, folder=place.folder, addresses=found.addresses, inside=place.inside)
    return dataclasses.replace(request, found=dataclasses.replace(found, copies=copies))


def _ingest(tasks: Sequence[IngestTask], request: OpenedRequest, place: _Place) -> None:
    if place.inside is not None:  # two copies may be more than there is room for
        reservation.remove_copies(place.inside, but=place.folder)
    if _works_here(request):
        _ingest_here(tasks, request)
        return
    from pipelines.prepare.beam import pipeline

    _tell(tasks)
    pipeline.run_ingest(
        tasks,
        folder=place.folder,
        root=request.config.output.root,
        name=request.config.output.name,
        workers=request.config.workers,
        beam_args=request.config.beam_args,
    )


def _ingest_here(tasks: Sequence[IngestTask], request: OpenedRequest) -> None:
    _tell(tasks)
    ingest.ingest_all(tasks, threads=request.config.workers or _cores(), addresses=request.found.addresses)
    # What the readers needed is of no more use, and shards will want the room.
    memory.release_freed()


def _tell(tasks: Sequence[IngestTask]) -> None:
    whole = {task.file.path: task.file.size for task in tasks}
    stages.begin(f"ingesting {len(whole):,} files of {sum(whole.values()) / 1e6:,.1f} MB")


def _works_here(request: OpenedRequest) -> bool:
    """Whether all work is done by threads of this process."""
    if not request.config.beam_args:
        return True
    from pipelines.prepare.beam import options

    return options.is_embedded(options.parse(request.config.beam_args))


def _cores() -> int:
    return len(os.sched_getaffinity(0))
