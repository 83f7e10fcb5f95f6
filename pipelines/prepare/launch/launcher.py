"""The launcher: resolve, reserve, plan, run, commit."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipelines.prepare.dataset import engine_mismatch, made_shards, own_files, plan_files, reservation
from pipelines.prepare.dataset.commit import commit
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.launch import finished, ingesting, resolving, unusable_rows
from pipelines.prepare.launch.resolving import Resolved
from pipelines.prepare.launch.unusable_rows import Unusable
from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.plan import padding_warning, sample_rows
from pipelines.prepare.plan.blocks import forecast
from pipelines.prepare.plan.planning import ShardTask, SplitPlan, block_rows, plan_split
from pipelines.prepare.plan.sampling import Sample, measure
from pipelines.prepare.process import imports, progress
from pipelines.prepare.storage import locking
from pipelines.terminal import stages
from tfrecord_io import manifest
from tfrecord_io.errors import ConfigError, FingerprintMismatchError, PrepError, RowsRejectedError
from tfrecord_io.format.ledger import HELD_OUT, NOT_HELD_OUT
from tfrecord_io.manifest import Manifest

__all__ = ["Built", "Planned", "build", "plan_one", "warn_of_padding"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """One split's plan, and what it rests on."""

    plan: SplitPlan
    sample: Sample
    text_bytes: int
    unusable: Unusable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """The dataset, what this run did of it, and how long that took in seconds."""

    manifest: Manifest
    shards_made: int
    shards_kept: int
    seconds: float


_log = logging.getLogger(__name__)

Watch = Callable[[list[ShardTask]], contextlib.AbstractContextManager[None]]


def build(config: PrepareConfig, *, watch: Watch | None = None) -> Built:
    """Makes the dataset, or what is missing of it. `watch` is entered with the tasks to do while they are done.

    Raises: a PrepError for everything that a user can cause. Unless it returns, no manifest is written.
    """
    began = time.perf_counter()
    progress.reset()
    if config.beam_args:
        from pipelines.prepare.beam import (
            options,  # Beam takes a second to import, which a finished dataset need not pay
        )

        options.check(config.beam_args, root=config.output.root)
    elif not os.path.exists(os.path.join(config.output.root, manifest.FILE_NAME)):
        _import_soon()
    request = resolving.open_request(config)
    root, items = config.output.root, request.items()
    reservation.check(root, items=items, overwrite=config.overwrite)
    with locking.held(root, work_folder=WORK_FOLDER):
        reservation.check(root, items=items, overwrite=config.overwrite)
        if items is not None and not config.overwrite and (found := finished.find(request, items)):
            reservation.sweep(root)
            return _kept(*found, seconds=time.perf_counter() - began)
        resolved = ingesting.resolved(request)
        try:
            tasks = _planned_tasks(resolved, config)
        except FingerprintMismatchError:
            # Whoever asks for other rows takes another folder, and the copy would stay in this one.
            reservation.remove_copies(root, but=None)
            raise
        missing = _missing(resolved, tasks)
        with watch(missing) if watch else contextlib.nullcontext():
            result = _make_trusted(resolved, tasks, missing, config)
    files = {split: result.splits[split].by_task() for split in resolved.job.splits}
    made, every = (sum(len(files[task.split][task.index]) for task in some) for some in (missing, tasks))
    return Built(
        manifest=result,
        shards_made=made,
        shards_kept=every - made,
        seconds=time.perf_counter() - began,
    )


def _kept(result: Manifest, splits: Sequence[str], *, seconds: float) -> Built:
    """A dataset that was there already."""
    shards = sum(len(result.splits[split].shards) for split in splits)
    return Built(manifest=result, shards_made=0, shards_kept=shards, seconds=seconds)


def _import_soon() -> None:
    """Begins to import Beam beside the work to come, which leaves the interpreter to others much of the time."""
    threading.Thread(target=_import_quietly, daemon=True).start()


def _import_quietly() -> None:
    # What is wrong with it is said where it is needed.
    with contextlib.suppress(Exception), imports.one_at_a_time:
        importlib.import_module("pipelines.prepare.beam.pipeline")


