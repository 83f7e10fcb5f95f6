"""A finished dataset opened again together with its source: what repair and trace start from.

    manifest.json                 options, schema, tokenizer facts    ─┐
    .prep/FINGERPRINT/source.json where the source is, the user's steps├──►  the job that made it, and its plans
    .prep/FINGERPRINT/SPLIT/plan.json                                 ─┘

The source is opened and must be what it was: the same files with the same content, or the same revision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast, get_args

from pipelines.prepare import early_source, engines, workspace
from pipelines.prepare.column_planning import plan_columns
from pipelines.prepare.config import LAYOUT_COLUMNS, LAYOUT_OPTIONS, EngineName, LayoutConfig, SourceConfig
from pipelines.prepare.consent import NONE, Consent, source_to_open, steps_to_run
from pipelines.prepare.job import Job
from pipelines.prepare.layouts import Tools, layout_of
from pipelines.prepare.opened import Source, SplitSource
from pipelines.prepare.planning import ShardTask, SplitPlan
from pipelines.prepare.sources import user_functions
from pipelines.prepare.stepping import stepped
from tfrecord_io.errors import ConfigError, FingerprintMismatchError, FormatError
from tfrecord_io.json_fields import WRONG, count, flag, items, mapping, object_of, text
from tfrecord_io.manifest import Manifest
from tfrecord_io.manifest_checks import REMAKE
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

    def open_tools(self) -> Tools:
        """The tokenizer with the engine that the dataset was made with, or by itself where that does not serve here.
        What is made again is compared with the manifest's digests in any case.
        """
        try:
            return self.job.open_tools()
        except ConfigError:
            return dataclasses.replace(self.job, engine="hf").open_tools()

    def task(self, split: str, index: int) -> ShardTask:
        """Task `index` of a split."""
        return self.plans[split].tasks()[index]


def reopen(root: str, manifest: Manifest, *, consent: Consent = NONE) -> Reopened:
    """Opens the source of the dataset in `root`: where the user says it is, or else where it was.

    Raises: FormatError if the work folder is gone or damaged; SourceError if the source cannot be opened, or is to be
        named by the user; ConfigError if its steps are; FingerprintMismatchError if it is not what it was.
    """
    place = workspace.read_place(root, manifest.fingerprint)
    asked = _asked(root, manifest)
    config = SourceConfig(
        dataset=source_to_open(place["dataset"], consent, root=root),
        more=() if consent.source else tuple(source_to_open(path, consent, root=root) for path in place["more"]),
        config=place.get("config"),
        revision=place.get("revision"),
        splits=tuple(manifest.splits),
        **asked.columns,
    )
    stored = user_functions.restore(
        place.get("steps", []), expected=asked.steps, place=workspace.source_path(root, manifest.fingerprint)
    )
    found = steps_to_run(stored, consent, root=root)
    source = early_source.awaited(config)
    _require_same(source, manifest, root=root)
    source = stepped(source, found)
    job = _job(root, manifest, asked, config=config, source=source)
    plans = {split: _plan(job, split, tasks=len(manifest.splits[split].by_task())) for split in manifest.splits}
    return Reopened(manifest=manifest, job=job, plans=plans, source=source)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Asked:
    """What the manifest's options say that was asked for."""

    columns: dict[str, Any]
    layout: LayoutConfig
    steps: list[dict[str, str]]
    ranges: dict[str, tuple[tuple[int, int], ...]]
    seed: int
    shuffle: bool


def _asked(root: str, manifest: Manifest) -> _Asked:
    """Raises: FormatError if the options are not what this library writes, or do not go with the rest."""
    options = manifest.options
    try:
        layout = LayoutConfig(
            name=options["layout"],
            max_length=manifest.row_length,
            **object_of(LayoutConfig, options, LAYOUT_OPTIONS),
        )
        if manifest.layout != {"name": layout.name, "max_length": layout.max_length, **layout.given()}:
            raise ValueError("the layout is another one than the options ask for")
        columns = {name: options[name] for name in ("text_columns", "label_column", "keep_columns")}
        found = items(options.get("steps", []))
        return _Asked(
            columns=object_of(SourceConfig, dict(options), (*columns, *LAYOUT_COLUMNS)),
            layout=layout,
            steps=[{text(key): text(value) for key, value in mapping(each).items()} for each in found],
            ranges={name: _ranges(manifest.source["splits"][name]) for name in manifest.splits},
            seed=count(options["seed"]),
            shuffle=flag(options["shuffle"]),
        )
    except (ConfigError, *WRONG) as error:
        raise FormatError(
            f"{root}: the manifest's options are none that this library writes ({error!r:.200})", remedy=REMAKE
        ) from error


def _engine(manifest: Manifest) -> EngineName:
    """The engine that made the shards; `auto` if there were several, or it is none of today's."""
    made = {engine.partition(" ")[0] for counts in manifest.engines.get("splits", {}).values() for engine in counts}
    name = made.pop() if len(made) == 1 else "auto"
    if name in get_args(EngineName):
        return cast(EngineName, name)
    return "hf" if engines.is_reference(name) else "auto"


def _require_same(source: Source, manifest: Manifest, *, root: str) -> None:
    before = {name: value for name, value in manifest.source.items() if name != "splits"}
    if listed := workspace.differences(before, dict(source.identity)):
        raise FingerprintMismatchError(
            f"{root}: the source has changed since the dataset was made ({listed}); nothing was changed here",
            remedy="name the place of the unchanged source with --source, or build anew with --overwrite",
        )


def _job(root: str, manifest: Manifest, asked: _Asked, *, config: SourceConfig, source: Source) -> Job:
    columns = plan_columns(config, source, inputs=layout_of(asked.layout).inputs(config))
    label = (columns.label.feature,) if columns.label else ()
    tokens = tuple(each for each in manifest.schema.features if each.role not in ("label", "column"))
    job = Job(
        root=root,
        name=manifest.name,
        fingerprint=manifest.fingerprint,
        splits={name: _with_ranges(split, asked.ranges[name], root=root) for name, split in source.splits.items()},
        columns=columns,
        schema=Schema((*tokens, *label, *columns.kept)),
        layout=asked.layout,
        length=manifest.row_length,
        facts=manifest.tokenizer,
        compression=manifest.compression,
        engine=_engine(manifest),
        seed=asked.seed,
        shuffle=asked.shuffle,
    )
    if job.schema != manifest.schema:
        raise FormatError(
            f"{root}: the source's columns give the features {', '.join(job.schema.names)}, "
            f"the manifest has {', '.join(manifest.schema.names)}",
            remedy="build the dataset anew with --overwrite",
        )
    return job


def _with_ranges(split: SplitSource, ranges: tuple[tuple[int, int], ...], *, root: str) -> SplitSource:
    """The split with the rows that were asked for. It comes with all of its rows. Raises: FormatError."""
    if any(stop > split.num_rows for _, stop in ranges):
        raise FormatError(
            f"{root}: the manifest has rows {ranges!r:.100} of split {split.name!r}, of which there are "
            f"{split.num_rows}",
            remedy=REMAKE,
        )
    return dataclasses.replace(split, ranges=ranges)


def _ranges(spans: Any) -> tuple[tuple[int, int], ...]:
    return tuple((start, stop) for start, stop in spans)


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
