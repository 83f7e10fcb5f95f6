"""Build a dataset: the stages from the request to the manifest.

open the request     open_job          make every check that needs no rows
check the output     reservation       end here if the dataset is complete
open the job         open_job          locate the rows, find duplicates, make the fingerprint
plan                 split_plans       or take the plan of an earlier run
claim the output     reservation       check it again, since gs:// has no lock
run the tasks        shards, runners   make the shards that have no valid receipt yet
commit               dataset.commit    write the manifest
"""

import dataclasses
import functools
import logging
import time

from pipelines.prepare import runners, storage
from pipelines.prepare.dataset import fingerprint, own_files, plan_files, receipts, reservation, source_record, tfds
from pipelines.prepare.dataset.commit import check_error_rate, commit
from pipelines.prepare.launch import row_names, split_plans
from pipelines.prepare.launch.appending import NothingNewError
from pipelines.prepare.launch.built import Built
from pipelines.prepare.launch.open_job import OpenJob, OpenRequest, open_job, open_request
from pipelines.prepare.options.addresses import ADDRESS
from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.process.progress import Progress, Watch, unwatched
from pipelines.prepare.runners import here
from pipelines.prepare.runners.runner import Runner
from pipelines.prepare.shards import shard_maker
from pipelines.prepare.sources.rows import selection
from pipelines.prepare.storage import local_storage
from pipelines.prepare.tokenize import engines
from tfrecord_io.errors import FingerprintMismatchError, FormatError, OutputError
from tfrecord_io.format.json_fields import WRONG, count, mapping
from tfrecord_io.manifest import Ledger, Manifest
from tfrecord_io.shown import some

_log = logging.getLogger(__name__)


def build(config: PrepareConfig, *, watch: Watch = unwatched) -> Built:
    """Build the dataset that `config` describes, or complete an unfinished build.

    Raises: a PrepError for every fault that a user can cause; then no manifest is written.
    """
    root, handler = logging.getLogger(), logging.lastResort or logging.NullHandler()
    if not root.handlers:  # Beam would configure it, and then the caller's `logging.basicConfig` would do nothing
        root.addHandler(handler)
    try:
        return _build(config, watch=watch)
    finally:
        root.removeHandler(handler)
        here.end_idle()


def _build(config: PrepareConfig, *, watch: Watch) -> Built:
    began, root = time.perf_counter(), config.output.root
    runner = runners.choose(config.beam_args, workers=config.workers)
    runner.check(root)
    if not runner.is_here and (folder := storage.local_path(root)) is not None:
        # Remote workers may have another current folder.
        config, root = dataclasses.replace(config, output=dataclasses.replace(config.output, root=folder)), folder
    request = open_request(config)
    with local_storage.locked(root):
        reservation.check(root, items=request.early_items(), overwrite=config.overwrite, former=request.former)
        try:
            dataset, made, kept = _complete_dataset(request) or _make_missing(request, runner, watch=watch)
        except NothingNewError as error:
            _log.warning("%s", error.cause)
            reservation.sweep(root)
            dataset, made = own_files.require_manifest(root), 0
            kept = sum(len(split.shards) for split in dataset.splits.values())
        except FingerprintMismatchError:
            # The user will choose another output folder, so the copy of the rows is useless here.
            reservation.remove_copies(root, but=None)
            raise
    return Built(root=root, manifest=dataset, shards_made=made, shards_kept=kept, seconds=time.perf_counter() - began)


def _complete_dataset(request: OpenRequest) -> tuple[Manifest, int, int] | None:
    config, items = request.config, request.early_items()
    root = config.output.root
    dataset = None if items is None or config.overwrite else own_files.read_manifest(root)
    if items is None or dataset is None or dataset.fingerprint != fingerprint.fingerprint_of(items):
        return None
    try:
        recorded = dict(source_record.read(root, dataset.fingerprint))
        rows = {name: count(rows) for name, rows in mapping(recorded.pop("rows")).items()}
    except (FormatError, *WRONG):
        return None
    location = source_record.location_of(config.source, request.source, request.functions)
    needed = selection.needed_source_splits(config.source, list(request.source.listing.splits))
    # If the source has moved, `verify --repair` and `trace` need the new location on record.
    if recorded != {"more": [], **location} or not set(needed) <= set(rows):
        return None
    requested = selection.select_ranges(config.source, rows)
    for name, (source_split, ranges) in requested.items():
        if name not in dataset.splits or dataset.source["splits"].get(name) != list(map(list, ranges)):
            return None
        if source_record.origin_of(dataset, name) != source_split:
            return None
    engine_names = {name for names in dataset.engines.get("splits", {}).values() for name in names}
    shards = [shard for name in requested for shard in dataset.splits[name].shards]
    sizes, ledger = storage.sizes(root), Ledger.total(shard.ledger for shard in shards)
    if (
        (config.engine == "hf" and not all(map(engines.is_reference, engine_names)))
        or any(sizes.get(shard.name) != shard.num_bytes for shard in shards)
        or not tfds.files(dataset).keys() <= sizes.keys()
        or not storage.list_names(storage.join(root, "tokenizer"))
        # If too many rows were rejected, the commit reports it.
        or ledger.rows_rejected > config.max_error_rate * (ledger.rows_in - ledger.rows_filtered)
    ):
        return None
    reservation.sweep(root)
    return dataset, 0, len(shards)


