"""What the threads of one process share while they make one dataset, and no other build in that process.

launcher      Run ──► DoFns, which Beam pickles: of the run goes only its id
same process  the launcher's own run, by that id: its encoder, its counters, and whether somebody failed already
elsewhere     a new run, which all DoFns with that id share; nobody reads its counters
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from contextlib import AbstractContextManager
from typing import Any

from pipelines.prepare.beam.failures import Failures
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.process.progress import Progress

__all__ = ["Run"]

# By id. A run goes with the last DoFn that has it.
_runs: weakref.WeakValueDictionary[str, Run] = weakref.WeakValueDictionary()
_lock = threading.Lock()


class Run:
    """The state of one Beam job in this process.

    failures   the errors of its workers, if the launcher is here
    progress   its counters
    threads    how many a task may use
    """

    def __init__(
        self,
        *,
        encoder: BatchEncoder | None = None,
        progress: Progress | None = None,
        at_once: int = 1,
        key: str | None = None,
    ) -> None:
        """`encoder` is the launcher's own, for workers that are its threads. `at_once`: how many tasks may hold the
        tokens of a shard that is not complete; more of them may lay out and write.
        """
        self.failures = Failures()
        self.progress = progress or Progress()
        cores = len(os.sched_getaffinity(0))
        at_once = min(at_once, cores)
        # Tasks share nothing, and the threads of one wait for each other: on two cores, two tasks of one thread each
        # are a tenth faster than one of two. With fewer tasks than cores, each has several.
        self.threads = cores // at_once
        self._gathering = threading.BoundedSemaphore(at_once)
        self._gathering_alone = threading.Lock()
        self._encoder = encoder if encoder and encoder.concurrent else None
        self._opening = threading.Lock()
        self._key = key or uuid.uuid4().hex
        _runs[self._key] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _found, (self._key,)

    def gathering(self, encoder: BatchEncoder) -> AbstractContextManager[object]:
        """Return what to hold while a task's rows are gathered.

        An encoder in Python holds the GIL, so that gathering two shards at once would gain nothing.
        """
        return self._gathering if encoder.concurrent else self._gathering_alone

    def open_encoder(self, job: Job) -> BatchEncoder:
        """The job's encoder: one for all threads if it can serve several at once, else a new one."""
        with self._opening:
            encoder = self._encoder or job.open_encoder()
            if encoder.concurrent:
                self._encoder = encoder
            return encoder


def _found(key: str) -> Run:
    with _lock:
        return _runs.get(key) or Run(key=key)
