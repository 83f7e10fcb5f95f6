"""From a request that is begun to a job whose rows are located: where the ingested copy goes, and who makes it.

    output            workers                  the copy goes to                       made by
    any               threads of this process  OUT/.prep/rows-DIGEST                  threads
    any               a Beam runner's          the same                               a Beam job of its own, on that runner
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

from pipelines import stages
from pipelines.prepare import resolving, storage
from pipelines.prepare.job import WORK_FOLDER
from pipelines.prepare.resolving import Begun, Resolved
from pipelines.prepare.sources import ingest, opening, relay
from pipelines.prepare.sources.ingest_tasks import IngestTask

__all__ = ["resolved", "resolved_for_looking"]


def resolved(begun: Begun) -> Resolved:
    """The job of a build, with the copy of its source wherever workers read it.

    Raises: as `resolving.finish`; SourceError if rows cannot be read; OutputError if the copy cannot be written.
    """
    config = begun.config
    home = config.keep_ingested or storage.join(config.output.root, WORK_FOLDER)
    found = _finish(begun, home=home)
    return dataclasses.replace(found, job=dataclasses.replace(found.job, ingested=None if config.keep_ingested else _folder(begun, home)))


@contextlib.contextmanager
def resolved_for_looking(begun: Begun) -> Iterator[Resolved]:
    """The job of a build that is not made: what has to be ingested is in a temporary folder while the context lasts."""
    if begun.config.keep_ingested:
        yield _finish(begun, home=begun.config.keep_ingested)
        return
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
        yield _finish(begun, home=folder)
