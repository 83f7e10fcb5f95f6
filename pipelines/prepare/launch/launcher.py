"""The launcher: what a build does, from the request to the manifest.

open source, open tokenizer     request        side by side, with every check that needs no rows
claim the output                reservation    under the lock: no other dataset is there, and none that is complete
open the job                    open_job       rows located, or ingested first; then all that decides the bytes is known
plan                            plan_one       a sample, blocks, shards; or the plan of an earlier run
run tasks                       beam.pipeline  those without a valid receipt
commit                          dataset.commit as the last step of the run
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
from collections.abc import Callable, Iterable

from pipelines.prepare.dataset import own_files, plan_files, receipts, reservation, tfds
from pipelines.prepare.dataset.commit import commit
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.launch import finished, task_runs, unusable_rows
from pipelines.prepare.launch.appending import NothingNewError
from pipelines.prepare.launch.open_job import OpenJob, open_job
from pipelines.prepare.launch.request import Request, open_request
from pipelines.prepare.launch.unusable_rows import UnusableRows
from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.plan import padding_warning, sample_rows
from pipelines.prepare.plan.blocks import forecast
from pipelines.prepare.plan.planning import ShardTask, SplitPlan, block_rows, plan_split
from pipelines.prepare.plan.sampling import Sample, measure
from pipelines.prepare.process import imports
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.storage import locking
from pipelines.terminal import stages
from tfrecord_io import manifest
from tfrecord_io.errors import ConfigError, FingerprintMismatchError
from tfrecord_io.manifest import Manifest

__all__ = ["BuildResult", "PlannedSplit", "build", "plan_one", "plan_splits"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedSplit:
    """The plan of one split, and the sample that it is based on."""

    plan: SplitPlan
    sample: Sample
    text_bytes: int
    unusable: UnusableRows


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
    with locking.held(root, work_folder=WORK_FOLDER):
        reservation.check(root, items=request.early_items(), overwrite=config.overwrite, former=request.former)
        try:
            result, made, every = finished.find(request) or _make(request, watch=watch)
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


def _make(request: Request, *, watch: Watch | None) -> tuple[Manifest, int, int]:
    """Return the finished dataset, and how many shards of the requested splits were made, of how many."""
    progress = Progress()
    opened = open_job(request, progress=progress)
    tasks = _plan_tasks(opened)
    kept = receipts.find(opened.job, tasks)
    missing = [task for task, receipt in zip(tasks, kept, strict=True) if receipt is None]
    if request.former is not None and tfds.files(request.former):
        _log.warning("TFDS cannot open a dataset that rows were appended to, so dataset_info.json will be removed")
    with watch(missing, progress) if watch else contextlib.nullcontext():
        result = _run_tasks(opened, missing, progress=progress)
    files = {split: result.splits[split].by_task() for split in opened.job.splits}
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


def _plan_tasks(opened: OpenJob) -> list[ShardTask]:
    """Return the tasks of every split's plan: the one that an earlier run left, else a new one.

    Nothing in the output is touched before every split is planned and its rows are known to be usable.
    """
    config, splits = opened.config, opened.job.splits
    plans = {split: None if config.overwrite else plan_files.read(opened.job, split) for split in splits}
    fresh = plan_splits(opened, [split for split, plan in plans.items() if plan is None])
    unusable_rows.check(
        {split: each.unusable for split, each in fresh.items()},
        rows={name: split.num_rows for name, split in splits.items()},
        limit=config.max_error_rate,
    )
    opened.reserve()
    for split, planned in fresh.items():
        plan_files.write(opened.job, planned.plan, opened.source.splits[split].groups)
        plans[split] = planned.plan
    return [task for plan in plans.values() if plan for task in plan.tasks()]


def plan_splits(opened: OpenJob, splits: Iterable[str]) -> dict[str, PlannedSplit]:
    """Sample and plan some splits, and warn if they would be nearly all padding. Raises: as `plan_one`."""
    planned = {split: plan_one(opened, split) for split in splits}
    samples = [(each.sample, opened.job.splits[split].num_rows) for split, each in planned.items()]
    padding_warning.warn(samples, opened.config, length=opened.job.spec.length)
    return planned


def plan_one(opened: OpenJob, split: str) -> PlannedSplit:
    """Sample and plan one split.

    Raises: RowsRejectedError if no row of the sample can be used; ConfigError if a shard has no room for one record.
    """
    config, spec, source = opened.config, opened.job.spec, opened.source.splits[split]
    stages.begin(f"sampling {source.num_rows:,} rows of {split}")
    sample = measure(spec, opened.encoder, source)
    if sample is None:
        reasons = sample_rows.reasons(spec, opened.encoder, source)
        raise unusable_rows.no_usable_row(split, reasons, appends=opened.request.append is not None)
    if config.output.shard_bytes < sample.record_bytes:
        raise ConfigError(
            f"--shard-size {config.output.shard_bytes} bytes, but one record takes about {sample.record_bytes:.0f}",
            remedy="give a larger --shard-size; the default is 100MB",
        )
    # If a task makes several files, the largest should have the size of a shard.
    task_bytes = round(config.output.shard_bytes / max(sample.length_shares))
    rows = block_rows(row_bytes=sample.row_bytes, shard_bytes=task_bytes)
    blocks = forecast(spec, source, sample, block_rows=rows)
    plan = plan_split(
        blocks,
        split=split,
        source_split=source.source_split,
        ranges=source.ranges,
        shard_bytes=task_bytes,
        seed=config.seed,
        shuffle=config.shuffle,
        tasks_before=opened.job.splits[split].tasks_before,
    )
    unusable = unusable_rows.find(spec.columns, source, sample.read)
    return PlannedSplit(plan=plan, sample=sample, text_bytes=blocks.text_bytes, unusable=unusable)


def _run_tasks(opened: OpenJob, missing: list[ShardTask], *, progress: Progress) -> Manifest:
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