def _make_missing(request: OpenRequest, runner: Runner, *, watch: Watch) -> tuple[Manifest, int, int]:
    progress = Progress()
    opened = open_job(request, runner=runner, progress=progress)
    with row_names.by_file(opened):
        tasks, task_bytes = _plan(opened)
        receipts_of_tasks = receipts.find(opened.job, tasks)
        missing = [task for task, receipt in zip(tasks, receipts_of_tasks, strict=True) if receipt is None]
        if request.former is not None and tfds.files(request.former):
            _log.warning("TFDS cannot open a dataset with appended rows, so dataset_info.json will be removed")
        doing, num_rows = f"making {some(len(missing), 'shard')}, reading", sum(task.num_rows for task in missing)
        with watch(doing, num_rows, progress):
            dataset = _run(opened, missing, runner, task_bytes=task_bytes, progress=progress)
    shards_of = {split: dataset.splits[split].by_task() for split in opened.job.splits}
    made, total = (sum(len(shards_of[task.split][task.index]) for task in part) for part in (missing, tasks))
    return dataset, made, total - made


def _plan(opened: OpenJob) -> tuple[list[ShardTask], int]:
    config, splits = opened.config, opened.job.splits
    plans = {split: None if config.overwrite else plan_files.read(opened.job, split) for split in splits}
    for split, plan in plans.items():
        if plan is not None:
            plan_files.relocate(opened.job, plan, opened.job.splits[split].groups)
    fresh = split_plans.plan_splits(opened, [split for split, plan in plans.items() if plan is None])
    check_error_rate(
        {
            split: split_plans.find_unused(opened.job.spec.columns, opened.job.splits[split], sample.read)
            for split, (_, sample) in fresh.items()
        },
        rows={name: split.num_rows for name, split in splits.items()},
        limit=config.max_error_rate,
    )
    _require_space(config, sum(plan.predicted_bytes for plan, _ in fresh.values()))
    opened.reserve()
    for split, (plan, _) in fresh.items():
        plan_files.write(opened.job, plan, opened.job.splits[split].groups)
        plans[split] = plan
    planned = [plan for plan in plans.values() if plan]
    # With --bucket-lengths, a task makes a shard of each length.
    of_tasks = [plan.predicted_bytes // plan.num_shards for plan in planned]
    return [task for plan in planned for task in plan.tasks()], max([config.output.shard_bytes, *of_tasks])


def _require_space(config: PrepareConfig, num_bytes: int) -> None:
    # --overwrite deletes the former shards first.
    free = None if config.overwrite else storage.free_bytes(config.output.root)
    if free is not None and num_bytes > free:
        raise OutputError(
            f"{config.output.root}: the shards take about {num_bytes / 1e9:,.3f} GB, but {free / 1e9:,.3f} GB are free",
            remedy="free some space, choose an --output on another disk or a bucket, or add --compression gzip",
        )


def _run(opened: OpenJob, missing: list[ShardTask], runner: Runner, *, task_bytes: int, progress: Progress) -> Manifest:
    job, config = opened.job, opened.config
    finish = functools.partial(
        commit, job, items=opened.items, identity=opened.identity, max_error_rate=config.max_error_rate
    )
    if not missing:
        return finish()
    shard_maker.make(
        job,
        [plan_files.key_of(task) for task in missing],
        finish,
        runner=runner,
        encoder=opened.encoder,
        task_bytes=task_bytes,
        workers=config.workers,
        progress=progress,
    )
    manifest = own_files.read_manifest(job.root)
    if manifest is None or manifest.fingerprint != job.fingerprint:
        raise OutputError(
            f"{job.root}: the job is done, but there is no manifest.json here",
            remedy=f"workers on other machines need an --output that they share with this one, such as {ADDRESS}",
        )
    return manifest
