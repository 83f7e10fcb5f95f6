"""Completing the job of an opened request, once its rows can be read.

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
from pipelines.prepare.launch import deciding
from pipelines.prepare.launch.opened_request import OpenedRequest
from pipelines.prepare.options import bucket_lengths
from pipelines.prepare.plan import sampling
from pipelines.prepare.plan.spec import ShardSpec
from pipelines.prepare.sources.columns.column_planning import complete_from_manifest, plan_columns
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.rows import hold_out, selection
from pipelines.prepare.sources.rows.decided_rows import encode
from pipelines.prepare.sources.rows.hold_out import HoldOut
from pipelines.prepare.sources.rows.reading import Source
from tfrecord_io.schema import Schema

__all__ = ["Resolved", "resolve"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved(OpenedRequest):
    """A request whose rows are located: the `job` that travels to workers, and what only the launcher needs.

    `items` are what the fingerprint covers, `source_rows` the rows of each split of the source.
    """

    columns: ColumnPlan
    encoder: layouts.BatchEncoder
    source: Source
    job: Job
    items: Mapping[str, Any]
    source_rows: Mapping[str, int]

    @property
    def _decided(self) -> dict[str, bytes]:
        """The rows that were decided to leave, by the path of their file."""
        readers = (split.reader for split in self.source.splits.values())
        return {
            each.path: encode(each.content)
            for reader in readers
            if (each := reader.decided) and each.content is not None
        }

    def reserve(self, *, overwrite: bool) -> None:
        """Write the job's own files to the output. Raises: as `reservation.check`."""
        reservation.reserve(
            self.job,
            items=self.items,
            source={
                **source_record.location_of(self.config.source, self.found, self.functions),
                "rows": dict(self.source_rows),
            },
            tokenizer_files=self.tokenizer_files,
            overwrite=overwrite,
            former=self.former,
        )
        for path, content in self._decided.items():
            storage.write_bytes(path, content, inside=self.job.root)


def resolve(
    request: OpenedRequest, groups: Mapping[str, Groups], *, scratch: str, inside: str | None = None
) -> Resolved:
    """Complete the job, now that rows can be read. `scratch` is a folder for temporary files, `inside` the output.

    Raises: as `open_request`; SplitNotFoundError; RowsRejectedError if `--bucket-lengths auto` has no row to go by.
    """
    append = request.append
    source, in_rows, held = _source_of(request, groups)
    columns = complete_from_manifest(in_rows, append.former) if append else in_rows
    encoder = request.encoder if _same_but_for_label(columns, request.columns) else None
    encoder = encoder or request.open_encoder(columns)
    if bucket_lengths.automatic_count(request.config.layout.bucket_lengths):
        request = _with_lengths(request, columns, encoder, source=source)
        encoder = request.open_encoder(columns)
    items = request.fingerprint_items(held)
    if append is not None:
        items = append.items(items, source.splits)
    config = request.config
    identity = fingerprint.fingerprint_of(items)
    if config.source.dedup or request.runs is not None:
        splits = deciding.decide(
            config,
            source.splits,
            columns,
            runs=request.runs,
            fingerprint=identity,
            scratch=scratch,
            inside=inside,
        )
        source = dataclasses.replace(source, splits=splits)
    job = Job(
        root=config.output.root,
        name=config.output.name,
        fingerprint=identity,
        splits={name: JobSplit.of(split) for name, split in source.splits.items()},
        engine=config.engine,
        strict=config.max_error_rate == 0,
        spec=_spec(request, columns, encoder),
    )
    if append is not None:
        job = append.continued(job, in_rows)
    opened = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    return Resolved(
        **{**opened, "columns": columns, "encoder": encoder},
        source=source,
        job=job,
        items=items,
        source_rows={name: each.total_rows for name, each in groups.items()},
    )


def _source_of(request: OpenedRequest, groups: Mapping[str, Groups]) -> tuple[Source, ColumnPlan, tuple[HoldOut, ...]]:
    """Return the splits with their rows after the user functions, their column plan, and the rows to hold out."""
    config = request.config
    source = selection.select(config.source, request.found, groups, request.functions)
    held = hold_out.resolve(config.source.hold_outs, source.splits, by=config.source.hold_out_by)
    if request.append is not None:
        source = request.append.new_rows(source)
    plan = plan_columns(config.source, source, inputs=layouts.layout_of(config.layout).inputs(config.source))
    here = [each for each in held if each.from_split in source.splits]
    divided = hold_out.divide(source.splits, here, columns=plan.content, optional=plan.optional, seed=config.seed)
    return dataclasses.replace(source, splits=divided), plan, held


def _same_but_for_label(one: ColumnPlan, other: ColumnPlan | None) -> bool:
    """Whether an encoder for these columns is one for the others: none looks at the label, whose names rows tell."""
    return other is not None and dataclasses.replace(one, label=other.label) == other


def _spec(request: OpenedRequest, columns: ColumnPlan, encoder: layouts.BatchEncoder) -> ShardSpec:
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
        dali_index=config.output.dali_index,
    )


def _with_lengths(
    request: OpenedRequest, columns: ColumnPlan, encoder: layouts.BatchEncoder, *, source: Source
) -> OpenedRequest:
    """Return the request with lengths chosen from a sample of its rows in place of `auto:K`.

    Raises: RowsRejectedError if no row of the sample can be used.
    """
    config = request.config
    plain = dataclasses.replace(
        request, config=dataclasses.replace(config, layout=dataclasses.replace(config.layout, bucket_lengths=None))
    )
    row_tokens, weights = sampling.row_lengths(_spec(plain, columns, encoder), encoder, source.splits)
    chosen = bucket_lengths.choose(
        row_tokens,
        count=bucket_lengths.automatic_count(config.layout.bucket_lengths) or 1,
        longest=request.length,
        fixed=config.layout.max_length is not None,
        weights=weights,
    )
    layout = dataclasses.replace(config.layout, bucket_lengths=chosen, max_length=chosen[-1])
    return dataclasses.replace(request, config=dataclasses.replace(config, layout=layout), length=chosen[-1])
