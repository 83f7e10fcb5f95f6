"""Reopen a finished dataset together with its source, for repair and trace.

The source must have the same content or revision as at the build. Only files with requested rows are read.
"""

import atexit
import collections
import dataclasses
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipelines.prepare.audit.consent import NONE, Consent, functions_to_run, require_own_addresses, source_to_open
from pipelines.prepare.dataset import fingerprint, own_files, plan_files, source_record
from pipelines.prepare.dataset.job import Job, decided_path
from pipelines.prepare.layouts import inputs_of, manifest_entry
from pipelines.prepare.options.config import LayoutConfig, SourceConfig
from pipelines.prepare.options.layout_config import LAYOUT_OPTIONS
from pipelines.prepare.options.source_config import LAYOUT_COLUMNS, SOURCE_OPTIONS, FunctionOption
from pipelines.prepare.plan.planning import ShardSpec, ShardTask
from pipelines.prepare.sources.columns.column_planning import complete_from_manifest, plan_types
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.ingest import objects
from pipelines.prepare.sources.parquet.groups import Pieces
from pipelines.prepare.sources.resolve import saved_datasets
from pipelines.prepare.sources.resolve.features import Columns
from pipelines.prepare.sources.rows import opening, selection, user_functions
from pipelines.prepare.sources.rows.function_check import examine_functions
from pipelines.prepare.sources.rows.opening import OpenedSource, RowsOnDemand
from pipelines.prepare.sources.rows.reading import RowReader, SplitSource, describe_rows
from pipelines.prepare.sources.rows.selection import HoldOut
from pipelines.prepare.sources.rows.unused_rows import DecidedRows
from pipelines.prepare.sources.rows.user_functions import UserFunction
from pipelines.prepare.tokenize import engines
from tfrecord_io.errors import ConfigError, FingerprintMismatchError, FormatError, SourceError
from tfrecord_io.format.json_fields import WRONG, count, flag, object_of
from tfrecord_io.manifest import REMAKE, Manifest
from tfrecord_io.shown import without_access

_SAMPLE_ROWS = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReopenedDataset:
    """A finished dataset with its source open.

    `job`: a job that can read any of the dataset's rows. `generations`: the jobs of the build and of each append, each
    with only the rows that it added. `rows`: the rows of each source split.
    """

    manifest: Manifest
    job: Job
    generations: Sequence[Job]
    rows: Mapping[str, RowsOnDemand]

    @property
    def source_name(self) -> str:
        """Name of a Hub dataset, or the kind of any other source."""
        if self.manifest.source["kind"] == "object":
            return "an object given in Python"
        return str(self.manifest.source.get("name") or self.manifest.source["kind"])

    def task(self, split: str, index: int) -> tuple[ShardTask, Job]:
        """Return task `index` of a split, with its rows located in the reopened source, and the job that made it."""
        tasks = [generation.tasks.get(split, 0) for generation in own_files.generations_of(self.manifest)]
        number = next(number for number, end in enumerate(itertools.accumulate(tasks)) if index < end)
        job = self.generations[number]
        planned = plan_files.task_of(job, (split, index, job.splits[split].tasks_before + tasks[number]))
        return dataclasses.replace(planned, pieces=self.pieces(split, planned.row_ranges)), job

    def pieces(self, split: str, row_ranges: Sequence[tuple[int, int]]) -> Pieces:
        """Return the places of a split's rows in the source files. `row_ranges`: pairs [start, stop) of row numbers."""
        return self.rows[self.job.splits[split].source_split].pieces(row_ranges)

    def locate(self, split: str, row: int) -> tuple[str | None, int]:
        """Return a row's file and its number there, from 0; (None, `row`) if the source is on the Hub or an object."""
        if self.manifest.source["kind"] in ("hub", "object"):
            return None, row
        file, file_row = self.rows[self.job.splits[split].source_split].locate(row)
        return (without_access(file.path) if file else None), file_row


