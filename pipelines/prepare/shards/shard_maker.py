"""Shard maker: makes the shards of a job from task keys, in this process, in worker processes or on a Beam runner."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from pipelines.prepare.dataset import plan_files, reservation
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.plan_files import TaskKey
from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.process import imports, memory, workers
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.threads import Shared
from pipelines.prepare.process.workers import Done
from pipelines.prepare.shards import shard_writer
from tfrecord_io.errors import PrepError

_REMEDY = "run the same command again, which keeps finished shards; if it happens again, give {}"
_LESS_MEMORY = "a smaller --shard-size, or fewer --workers"


class ShardMaker(Shared):
    """Function that makes the shard of a task key, on `threads` threads; the first call in a process opens the encoder.

    On a runner, several threads of a process may call it: as many work at once as there are cores, but only one if the
    encoder runs in Python, which holds the interpreter.
    """

    def __init__(
        self, job: Job, threads: int = 1, pickled: bytes = b"", *, encoder: BatchEncoder | None = None
    ) -> None:
        """Take an open `encoder`, which `make` clears before workers start, or one `pickled` for another process."""
        super().__init__(job, threads, pickled)
        self._job, self._threads, self._pickled = job, threads, pickled
        self._encoder = encoder
        self._opening, self._slots = threading.Lock(), threading.BoundedSemaphore(cores())

    def __call__(self, key: TaskKey, progress: Progress) -> Done:
        """Make the shard of a task; the result is its receipt. Raises: as `shard_writer.write`; PrepError."""
        encoder = self._open()
        task = plan_files.task_of(self._job, key)
        with self._slots:
            try:
                receipt = shard_writer.write(task, self._job, encoder, threads=self._threads, progress=progress)
            except MemoryError as error:
                raise self._failed(key, "needs more memory than a process may have here", _LESS_MEMORY) from error
        ledger, shards = receipt.ledger, receipt.shards
        counts = {
            "rows": ledger.rows_in,
            "rejected": sum(ledger.unusable.values()),
            "filtered": ledger.rows_filtered,
            "in_other_splits": ledger.rows_in_other_splits,
            "tokens": sum(shard.num_tokens for shard in shards),
            "bytes": sum(shard.num_bytes for shard in shards),
            "shards": len(shards),
        }
        return Done(result=receipt, counts=counts)

    def make(
        self, keys: Sequence[TaskKey], *, processes: int, progress: Progress, is_stopped: Callable[[], bool]
    ) -> Iterator[Done]:
        """Make the shards of many tasks in worker processes, or here with 0 `processes`; yield each when it is done.

        If a chat template took so long on a row that the process ended, the shard is made again here, where each
        rendering has a child process of its own, so that the row is known.

        Raises: PrepError if a process died, which names the shard; otherwise as `workers.run`.
        """
        missing = dict.fromkeys(keys)
        function: Callable[[TaskKey, Progress], Done] = self._for_workers() if processes else self
        changed = any(split.reader.changes is not None for split in self._job.splits.values())
        start = None if changed else imports.start_worker  # user functions may need what `start_worker` leaves out
        try:
            for key, done in workers.run(
                function, keys, processes=processes, progress=progress, is_stopped=is_stopped, start=start
            ):
                del missing[key]
                yield done
            if processes:  # a replaced worker may have left a half-written file
                reservation.sweep(self._job.root, ingested=self._job.ingested)
        except workers.WorkerDiedError as died:
            if died.exit_code == -signal.SIGPROF:
                del missing[died.task]
                yield self(died.task, progress)
                yield from self.make([*missing], processes=processes, progress=progress, is_stopped=is_stopped)
                return
            instead = _LESS_MEMORY if died.is_killed else "another --engine, such as hf"
            raise self._failed(died.task, f"the worker process that made it {died.how}", instead) from died

    def _for_workers(self) -> ShardMaker:
        """Return the maker for worker processes, and free this process's encoder, which only they need: 25 to 90 MB."""
        encoder, self._encoder = self._encoder, None
        if encoder is None:
            return self
        # Opening an encoder costs each worker a second and 130 MB, so it travels, unless it is the reference itself.
        maker = self if encoder.reference is None else ShardMaker(self._job, self._threads, pickle.dumps(encoder))
        for each in filter(None, (encoder.reference, encoder)):
            vars(each).clear()  # its opener still holds it, but no longer uses it
        memory.release_freed()
        return maker

    def _open(self) -> BatchEncoder:
        with self._opening:
            if self._encoder is None:
                if multiprocessing.parent_process() is not None:
                    # Libraries get as many threads as this worker process has, not one for each core.
                    os.environ.setdefault("RAYON_NUM_THREADS", str(self._threads))  # read when `tokenizers` starts some
                    pa.set_cpu_count(self._threads)
                self._encoder = pickle.loads(self._pickled) if self._pickled else self._job.open_encoder()
                if not self._encoder.concurrent:
                    self._slots = threading.BoundedSemaphore(1)
            return self._encoder

    def _failed(self, key: TaskKey, how: str, instead: str) -> PrepError:
        name = self._job.shard_name(plan_files.task_of(self._job, key))
        return PrepError(f"{name}: {how}", remedy=_REMEDY.format(instead))
