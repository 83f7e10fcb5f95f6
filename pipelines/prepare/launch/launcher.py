"""The launcher: what a build does, from the request to the manifest.

open source, open tokenizer     request         side by side, with every check that needs no rows
claim the output                reservation     under the lock, once the fingerprint is known: no other dataset is
                                                there; a complete one ends the build (`finished`). Looked at again
                                                before the job's first file is written: gs:// has no lock
open the job                    open_job        rows located, or ingested first; then all that decides bytes is known
plan                            split_plans     a sample, blocks, shards; or the plan of an earlier run
run tasks                       beam.pipeline   those without a valid receipt
commit                          dataset.commit  as the last step of the run
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import logging
import os
import threading
import time
from collections.abc import Callable

from pipelines.prepare.dataset import own_files, plan_files, receipts, reservation, tfds
from pipelines.prepare.dataset.commit import commit
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.launch import finished, split_plans, task_runs
from pipelines.prepare.launch.appending import NothingNewError
from pipelines.prepare.launch.open_job import OpenJob, open_job
from pipelines.prepare.launch.request import Request, open_request
from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.process import imports
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.storage import local_storage
from tfrecord_io import manifest
from tfrecord_io.errors import FingerprintMismatchError
from tfrecord_io.manifest import Manifest

__all__ = ["BuildResult", "build"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildResult:
    """The finished dataset, how many shards this run made and kept, and how long it took in seconds."""

    manifest: Manifest
    shards_made: int
    shards_kept: int
    seconds: float


_log = logging.getLogger(__name__)

Watch = Callable[[list[ShardTask], Progress], contextlib.AbstractContextManager[None]]


def build(config: PrepareConfig, *, watch: Watch | None = None) -> BuildResult:
    """Make the dataset, or what is missing of it.

    `watch` is a context that is entered with the tasks to do and the counters of this build, and left when they are
    done.

    Raises: a PrepError for everything that a user can cause. Unless this returns, no manifest is written.
    """
    began, root = time.perf_counter(), config.output.root
    _import_beam(config)
    request = open_request(config)
    with local_storage.held(root, work_folder=WORK_FOLDER):
        items = request.early_items()
        reservation.check(root, items=items, overwrite=config.overwrite, former=request.former)
        try:
            result, made, every = finished.find(request) or _make(request, is_claimed=items is not None, watch=watch)
        except NothingNewError as error:
            _log.warning("%s", error.cause)
            reservation.sweep(root)
            result = own_files.require_manifest(root)
            made, every = 0, sum(len(split.shards) for split in result.splits.values())
        except FingerprintMismatchError:
            # The user will choose another folder, and the ingested copy would stay in this one.
            reservation.remove_copies(root, but=None)
            raise
    return BuildResult(manifest=result, shards_made=made, shards_kept=every - made, seconds=time.perf_counter() - began)


def _make(request: Request, *, is_claimed: bool, watch: Watch | None) -> tuple[Manifest, int, int]:
    """Return the finished dataset, and how many shards of the requested splits were made, of how many."""
    progress = Progress()
    opened = open_job(request, progress=progress)
    job = opened.job
    if not is_claimed:  # only the rows have shown the fingerprint
        reservation.check(job.root, items=opened.items, overwrite=opened.config.overwrite, former=request.former)
    tasks = _plan(opened)
    kept = receipts.find(job, tasks)
    missing = [task for task, receipt in zip(tasks, kept, strict=True) if receipt is None]
    if request.former is not None and tfds.files(request.former):
        _log.warning("TFDS cannot open a dataset that rows were appended to, so dataset_info.json will be removed")
    with watch(missing, progress) if watch else contextlib.nullcontext():
        result = _run(opened, missing, progress=progress)
    files = {split: result.splits[split].by_task() for split in job.splits}
    made, every = (sum(len(files[task.split][task.index]) for task in some) for some in (missing, tasks))
    return result, made, every


def _import_beam(config: PrepareConfig) -> None:
    """Check Beam's options; without any, import Beam on a thread: the work until it is needed often releases the
    interpreter.
    """
    if config.beam_args:
        # Importing Beam takes a second, which a finished dataset should not cost.
        task_runs.check(config.beam_args, root=config.output.root)
    elif config.append or not os.path.exists(os.path.join(config.output.root, manifest.FILE_NAME)):
        threading.Thread(target=_import_quietly, daemon=True).start()


def _import_quietly() -> None:
    # An error is raised again, and reported, where Beam is needed.
    with contextlib.suppress(Exception), imports.one_at_a_time:
        importlib.import_module("pipelines.prepare.beam.pipeline")


def _plan(opened: OpenJob) -> list[ShardTask]:
    """Return the tasks of every split's plan: the one that an earlier run left, else a new one.

    Nothing in the output is touched before every split is planned and its rows are known to be usable.
    """
    config, splits = opened.config, opened.job.splits
    plans = {split: None if config.overwrite else plan_files.read(opened.job, split) for split in splits}
    fresh = split_plans.plan_splits(opened, [split for split, plan in plans.items() if plan is None])
    split_plans.check_usable(
        {split: each.unusable for split, each in fresh.items()},
        rows={name: split.num_rows for name, split in splits.items()},
        limit=config.max_error_rate,
    )
    opened.reserve()
    for split, planned in fresh.items():
        plan_files.write(opened.job, planned.plan, opened.source.splits[split].groups)
        plans[split] = planned.plan
    return [task for plan in plans.values() if plan for task in plan.tasks()]


def _run(opened: OpenJob, missing: list[ShardTask], *, progress: Progress) -> Manifest:
    """Make the missing shards, and commit."""
    config = opened.config
    finish = functools.partial(
        commit,
        opened.job,
        items=opened.items,
        identity=opened.source.identity,
        max_error_rate=config.max_error_rate,
    )
    if not missing:
        return finish()
    with imports.one_at_a_time:
        from pipelines.prepare.beam import pipeline

    pipeline.run(
        opened.job,
        missing,
        finish,
        encoder=opened.encoder,
        task_bytes=config.output.shard_bytes,
        workers=config.workers,
        beam_args=config.beam_args,
        progress=progress,
    )
    return own_files.require_manifest(opened.job.root)
