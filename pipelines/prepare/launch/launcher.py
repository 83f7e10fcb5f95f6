"""The launcher: what a build does, from the request to the manifest.

open the source, open the tokenizer     opened_request    side by side; every check that needs no rows
claim the output                        reservation       one job at a time; no other dataset is there
is it complete already?                 finished          then nothing is read again
the job                                 ingesting,        rows located, or ingested first; what decides the bytes
                                        resolved_job
plan                                    plan_one          a sample, blocks, shards; or the plan of an earlier run
run tasks                               beam.pipeline     those without a valid receipt
commit                                  dataset.commit    as the last step of the run
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pipelines.prepare.dataset import made_shards, own_files, plan_files, reservation, tfds
from pipelines.prepare.dataset.commit import commit
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.launch import finished, ingesting, opened_request, unusable_rows
from pipelines.prepare.launch.appending import NothingNewError
from pipelines.prepare.launch.opened_request import OpenedRequest
from pipelines.prepare.launch.resolved_job import Resolved
from pipelines.prepare.launch.unusable_rows import UnusableRows
from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.plan import label_warnings, padding_warning, sample_rows
from pipelines.prepare.plan.blocks import forecast
from pipelines.prepare.plan.planning import ShardTask, SplitPlan, block_rows, plan_split
from pipelines.prepare.plan.sampling import Sample, measure
from pipelines.prepare.process import imports
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.storage import locking
from pipelines.terminal import stages
from tfrecord_io import manifest
from tfrecord_io.errors import ConfigError, FingerprintMismatchError, RowsRejectedError
from tfrecord_io.format.ledger import HELD_OUT, NOT_HELD_OUT
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
    began = time.perf_counter()
    root = config.output.root
    _import_beam(config)
    try:
        request = opened_request.open_request(config)
        with locking.held(root, work_folder=WORK_FOLDER):
            result, made, every = _build(request, watch=watch)
    except NothingNewError as error:
        _log.warning("%s", error.cause)
        result = own_files.require_manifest(root)
        made, every = 0, sum(len(split.shards) for split in result.splits.values())
    return BuildResult(manifest=result, shards_made=made, shards_kept=every - made, seconds=time.perf_counter() - began)


def _build(request: OpenedRequest, *, watch: Watch | None) -> tuple[Manifest, int, int]:
    """Return the finished dataset, and how many shards of the requested splits were made, of how many."""
    config, progress = request.config, Progress()
    root, items = config.output.root, request.early_items()
    reservation.check(root, items=items, overwrite=config.overwrite, former=request.former)
    if items is not None and not config.overwrite and (found := finished.find(request, items)):
        reservation.sweep(root)
        complete, splits = found
        return complete, 0, sum(len(complete.splits[split].shards) for split in splits)
    try:
        resolved = ingesting.resolve(request, progress=progress)
        tasks = _plan_tasks(resolved, config)
    except (NothingNewError, FingerprintMismatchError):
        # The user will choose another folder, and the ingested copy would stay in this one.
        reservation.remove_copies(root, but=None)
        raise
    receipts = made_shards.find_unharmed(resolved.job, tasks)
    missing = [task for task, receipt in zip(tasks, receipts, strict=True) if receipt is None]
    _warn_of_tfds(resolved.former)
    with watch(missing, progress) if watch else contextlib.nullcontext():
        result = _run_job(resolved, missing, config, progress=progress)
    files = {split: result.splits[split].by_task() for split in resolved.job.splits}
    made, every = (sum(len(files[task.split][task.index]) for task in some) for some in (missing, tasks))
    return result, made, every


def _warn_of_tfds(former: Manifest | None) -> None:
    if former is not None and tfds.files(former):
        _log.warning("TFDS cannot open a dataset that rows were appended to, so dataset_info.json will be removed")


def _import_beam(config: PrepareConfig) -> None:
    """Check Beam's options; without any, import Beam on a thread: the work until it is needed often releases the
    interpreter.
    """
    if config.beam_args:
        # Importing Beam takes a second, which a finished dataset should not cost.
        from pipelines.prepare.beam import options

        options.check(config.beam_args, root=config.output.root)
    elif config.append or not os.path.exists(os.path.join(config.output.root, manifest.FILE_NAME)):
        threading.Thread(target=_import_quietly, daemon=True).start()


def _import_quietly() -> None:
    # An error is raised again, and reported, where Beam is needed.
    with contextlib.suppress(Exception), imports.one_at_a_time:
        importlib.import_module("pipelines.prepare.beam.pipeline")


def _no_usable_row(split: str, reasons: Mapping[str, int], *, appends: bool) -> RowsRejectedError:
    said = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    remedy = "check --text-column, --label-column and what a --filter leaves, or choose another --split"
    if reasons and all(reason.startswith("label_") for reason in reasons):
        remedy = "choose the splits that have labels with --split, and build this one by itself without --label-column"
    if reasons and set(reasons) <= {HELD_OUT, NOT_HELD_OUT}:
        remedy = "hold out more rows, or fewer: none of the sampled ones is in this split"
        if appends:
            remedy = "append more rows at once: none of these is in this split"
    return RowsRejectedError(
        f"split {split!r}: none of the sampled rows can be used{f' ({said})' if said else ''}", remedy=remedy
    )


def plan_one(resolved: Resolved, split: str, config: PrepareConfig) -> PlannedSplit:
    """Sample and plan one split.

    Raises: RowsRejectedError if no row of the sample can be used; ConfigError if a shard has no room for one record.
    """
    job = resolved.job
    source = resolved.source.splits[split]
    stages.begin(f"sampling {source.num_rows:,} rows of {split}")
    sample = measure(job.spec, resolved.encoder, source)
    if sample is None:
        reasons = sample_rows.reasons(job.spec, resolved.encoder, source)
        raise _no_usable_row(split, reasons, appends=resolved.former is not None)
    if config.output.shard_bytes < sample.record_bytes:
        raise ConfigError(
            f"--shard-size {config.output.shard_bytes} bytes, but one record takes about {sample.record_bytes:.0f}",
            remedy="give a larger --shard-size; the default is 100MB",
        )
    # If a task makes several files, the largest should have the size of a shard.
    task_bytes = round(config.output.shard_bytes / max(sample.length_shares))
    rows = block_rows(row_bytes=sample.row_bytes, shard_bytes=task_bytes)
    expected = forecast(job.spec, source, sample, block_rows=rows)
    plan = plan_split(
        expected.blocks,
        split=split,
        source_split=source.source_split,
        ranges=source.ranges,
        shard_bytes=task_bytes,
        seed=config.seed,
        shuffle=config.shuffle,
        tasks_before=job.splits[split].tasks_before,
    )
    unusable = unusable_rows.find(job.spec.columns, source, sample.read)
    return PlannedSplit(plan=plan, sample=sample, text_bytes=expected.text_bytes, unusable=unusable)


def plan_splits(resolved: Resolved, splits: Iterable[str], config: PrepareConfig) -> dict[str, PlannedSplit]:
    """Sample and plan some splits, and warn if they would be nearly all padding. Raises: as `plan_one`."""
    planned = {split: plan_one(resolved, split, config) for split in splits}
    samples = [(each.sample, resolved.job.splits[split].num_rows) for split, each in planned.items()]
    padding_warning.warn(samples, config, length=resolved.job.spec.length)
    if resolved.former is None:
        rows = sum(source.num_rows for source in resolved.source.all_splits.values())
        label_warnings.warn(resolved.job.spec.columns.label, [sample for sample, _ in samples], rows=rows)
    return planned


def _plan_tasks(resolved: Resolved, config: PrepareConfig) -> list[ShardTask]:
    """Return the tasks of every split's plan: the one that an earlier run left, else a new one.

    Nothing in the output is touched before every split is planned and its rows are known to be usable.
    """
    job = resolved.job
    plans = {split: None if config.overwrite else plan_files.read(job, split) for split in job.splits}
    fresh = plan_splits(resolved, [split for split, plan in plans.items() if plan is None], config)
    rows = {split: job.splits[split].num_rows for split in job.splits}
    unusable_rows.check({split: each.unusable for split, each in fresh.items()}, rows=rows, limit=config.max_error_rate)
    resolved.reserve(overwrite=config.overwrite)
    for split, planned in fresh.items():
        plan_files.write(job, planned.plan, resolved.source.splits[split].groups)
        plans[split] = planned.plan
    return [task for plan in plans.values() if plan for task in plan.tasks()]


def _run_job(resolved: Resolved, missing: list[ShardTask], config: PrepareConfig, *, progress: Progress) -> Manifest:
    arguments: dict[str, Any] = {
        "items": resolved.items,
        "identity": resolved.source.identity,
        "max_error_rate": config.max_error_rate,
    }
    if not missing:
        return commit(resolved.job, **arguments)
    with imports.one_at_a_time:
        from pipelines.prepare.beam import pipeline, transforms

    pipeline.run(
        resolved.job,
        missing,
        transforms.CommitArguments(**arguments),
        encoder=resolved.encoder,
        task_bytes=config.output.shard_bytes,
        workers=config.workers,
        beam_args=config.beam_args,
        progress=progress,
    )
    result = own_files.read_manifest(resolved.job.root)
    assert result is not None, "the last step of the Beam graph writes it"
    return result