def reopen(root: str, manifest: Manifest, *, consent: Consent = NONE) -> ReopenedDataset:
    """Open the dataset in `root` together with its source, at the user's location or the recorded one.

    Raises: FormatError for a damaged work folder; SourceError if the source cannot be opened, or the user must name it;
        ConfigError if the user must name functions; FingerprintMismatchError if the source has changed.
    """
    record = source_record.read(root, manifest.fingerprint)
    columns, hold_outs, spec = _options(root, manifest)
    require_own_addresses([*record.get("data_files", ()), *record.get("source_options", ())], consent, root=root)
    source = SourceConfig(
        dataset=source_to_open(record["dataset"], consent, root=root),
        more_paths=() if consent.source else tuple(source_to_open(path, consent, root=root) for path in record["more"]),
        **{name: record[name] for name in ("config", "revision", *SOURCE_OPTIONS, "object_splits") if name in record},
        **columns,
    )
    where, expected = source_record.source_path(root, manifest.fingerprint), manifest.options.get("functions", [])
    stored = user_functions.restore(record.get("functions", []), expected=expected, where=where)
    functions = tuple(functions_to_run(stored, consent, root=root))
    options = tuple(FunctionOption(kind=function.kind, spec=function.spec) for function in stored)
    opened = _open(dataclasses.replace(source, functions=options), consent, former=source_record.files_of(manifest))
    if listed := fingerprint.differences(source_record.identity_of(manifest), dict(opened.listing.identity)):
        raise FingerprintMismatchError(
            f"{root}: the source has changed since the dataset was made ({listed}); the dataset was not changed",
            remedy="give the path of the unchanged source with --source, or build again with --overwrite",
        )
    rows = _rows(root, manifest, opened)
    readers, described = _readers(opened, rows, functions)
    inputs = inputs_of(spec.layout, source)
    plan = complete_from_manifest(plan_types(source, described, kind=manifest.source["kind"], inputs=inputs), manifest)
    made_by = {engine for counts in manifest.engines.get("splits", {}).values() for engine in counts}
    whole = Job(
        root=root,
        name=manifest.name,
        fingerprint=manifest.fingerprint,
        splits=_splits(root, manifest, readers, plan, hold_outs),
        # All fast engines give the same tokens.
        engine="hf" if any(map(engines.is_reference, made_by)) else "auto",
        spec=dataclasses.replace(spec, columns=plan),
    )
    jobs, tasks = [], collections.Counter[str]()
    for generation in own_files.generations_of(manifest):
        splits = {
            name: dataclasses.replace(whole.splits[name], ranges=ranges, tasks_before=tasks[name])
            for name, ranges in generation.rows.items()
        }
        jobs.append(dataclasses.replace(whole, fingerprint=generation.fingerprint, splits=splits))
        tasks.update(generation.tasks)
    return ReopenedDataset(manifest=manifest, job=whole, generations=jobs, rows=rows)


def _options(root: str, manifest: Manifest) -> tuple[dict[str, Any], tuple[HoldOut, ...], ShardSpec]:
    options = manifest.options
    try:
        more = object_of(LayoutConfig, options, LAYOUT_OPTIONS)
        layout = LayoutConfig(name=options["layout"], max_length=manifest.row_length, **more)
        if manifest.layout != manifest_entry(layout, length=manifest.row_length):
            raise ValueError("the layout differs from the options")
        names = ("text_columns", "label_column", "keep_columns", "label_classes", *LAYOUT_COLUMNS)
        columns = object_of(SourceConfig, options, names)
        spec = ShardSpec(
            columns=ColumnPlan(texts=()),
            schema=manifest.schema,
            layout=layout,
            length=manifest.row_length,
            facts=manifest.tokenizer,
            compression=manifest.compression,
            seed=count(options["seed"]),
            shuffle=flag(options["shuffle"]),
        )
        return columns, tuple(map(HoldOut.from_json, options.get("hold_out", ()))), spec
    except (ConfigError, *WRONG) as error:
        cause = f"{root}: the manifest has options that this library does not write ({error!r:.200})"
        raise FormatError(cause, remedy=REMAKE) from error