def _none_usable(split: str, reasons: Mapping[str, int]) -> RowsRejectedError:
    said = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    remedy = "check --text-column, --label-column and what a --filter leaves, or choose another --split"
    if reasons and all(reason.startswith("label_") for reason in reasons):
        remedy = "choose the splits that have labels with --split, and build this one by itself without --label-column"
    if reasons and set(reasons) <= {HELD_OUT, NOT_HELD_OUT}:
        remedy = "hold out more rows, or fewer: none of the sampled ones is in this split"
    return RowsRejectedError(
        f"split {split!r}: none of the sampled rows can be used{f' ({said})' if said else ''}", remedy=remedy
    )


def plan_one(resolved: Resolved, split: str, config: PrepareConfig) -> Planned:
    """Samples and plans one split.

    Raises: RowsRejectedError if no row of the sample can be used; ConfigError if a shard has no room for one record.
    """
    job = resolved.job
    source = resolved.source.splits[split]
    stages.begin(f"sampling {source.num_rows:,} rows of {split}")
    sample = measure(job.spec, resolved.encoder, source)
    if sample is None:
        raise _none_usable(split, sample_rows.reasons(job.spec, resolved.encoder, source))
    if config.output.shard_bytes < sample.record_bytes:
        raise ConfigError(
            f"--shard-size {config.output.shard_bytes} bytes, but one record takes about {sample.record_bytes:.0f}",
            remedy="give a larger --shard-size; the default is 100MB",
        )
    # Of several files that a task makes, the largest is to have the size of a shard.
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
    )
    unusable = unusable_rows.find(job.spec.columns, source, sample.read)
    return Planned(plan=plan, sample=sample, text_bytes=expected.text_bytes, unusable=unusable)


def warn_of_padding(planned: Iterable[Planned], resolved: Resolved, config: PrepareConfig) -> None:
    """Warns if the splits planned now would be nearly all padding."""
    splits = resolved.job.splits
    samples = [(each.sample, splits[each.plan.split].num_rows) for each in planned]
    padding_warning.warn(samples, config, length=resolved.job.spec.length)


def _planned_tasks(resolved: Resolved, config: PrepareConfig) -> list[ShardTask]:
    """The tasks of every split's plan: what an earlier run left, else a new one.

    What is in the output is touched when all rows are known to do, and not before.
    """
    job = resolved.job
    reservation.check(job.root, items=resolved.items, overwrite=config.overwrite)
    known = {split: None if config.overwrite else plan_files.read_header(job, split) for split in job.splits}
    for header in known.values():
        if header is not None:
            plan_files.require_whole(job, header)
    fresh = {split: plan_one(resolved, split, config) for split, header in known.items() if header is None}
    warn_of_padding(fresh.values(), resolved, config)
    rows = {split: job.splits[split].num_rows for split in job.splits}
    unusable_rows.check({split: each.unusable for split, each in fresh.items()}, rows=rows, limit=config.max_error_rate)
    resolved.reserve(overwrite=config.overwrite)
    for split, planned in fresh.items():
        known[split] = plan_files.write(job, planned.plan, resolved.source.splits[split].groups)
    for planned in fresh.values():
        if planned.sample.mismatch:
            engine_mismatch.record(job, planned.sample.mismatch)
    return [task for header in known.values() if header for task in plan_files.all_tasks(header)]


def _missing(resolved: Resolved, tasks: list[ShardTask]) -> list[ShardTask]:
    found = made_shards.find_receipts(resolved.job, tasks)
    return [task for task, receipt in zip(tasks, found, strict=True) if receipt is None]


def _make_trusted(
    resolved: Resolved, tasks: list[ShardTask], missing: list[ShardTask], config: PrepareConfig
) -> Manifest:
    """Makes what is missing; and again, by the reference, what an engine had made that turned out not to be equal."""
    before = engine_mismatch.read(resolved.job)
    try:
        return _make(resolved, missing, config)
    except PrepError:
        found = engine_mismatch.read(resolved.job)
        again = _missing(resolved, tasks)
        if found == before or not again:
            raise
        assert found is not None, "nobody takes a mismatch back"
        _log.warning(
            "engine %s gave other tokens than the reference for row %d of split %r; %d shards that it made are made "
            "again by the reference",
            found.engine,
            found.row,
            found.split,
            len(again),
        )
        return _make(resolved, again, config)


def _make(resolved: Resolved, missing: list[ShardTask], config: PrepareConfig) -> Manifest:
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
        workers=config.workers,
        beam_args=config.beam_args,
    )
    result = own_files.read_manifest(resolved.job.root)
    assert result is not None, "the pipeline's last step writes it"
    return result
