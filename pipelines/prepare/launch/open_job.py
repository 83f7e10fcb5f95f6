"""From a request to its job: rows are located, or ingested first, and what only they show is filled in.

rows      splits, names of string labels, lengths of vectors, lengths of `--bucket-lengths auto`   ─┐
request   source, tokenizer, options                                                                ├──►  the job
--append  rows and tasks that the dataset has already                                              ─┘
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipelines.prepare import layouts, storage
from pipelines.prepare.dataset import fingerprint, reservation, source_record
from pipelines.prepare.dataset.job import Job, JobSplit
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.launch import deciding, ingesting
from pipelines.prepare.launch.request import Request
from pipelines.prepare.options import bucket_lengths
from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.plan import sampling
from pipelines.prepare.plan.spec import ShardSpec
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.sources.columns.column_planning import complete_from_manifest, plan_columns
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.rows import selection, unused_rows
from pipelines.prepare.sources.rows.reading import Source
from pipelines.prepare.sources.rows.selection import HoldOut
from tfrecord_io.schema import Schema

__all__ = ["OpenJob", "open_job"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenJob:
    """The `job`, which travels to workers, and what stays with the launcher: the rows and an open encoder.

    `items` are what the fingerprint covers, `source_rows` the rows of each split of the source.
    """

    request: Request
    source: Source
    encoder: layouts.BatchEncoder
    job: Job
    items: Mapping[str, Any]
    source_rows: Mapping[str, int]

    @property
    def config(self) -> PrepareConfig:
        """The request's options, with the lengths that `--bucket-lengths auto` chose."""
        return self.request.config

    def reserve(self) -> None:
        """Write the job's own files to the output. Raises: as `reservation.reserve`."""
        request, job = self.request, self.job
        reservation.reserve(
            job,
            items=self.items,
            source={
                **source_record.location_of(request.config.source, request.found, request.functions),
                "rows": dict(self.source_rows),
            },
            tokenizer_files=request.tokenizer_files,
            overwrite=request.config.overwrite,
            former=request.former,
        )
        for split in self.source.splits.values():
            if (decided := split.reader.decided) and decided.content is not None:
                storage.write_bytes(decided.path, unused_rows.encode(decided.content), inside=job.root)


def open_job(request: Request, *, progress: Progress, home: str | None = None) -> OpenJob:
    """Locate the rows of a request, and complete its job. An estimate has what is ingested in the folder `home`.

    Raises: as `open_request`; SourceError if rows cannot be read; OutputError if they cannot be copied;
        SplitNotFoundError; RowsRejectedError if `--bucket-lengths auto` has no row to go by.
    """
    request, groups, ingested = ingesting.locate_rows(request, progress=progress, home=home)
    config, append = request.config, request.append
    source, in_rows, held = _source_of(request, groups)
    columns = complete_from_manifest(in_rows, append.former) if append else in_rows
    encoder = request.open_encoder(columns)
    if bucket_lengths.automatic_count(config.layout.bucket_lengths):
        request = _with_lengths(request, columns, encoder, source=source)
        encoder, config = request.open_encoder(columns), request.config
    items = request.fingerprint_items(held)
    if append is not None:
        items = append.items(items, source.splits)
    identity = fingerprint.fingerprint_of(items)
    if config.source.dedup or request.runs is not None:
        splits = deciding.decide(
            config,
            source.splits,
            columns,
            runs=request.runs,
            fingerprint=identity,
            scratch=storage.join(home or config.output.root, WORK_FOLDER, f"{reservation.INGESTED}compared"),
            inside=None if home else config.output.root,
        )
        source = dataclasses.replace(source, splits=splits)
    job = Job(
        root=config.output.root,
        name=config.output.name,
        fingerprint=identity,
        splits={name: JobSplit.of(split) for name, split in source.splits.items()},
        engine=config.engine,
        ingested=ingested,
        strict=config.max_error_rate == 0,
        spec=_spec(request, columns, encoder),
    )
    return OpenJob(
        request=request,
        source=source,
        encoder=encoder,
        job=append.continued(job, in_rows) if append else job,
        items=items,
        source_rows={name: each.total_rows for name, each in groups.items()},
    )


def _source_of(request: Request, groups: Mapping[str, Groups]) -> tuple[Source, ColumnPlan, tuple[HoldOut, ...]]:
    """Return the splits with their rows after the user functions, their column plan, and the rows to hold out."""
    config = request.config
    source = selection.select(config.source, request.found, groups, request.functions)
    held = selection.resolve_hold_outs(config.source.hold_outs, source.splits, by=config.source.hold_out_by)
    if request.append is not None:
        source = request.append.new_rows(source)
    inputs = layouts.layout_of(config.layout).inputs(config.source)
    plan = plan_columns(config.source, source, inputs=inputs, plan=request.columns)
    here = [each for each in held if each.from_split in source.splits]
    divided = selection.divide(source.splits, here, columns=plan.content, optional=plan.optional, seed=config.seed)
    return dataclasses.replace(source, splits=divided), plan, held


def _spec(request: Request, columns: ColumnPlan, encoder: layouts.BatchEncoder) -> ShardSpec:
    """Return what decides the bytes of a shard."""
    config = request.config
    features = layouts.layout_of(config.layout).features(request.layout_context(columns), encoder)
    label = (columns.label.feature,) if columns.label else ()
    return ShardSpec(
        columns=columns,
        schema=Schema((*features, *label, *columns.kept)),
        layout=config.layout,
        length=request.length,
        facts=request.facts,
        compression=config.output.compression,
        seed=config.seed,
        shuffle=config.shuffle,
        dali_index=bool(config.output.index),
    )


def _with_lengths(request: Request, columns: ColumnPlan, encoder: layouts.BatchEncoder, *, source: Source) -> Request:
    """Return the request with lengths chosen from a sample of its rows in place of `auto:K`, and no encoder yet.

    Raises: RowsRejectedError if no row of the sample can be used.
    """
    config = request.config
    plain = dataclasses.replace(config, layout=dataclasses.replace(config.layout, bucket_lengths=None))
    spec = _spec(dataclasses.replace(request, config=plain), columns, encoder)
    row_tokens, weights = sampling.row_lengths(spec, encoder, source.splits)
    chosen = bucket_lengths.choose(
        row_tokens,
        count=bucket_lengths.automatic_count(config.layout.bucket_lengths) or 1,
        longest=request.length,
        fixed=config.layout.max_length is not None,
        weights=weights,
    )
    layout = dataclasses.replace(config.layout, bucket_lengths=chosen, max_length=chosen[-1])
    config = dataclasses.replace(config, layout=layout)
    return dataclasses.replace(request, config=config, length=chosen[-1], encoder=None)
