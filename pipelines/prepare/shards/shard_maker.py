"""Make the shards of a job's tasks with any runner."""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.dataset import plan_files, receipts, reservation
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.plan_files import TaskKey
from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.process import imports, memory
from pipelines.prepare.process.cores import cores
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.runners import here
from pipelines.prepare.runners.child import WorkerDiedError
from pipelines.prepare.runners.runner import Runner, Work
from pipelines.prepare.shards import shard_writer
from tfrecord_io.errors import PrepError

_REMEDY = "run the same command again, which keeps finished shards; if it happens again, give {}"
_LESS_MEMORY = (
    "a smaller --shard-size or --workers; if a row of the source has hundreds of MB, leave it out with "
    "--filter 'length(0, 10000000)'"
)


def make(
    job: Job,
    keys: Sequence[TaskKey],
    finish: Callable[[], object],
    *,
    runner: Runner,
    encoder: BatchEncoder,
    task_bytes: int,
    workers: int | None,
    progress: Progress,
) -> None:
    """Make the shards of the tasks with these keys on `runner`, then call `finish` there.

    `encoder` is unusable afterwards if other processes make the shards. `task_bytes`: approximate size of a shard. If a
    chat template takes too long in a worker, this process makes the shard again, with one child process per
    conversation, to identify the row.

    Raises: PrepError if a worker process died; errors of `shard_writer.write` and of the runner.
    """
    processes, maker = 0, ShardMaker(job)
    if runner.is_here:
        is_local = storage.local_path(job.root) is not None
        # For a bucket, two processes per core: one makes a shard while the other uploads one.
        default, threaded = cores() if is_local else 2 * cores(), is_local and encoder.concurrent
        processes = here.num_processes(
            len(keys), task_bytes=task_bytes, wanted=workers, default=default, threaded=threaded
        )
        threads = max(1, cores() // max(1, processes))
        maker = ShardMaker(job, threads, _packed(encoder) if processes else b"", encoder=None if processes else encoder)
    place = f"{job.root} {job.work_path()}"
    work = Work(function=maker, tasks=keys, finish=finish, processes=processes, name=job.name, place=place)
    try:
        runner.run(work, progress)
    except WorkerDiedError as died:
        if died.exit_code != -signal.SIGPROF:
            instead = _LESS_MEMORY if died.exit_code == -signal.SIGKILL else "another --engine, such as --engine hf"
            raise maker.failed(died.task, f"the worker process that made it {died.how}", instead) from died
        maker(died.task, progress)
        done = receipts.find(job, [plan_files.task_of(job, key) for key in keys])
        left = [key for key, receipt in zip(keys, done, strict=True) if receipt is None]
        limits: Any = {"task_bytes": task_bytes, "workers": workers, "progress": progress}
        make(job, left, finish, runner=runner, encoder=job.open_encoder(), **limits)
    if processes:  # a worker that died may have left an incomplete file
        reservation.sweep(job.root)


def _packed(encoder: BatchEncoder) -> bytes:
    # This frees 25 to 90 MB. A pickled encoder saves each worker process a second and 130 MB.
    pickled = b"" if encoder.reference is None else pickle.dumps(encoder)
    for unused in filter(None, (encoder.reference, encoder)):
        vars(unused).clear()  # the caller still holds the encoder
    memory.release_freed()
    return pickled


class ShardMaker:
    """Callable that makes the shards of one task. The first call in a process opens the encoder.

    Threads of a Beam worker may call it at once: one call runs per core, or only one if the encoder is not concurrent.
    """

    def __init__(self, job: Job, threads: int = 1, packed: bytes = b"", *, encoder: BatchEncoder | None = None) -> None:
        """Use `encoder`; without it, unpickle `packed`; if that is empty, open the job's. `threads`: per shard."""
        self._job, self._threads, self._packed, self._encoder = job, threads, packed, encoder
        self._opening, self._slots = threading.Lock(), threading.BoundedSemaphore(cores())

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardMaker, (self._job, self._threads, self._packed)

    def __call__(self, key: TaskKey, progress: Progress) -> dict[str, int]:
        """Make the shards of the task with this key, unless it has a valid receipt. Return counts by name.

        Raises: as `shard_writer.write`; PrepError if the memory limit is exceeded.
        """
        task = plan_files.task_of(self._job, key)
        # When a task fails, a Beam runner repeats its whole group, including finished tasks.
        if storage.exists(self._job.receipt_path(task)) and (earlier := receipts.find(self._job, [task])[0]):
            return _counts(earlier)
        encoder = self._open()
        with self._slots:
            try:
                receipt = shard_writer.write(task, self._job, encoder, threads=self._threads, progress=progress)
            except MemoryError as error:
                raise self.failed(key, "making this shard takes more memory than allowed", _LESS_MEMORY) from error
        return _counts(receipt)

    def prepare(self) -> None:
        """Open the encoder before this process is forked, unless that would open a client of remote storage."""
        if not any(split.reader.functions for split in self._job.splits.values()):
            imports.start_worker()  # no imports of libraries that user functions may need
        if self._packed or storage.local_path(self._job.root) is not None:
            self._open()

    def _open(self) -> BatchEncoder:
        with self._opening:
            if self._encoder is None:
                # Several threads call the engine at once, so it needs no additional threads (default 32).
                os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
                if multiprocessing.parent_process() is not None:
                    os.environ.setdefault("RAYON_NUM_THREADS", str(self._threads))  # for the threads of `tokenizers`
                    pa.set_cpu_count(self._threads)
                self._encoder = pickle.loads(self._packed) if self._packed else self._job.open_encoder()
                if not self._encoder.concurrent:
                    self._slots = threading.BoundedSemaphore(1)
            return self._encoder

    def failed(self, key: TaskKey, cause: str, instead: str) -> PrepError:
        """Return the error for a task that cannot make its shards. `instead`: options to try."""
        name = self._job.shard_name(plan_files.task_of(self._job, key))
        return PrepError(f"{name}: {cause}", remedy=_REMEDY.format(instead))


def _counts(receipt: receipts.Receipt) -> dict[str, int]:
    ledger, shards = receipt.ledger, receipt.shards
    return {
        "rows": ledger.rows_in,
        "rejected": ledger.rows_rejected,
        "filtered": sum(ledger.filtered_of_split.values()),
        "in_other_splits": ledger.rows_in_other_splits,
        "tokens": sum(shard.num_tokens for shard in shards),
        "bytes": sum(shard.num_bytes for shard in shards),
        "shards": len(shards),
    }
