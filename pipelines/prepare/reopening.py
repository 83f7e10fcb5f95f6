"""A finished dataset opened again together with its source: what repair and trace start from.

    manifest.json                 options, schema, tokenizer facts    ─┐
    .prep/FINGERPRINT/source.json where the source is, the user's steps├──►  the job that made it, and its plans
    .prep/FINGERPRINT/SPLIT/plan.json                                 ─┘

The source is opened and must be what it was: the same files with the same content, or the same revision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipelines.prepare import early_source, steps, workspace
from pipelines.prepare.column_planning import plan_columns
from pipelines.prepare.config import LAYOUT_COLUMNS, LAYOUT_OPTIONS, LayoutConfig, SourceConfig
from pipelines.prepare.job import Job
from pipelines.prepare.layouts import layout_of
from pipelines.prepare.planning import ShardTask, SplitPlan
from pipelines.prepare.sources import Source
from pipelines.prepare.stepping import stepped
from tfrecord_io.errors import FingerprintMismatchError, FormatError
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Schema

__all__ = ["Reopened", "reopen"]

_NO_PLAN = "copy .prep/ again from where the dataset was made, or build it anew with --overwrite"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reopened:
    """A finished dataset, the job that made it, its plans by split, and its source."""

    manifest: Manifest
    job: Job
    plans: Mapping[str, SplitPlan]
    source: Source

    def task(self, split: str, index: int) -> ShardTask:
        """Task `index` of a split."""
        return self.plans[split].tasks()[index]


def reopen(root: str, manifest: Manifest, *, dataset: str | None = None) -> Reopened:
    """Opens the source of the dataset in `root`; `dataset` says where it is now, if it was moved.

    Raises: FormatError if the work folder is gone or damaged; SourceError if the source cannot be opened;
        FingerprintMismatchError if it is not what it was.
    """
    place = workspace.read_place(root, manifest.fingerprint)
    options = manifest.options
    config = SourceConfig(
        dataset=dataset or place["dataset"],
        more=() if dataset else tuple(place.get("more", ())),
        config=place.get("config"),
        revision=place.get("revision"),
        splits=tuple(manifest.splits),
        text_columns=tuple(options["text_columns"]),
        label_column=options["label_column"],
        keep_columns=tuple(options["keep_columns"]),
        **{name: options[name] for name in LAYOUT_COLUMNS if name in options},
    )
    found = steps.restore(
        place.get("steps", []),
        expected=options.get("steps", []),
        place=workspace.source_path(root, manifest.fingerprint),
    )
    source = early_source.awaited(config)
    _require_same(source, manifest, root=root)
    source = stepped(source, found)
    job = _job(root, manifest, config=config, source=source)
    plans = {split: _plan(job, split, tasks=len(manifest.splits[split].by_task())) for split in manifest.splits}
    return Reopened(manifest=manifest, job=job, plans=plans, source=source)


def _require_same(source: Source, manifest: Manifest, *, root: str) -> None:
    before = {name: value for name, value in manifest.source.items() if name != "splits"}
    if listed := workspace.differences(before, dict(source.identity)):
        raise FingerprintMismatchError(
            f"{root}: the source has changed since the dataset was made ({listed}); nothing was changed here",
            remedy="name the place of the unchanged source with --source, or build anew with --overwrite",
        )


def _job(root: str, manifest: Manifest, *, config: SourceConfig, source: Source) -> Job:
    options = manifest.options
    layout = LayoutConfig(
        name=options["layout"],
        max_length=manifest.row_length,
        **{name: options[name] for name in LAYOUT_OPTIONS if name in options},
    )
    columns = plan_columns(config, source, inputs=layout_of(layout).inputs(config))
    ranges = manifest.source["splits"]
    label = (columns.label.feature,) if columns.label else ()
    tokens = manifest.schema.features[: len(manifest.schema.features) - len(label) - len(columns.kept)]
    job = Job(
        root=root,
        name=manifest.name,
        fingerprint=manifest.fingerprint,
        splits={
            name: dataclasses.replace(split, ranges=_ranges(ranges[name])) for name, split in source.splits.items()
        },
        columns=columns,
        schema=Schema((*tokens, *label, *columns.kept)),
        layout=layout,
        length=manifest.row_length,
        facts=manifest.tokenizer,
        compression=manifest.compression,
        seed=options["seed"],
        shuffle=options["shuffle"],
    )
    if job.schema != manifest.schema:
        raise FormatError(
            f"{root}: the source's columns give the features {', '.join(job.schema.names)}, "
            f"the manifest has {', '.join(manifest.schema.names)}",
            remedy="build the dataset anew with --overwrite",
        )
    return job


def _ranges(spans: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(start), int(stop)) for start, stop in spans)


def _plan(job: Job, split: str, *, tasks: int) -> SplitPlan:
    plan = workspace.read_plan(job, split)
    if plan is None:
        raise FormatError(f"{job.work_path(split, 'plan.json')}: no such file", remedy=_NO_PLAN)
    if len(plan.shards) != tasks:
        raise FormatError(
            f"{job.work_path(split, 'plan.json')}: {len(plan.shards)} shards, but the manifest has {tasks}",
            remedy=_NO_PLAN,
        )
    return plan
