"""The launcher: what a build does, from the request to the manifest.

open source, open tokenizer     open_job        side by side, with every check that needs no rows
claim the output                reservation     under the lock, as soon as the fingerprint is known: no other dataset
                                                is there; a complete one ends the build. Looked at again before the
                                                job's first file is written: gs:// has no lock
open the job                    open_job        rows located, or ingested first; then all that decides bytes is known
plan                            split_plans     a sample, blocks, shards; or the plan of an earlier run
run tasks                       beam.pipeline   those without a valid receipt
commit                          dataset.commit  as the last step of the run
"""

import contextlib
import dataclasses
import functools
import importlib
import logging
import os
import threading
import time
from collections.abc import Callable

from pipelines.prepare import storage
from pipelines.prepare.dataset import (
    fingerprint,
    own_files,
    plan_files,
    receipts,
    reservation,
    source_record,
    tfds,
)
from pipelines.prepare.dataset.commit import check_error_rate, commit
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.launch import split_plans, task_runs
from pipelines.prepare.launch.appending import NothingNewError
from pipelines.prepare.launch.open_job import OpenJob, Request, open_job, open_request
from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.process import imports
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.sources.rows import selection
from pipelines.prepare.storage import local_storage
from pipelines.prepare.tokenize import engines
from tfrecord_io import manifest
from tfrecord_io.errors import FingerprintMismatchError, FormatError
from tfrecord_io.format.json_fields import WRONG, count, mapping
from tfrecord_io.manifest import Manifest


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
    if config.beam_args:
        # Importing Beam takes a second, which a finished dataset should not cost.
        task_runs.check(config.beam_args, root=root)
    elif config.append or not os.path.exists(os.path.join(root, manifest.FILE_NAME)):
        threading.Thread(target=_import_beam, daemon=True).start()
    request = open_request(config)
    with local_storage.held(root, work_folder=WORK_FOLDER):
        reservation.check(root, items=request.early_items(), overwrite=config.overwrite, former=request.former)
        try:
            result, made, every = _finished(request) or _make(request, watch=watch)
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


def _import_beam() -> None:
    # Other work until Beam is needed often releases the interpreter. An error is raised again, and reported, there.
    with contextlib.suppress(Exception), imports.one_at_a_time:
        importlib.import_module("pipelines.prepare.beam.pipeline")


def _finished(request: Request) -> tuple[Manifest, int, int] | None:
    """Return the output's dataset if nothing is left to do, 0 shards to make, and the number of requested ones; else
    None.

    Raises: ManifestError if the manifest is damaged.
    """
    config, items = request.config, request.early_items()
    root = config.output.root
    found = None if items is None or config.overwrite else own_files.read_manifest(root)
    if items is None or found is None or found.fingerprint != fingerprint.fingerprint_of(items):
        return None
    try:
        place = dict(source_record.read(root, found.fingerprint))
        rows = {name: count(rows) for name, rows in mapping(place.pop("rows")).items()}
    except (FormatError, *WRONG):
        return None
    here = source_record.location_of(config.source, request.found, request.functions)
    needed = selection.needed_source_splits(config.source, list(request.found.listing.splits))
    # If the source has moved, the new location must be written down for `verify --repair` and `trace`.
    if place != {"more": [], **here} or not set(needed) <= set(rows):
        return None
    chosen = selection.select_ranges(config.source, rows)
    for name, selected in chosen.items():
        ranges = [list(span) for span in selected.ranges]
        is_there = name in found.splits and found.source["splits"].get(name) == ranges
        if not is_there or source_record.origin_of(found, name) != selected.source_split:
            return None
    splits = [found.splits[name] for name in chosen]
    made_by = {name for names in found.engines.get("splits", {}).values() for name in names}
    if config.engine == "hf" and not all(map(engines.is_reference, made_by)):
        return None
    ledgers = [split.ledger for split in splits]
    bad, usual = sum(sum(each.unusable.values()) for each in ledgers), sum(e.rows_in - e.rows_left_out for e in ledgers)
    sizes, shards = storage.sizes(root), [shard for split in splits for shard in split.shards]
    is_whole = (
        all(sizes.get(shard.name) == shard.num_bytes for shard in shards)
        and tfds.files(found).keys() <= sizes.keys()
        and bool(storage.list_names(storage.join(root, "tokenizer")))
    )
    if not is_whole or bad > config.max_error_rate * usual:  # too many rejected rows are the commit's to report
        return None
    reservation.sweep(root)
    return found, 0, len(shards)


def _make(request: Request, *, watch: Watch | None) -> tuple[Manifest, int, int]:
    """Return the finished dataset, and how many shards of the requested splits were made, of how many."""
    progress = Progress()
    opened = open_job(request, progress=progress)
    job, config = opened.job, opened.config
    tasks = _plan(opened)
    kept = receipts.find(job, tasks)
    missing = [task for task, receipt in zip(tasks, kept, strict=True) if receipt is None]
    if request.former is not None and tfds.files(request.former):
        _log.warning("TFDS cannot open a dataset that rows were appended to, so dataset_info.json will be removed")
    finish = functools.partial(
        commit, job, items=opened.items, identity=opened.source.identity, max_error_rate=config.max_error_rate
    )
    with watch(missing, progress) if watch else contextlib.nullcontext():
        result = _run(opened, missing, finish, progress=progress) if missing else finish()
    files = {split: result.splits[split].by_task() for split in job.splits}
    made, every = (sum(len(files[task.split][task.index]) for task in some) for some in (missing, tasks))
    return result, made, every


def _plan(opened: OpenJob) -> list[ShardTask]:
    """Return the tasks of every split's plan: the one that an earlier run left, else a new one.

    Nothing in the output is touched before every split is planned and its rows are known to be usable.
    """
    config, splits = opened.config, opened.job.splits
    plans = {split: None if config.overwrite else plan_files.read(opened.job, split) for split in splits}
    fresh = split_plans.plan_splits(opened, [split for split, plan in plans.items() if plan is None])
    check_error_rate(
        {split: (each.unusable.by_reason, each.unusable.first) for split, each in fresh.items()},
        rows={name: split.num_rows for name, split in splits.items()},
        limit=config.max_error_rate,
        exact=all(each.unusable.exact for each in fresh.values()),
    )
    opened.reserve()
    for split, planned in fresh.items():
        plan_files.write(opened.job, planned.plan, opened.source.splits[split].groups)
        plans[split] = planned.plan
    return [task for plan in plans.values() if plan for task in plan.tasks()]


def _run(opened: OpenJob, missing: list[ShardTask], finish: Callable[[], Manifest], *, progress: Progress) -> Manifest:
    """Make the missing shards, and commit."""
    with imports.one_at_a_time:
        from pipelines.prepare.beam import pipeline

    config = opened.config
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