def _open(source: SourceConfig, consent: Consent, *, former: Sequence[Mapping[str, Any]]) -> OpenedSource:
    if consent.source and source.object_splits and saved_datasets.is_saved(source.dataset):
        # The parts of the object are in a folder that lasts until this process ends.
        home = tempfile.TemporaryDirectory(prefix="prep-tfrecords-")
        atexit.register(home.cleanup)
        folder, splits = objects.store_saved(source.dataset, home.name)
        source = dataclasses.replace(source, dataset=folder, object_splits=splits)
    try:
        return opening.open_source(source, columns=None, former=former)
    except SourceError as error:
        if consent.source or source.object_splits:
            raise
        remedy = f"{error.remedy}; give its new path with --source if it has moved"
        raise SourceError(error.cause, remedy=remedy) from error


def _rows(root: str, manifest: Manifest, opened: OpenedSource) -> dict[str, RowsOnDemand]:
    rows = {}
    # The latest generation lists the most files. Files that it does not list belong to no split of the dataset.
    for generation in own_files.generations_of(manifest):
        for name in generation.rows:
            source_split = source_record.origin_of(manifest, name)
            if source_split not in opened.listing.splits:
                cause = f"{root}: the source no longer has the split {source_split!r}"
                raise FingerprintMismatchError(cause, remedy="give the path of the unchanged source with --source")
            file_rows = plan_files.read_file_rows(root, generation.fingerprint, name)
            rows[source_split] = RowsOnDemand(opened, source_split, file_rows, is_longer=bool(manifest.generations))
    return rows


def _readers(
    opened: OpenedSource, rows: Mapping[str, RowsOnDemand], functions: tuple[UserFunction, ...]
) -> tuple[dict[str, RowReader], dict[str, Columns]]:
    readers, columns = {}, {}
    for name, stored in rows.items():
        reader = RowReader(split=name, types=opened.types(name), addresses=opened.addresses)
        readers[name], columns[name] = reader, opened.columns[name]
        if functions:
            samples, num_rows = _samples(reader, stored), stored.num_rows
            applied, columns[name] = examine_functions(functions, columns[name], samples, split=name, rows=num_rows)
            readers[name] = dataclasses.replace(reader, functions=applied)
    return readers, columns


def _samples(reader: RowReader, rows: RowsOnDemand) -> Iterator[tuple[pa.Table, str]]:
    for start in range(0, rows.num_rows, _SAMPLE_ROWS):
        stop = min(start + _SAMPLE_ROWS, rows.num_rows)
        batches = [batch for _, batch in reader.read(rows.pieces([(start, stop)]), reader.types.names)]
        yield pa.Table.from_batches(batches), describe_rows(start, stop - start, split=reader.split)


def _splits(
    root: str, manifest: Manifest, readers: Mapping[str, RowReader], plan: ColumnPlan, hold_outs: Sequence[HoldOut]
) -> dict[str, SplitSource]:
    held = {hold_out.name for hold_out in hold_outs}
    origins = {name: source_record.origin_of(manifest, name) for name in manifest.splits if name not in held}
    sources = {  # `reopen` sets the row ranges of each generation
        name: SplitSource(name=name, source_split=origin, ranges=(), reader=readers[origin])
        for name, origin in origins.items()
    }
    seed = count(manifest.options["seed"])
    splits = selection.divide(sources, hold_outs, columns=plan.content, optional=plan.optional, seed=seed)
    if {"dedup", "decontaminate"} & manifest.options.keys():
        for name, split in splits.items():
            path, num_rows = decided_path(root, manifest.fingerprint, name), manifest.splits[name].ledger.rows_of_split
            decided = DecidedRows(path=path, num_rows=num_rows)
            splits[name] = dataclasses.replace(split, reader=dataclasses.replace(split.reader, decided=decided))
    return splits
