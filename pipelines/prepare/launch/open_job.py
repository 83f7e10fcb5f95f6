"""Open a build in two steps: `open_request` needs no rows, and `open_job` locates or ingests the rows."""

import dataclasses
import functools
import logging
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pipelines.prepare import layouts, storage
from pipelines.prepare.dataset import fingerprint, reservation, source_record
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.dedup.text_hashes import EvaluationRuns
from pipelines.prepare.launch import duplicates, ingesting
from pipelines.prepare.launch.appending import Append
from pipelines.prepare.options import bucket_lengths
from pipelines.prepare.options.config import PrepareConfig, SourceConfig
from pipelines.prepare.plan import sampling
from pipelines.prepare.plan.planning import ShardSpec
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.runners.runner import Runner
from pipelines.prepare.sources.columns import chats
from pipelines.prepare.sources.columns.column_planning import (
    complete_from_manifest,
    plan_columns,
    plan_types,
    repeated_in_header,
)
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Inputs
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.resolve import reader_options
from pipelines.prepare.sources.resolve.library import LateKeysError
from pipelines.prepare.sources.rows import opening, selection, unused_rows, user_functions
from pipelines.prepare.sources.rows.reading import SplitSource
from pipelines.prepare.sources.rows.selection import HoldOut
from pipelines.prepare.tokenize import engines, saved_copy, tokenization
from pipelines.prepare.tokenize.ragged import id_dtype
from tfrecord_io import manifest
from tfrecord_io.manifest import Manifest, TokenizerFacts
from tfrecord_io.schema import Schema

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenRequest:
    """Request for a build with its source and tokenizer open, before its rows are located.

    `columns` and `encoder` are None if the columns depend on user functions, which need rows. `facts`: the tokenizer's
    entry in the manifest. `length`: tokens in the longest record. `runs`: result of `duplicates.evaluation_runs`.
    """

    config: PrepareConfig
    functions: Sequence[user_functions.UserFunction]
    source: opening.OpenedSource
    tokenizer: engines.HFTokenizer
    tokenizer_files: saved_copy.Files
    facts: TokenizerFacts
    length: int
    append: Append | None
    runs: EvaluationRuns | None
    columns: ColumnPlan | None
    encoder: layouts.BatchEncoder | None = None

    @property
    def former(self) -> Manifest | None:
        """Manifest of the finished dataset to append to; None without --append."""
        return self.append.former if self.append else None

    @property
    def inputs(self) -> Inputs:
        return layouts.inputs_of(self.config.layout, self.config.source)

    def needed_splits(self) -> Collection[str]:
        """Return the names of the source splits to read: the requested splits, or all if rows give the class names."""
        names, columns = list(self.source.listing.splits), self.columns
        needs_rows = columns is None or any(plan and plan.from_rows for plan in (columns.label, columns.tags))
        if needs_rows and self.append is None:  # with --append, the dataset has the class names
            return names
        return selection.needed_source_splits(self.config.source, names)

    def fingerprint_items(self, form: Mapping[str, Any] | None, held: Sequence[HoldOut] = ()) -> dict[str, Any]:
        """Return the values that the fingerprint covers, by name (docs/explanation/exactness.md has a table).

        `form`: the result of `ShardSpec.form`; None if unknown. `held`: the splits that --hold-out makes.
        """
        config = self.config
        versions = {
            "format": manifest.FORMAT_VERSION.partition(".")[0],
            "algorithm": fingerprint.ALGORITHM,
            # Different releases of zlib may compress the same bytes differently.
            **({"zlib": zlib.ZLIB_RUNTIME_VERSION} if config.output.compression == "gzip" else {}),
        }
        return {
            **config.fingerprint_options(),
            **({"functions": [function.identity() for function in self.functions]} if self.functions else {}),
            **({"decontaminate": self.runs.to_json()} if self.runs is not None else {}),
            **({"hold_out": [hold_out.to_json() for hold_out in held]} if held else {}),
            "max_length": self.length,
            "form": form,
            # Releases of transformers and tokenizers affect bytes only through the next two items.
            "tokenizer": self.facts.content_sha256,
            "ids": engines.ids_digest(self.tokenizer, dtype=id_dtype(self.facts.vocab_size)),
            "source": dict(self.source.listing.identity),
            "versions": versions,
        }

    def early_items(self) -> dict[str, Any] | None:
        """Return `fingerprint_items` before rows are located; None if some values depend on rows.

        `form` is read from the output folder, on the assumption that this build made it. A later check compares it.
        """
        config = self.config
        needs_rows = bucket_lengths.automatic_count(config.layout.bucket_lengths) or config.source.hold_out
        if needs_rows or config.source.dedup_across_splits or self.append:
            return None
        return self.fingerprint_items(reservation.recorded_form(config.output.root))

    def open_encoder(self, columns: ColumnPlan) -> layouts.BatchEncoder:
        """Return an encoder for `columns`: `self.encoder` if it fits. Warn if a new encoder has no fast engine."""
        if self.encoder and self.columns and dataclasses.replace(columns, label=self.columns.label) == self.columns:
            return self.encoder
        inputs = {"tokenizer": self.tokenizer, "facts": self.facts, "length": self.length, "columns": columns}
        encoder = layouts.open_encoder(self.config.layout, **inputs, engine=self.config.engine, seed=self.config.seed)
        for note in encoder.notes:
            _log.warning("%s", note)
        if self.config.engine == "auto" and encoder.reference is None:
            cause = engines.why_slow(self.tokenizer, dtype=id_dtype(self.facts.vocab_size))
            _log.warning("no fast engine can make these rows, so tokenizing takes about ten times as long (%s)", cause)
        return encoder

    def shard_spec(self, columns: ColumnPlan, encoder: layouts.BatchEncoder) -> ShardSpec:
        """Return everything that determines the bytes of the shards, except the rows."""
        config, label = self.config, (columns.label.feature,) if columns.label else ()
        return ShardSpec(
            columns=columns,
            schema=Schema((*encoder.features(), *label, *columns.kept)),
            layout=config.layout,
            length=self.length,
            facts=self.facts,
            compression=config.output.compression,
            seed=config.seed,
            shuffle=config.shuffle,
        )


def open_request(config: PrepareConfig) -> OpenRequest:
    """Open the source and the tokenizer of a build, and make every check that needs no rows.

    Raises: SourceError, TokenizerError, ColumnError or ConfigError if they do not fit `config`; with --append also
        FingerprintMismatchError and the errors of `Append.to`.
    """
    if (append := Append.to(config.output.root) if config.append else None) is not None:
        config = append.with_known_lengths(config)
    inputs, functions = layouts.inputs_of(config.layout, config.source), user_functions.find(config.source.functions)
    former = () if append is None else source_record.files_of(append.former)
    source, columns = find_source(config.source, inputs, former=former)
    tokenizer, files = tokenization.resolve(config.tokenizer, template=config.layout.chat_template)
    request = OpenRequest(
        config=config,
        functions=functions,
        source=source,
        tokenizer=tokenizer,
        tokenizer_files=files,
        facts=tokenization.facts(tokenizer, name=config.tokenizer.name, files=files),
        length=tokenization.resolve_length(tokenizer, config.layout),
        append=append,
        runs=duplicates.evaluation_runs(config.source),
        columns=columns,
    )
    if append is not None:
        append.require_same_request(config, source.listing, request.fingerprint_items(append.former.options["form"]))
    # Report tokenizer errors before anything is ingested.
    return dataclasses.replace(request, encoder=request.open_encoder(columns) if columns else None)


def columns_read(config: SourceConfig, inputs: Inputs) -> tuple[str, ...] | None:
    """Return the names of the source columns to read; None for all."""
    if config.functions:  # a function may use any column
        return None
    candidates = inputs.finder.candidates if inputs.finder else ()
    names = (*inputs.names, *candidates, config.label_column, config.hold_out_by, *config.keep_columns)
    return tuple(name for name in names if name is not None)


def find_source(
    config: SourceConfig, inputs: Inputs, *, former: Sequence[Mapping[str, Any]] = ()
) -> tuple[opening.OpenedSource, ColumnPlan | None]:
    """Open the source, and plan from its columns' types how to use them.

    The plan is None with user functions, which may change columns. `former`: with --append, the files in the manifest.
    Raises: SourceError; ColumnError if columns do not fit `inputs`.
    """
    opened = opening.open_source(config, columns=columns_read(config, inputs), former=former)
    if config.functions:
        return opened, None
    needed = selection.needed_source_splits(config, list(opened.listing.splits))
    types = {name: opened.columns[name] for name in needed}
    kind = opened.listing.identity["kind"]
    plan = plan_types(config, types, kind=kind, inputs=inputs)
    used = (*plan.names, *filter(None, (config.hold_out_by,)))
    for name in sorted(repeated_in_header(types.values(), kind=kind) & {*used}):
        _log.warning("several columns are named %r: the first is used; pandas renames the next to '%s.1'", name, name)
    if plan.chats and (unused := chats.unused(types.values(), used)):
        _log.warning("conversations are %s; columns not used: %s", plan.chats, unused, extra={"shown": "note: "})
    return opened, plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenJob:
    """A build with its rows located. `job` is the part that is sent to workers, without the locations of rows.

    `items`: the fingerprint's values by name. `source_rows`: rows by source split. `request` has chosen row lengths in
    place of `--bucket-lengths auto:K`.
    """

    request: OpenRequest
    encoder: layouts.BatchEncoder
    job: Job
    items: Mapping[str, Any]
    source_rows: Mapping[str, int]

    @property
    def config(self) -> PrepareConfig:
        return self.request.config

    @property
    def identity(self) -> Mapping[str, Any]:
        return self.request.source.listing.identity

    def reserve(self) -> None:
        request = self.request
        place = source_record.location_of(self.config.source, request.source, request.functions)
        reservation.reserve(
            self.job,
            items=self.items,
            source={**place, "rows": dict(self.source_rows)},
            tokenizer_files=request.tokenizer_files,
            overwrite=self.config.overwrite,
            former=request.former,
        )
        for split in self.job.splits.values():
            if (decided := split.reader.decided) and decided.content is not None:
                content = unused_rows.encode(decided.content, decided_for=decided.decided_for)
                storage.write_bytes(decided.path, content, inside=self.job.root)


def open_job(request: OpenRequest, *, runner: Runner, progress: Progress) -> OpenJob:
    """Locate the rows of a request, and return the open job. Files that workers cannot read are ingested on `runner`.

    If a key first appears late in a file of JSON lines, the source is read again in larger chunks, up to 1 GB.

    Raises: the errors of `open_request`; OutputError; SplitNotFoundError; RowsRejectedError if `--bucket-lengths
    auto:K` finds no usable row.
    """
    try:
        return _open_job(request, runner=runner, progress=progress)
    except LateKeysError as error:
        config, listing = request.config, request.source.listing
        if listing.kind != "json" or any(option.startswith("chunksize=") for option in config.source.source_options):
            raise
        largest = reader_options.largest_chunk(file for files in listing.splits.values() for file in files)
        chunks = (*config.source.source_options, f"chunksize={largest}")
        _log.warning("%s; reading the source again with --source-option %s", error.cause, chunks[-1])
        source = dataclasses.replace(config.source, source_options=chunks)
        again = open_request(dataclasses.replace(config, source=source))
        return _open_job(again, runner=runner, progress=progress)


def _locate_rows(request: OpenRequest, folder: str, *, runner: Runner, progress: Progress) -> dict[str, Groups]:
    config, root, source, splits = request.config, request.config.output.root, request.source, request.needed_splits()
    if not runner.is_here:
        source = ingesting.with_copies(source, splits, root=root, folder=folder)
    settings: dict[str, Any] = {"opened": source, "root": root, "name": config.output.name, "workers": config.workers}
    run = functools.partial(ingesting.ingest_files, **settings, runner=runner, progress=progress)
    columns = columns_read(config.source, request.inputs)
    known = request.append.known_rows(config) if request.append else None
    return opening.locate_rows(source, splits, folder=folder, inside=root, columns=columns, run=run, known=known)


def _open_job(request: OpenRequest, *, runner: Runner, progress: Progress) -> OpenJob:
    config, append = request.config, request.append
    ingested = request.source.copy_folder(storage.join(config.output.root, WORK_FOLDER))
    groups = _locate_rows(request, ingested, runner=runner, progress=progress)
    source = selection.select(config.source, request.source, groups, request.functions)
    held = selection.resolve_hold_outs(config.source.hold_outs, source.splits, by=config.source.hold_out_by)
    if append is not None:
        source = append.new_rows(source)
    plan = plan_columns(config.source, source, inputs=request.inputs, plan=request.columns)
    hold_outs = [hold_out for hold_out in held if hold_out.from_split in source.splits]
    splits = selection.divide(source.splits, hold_outs, columns=plan.content, optional=plan.optional, seed=config.seed)
    columns = complete_from_manifest(plan, append.former) if append else plan
    encoder = request.open_encoder(columns)
    if bucket_lengths.automatic_count(config.layout.bucket_lengths):
        request = _with_lengths(request, columns, encoder, splits)
        encoder, config = request.open_encoder(columns), request.config
    spec = request.shard_spec(columns, encoder)
    items = request.fingerprint_items(spec.form(), held)
    if config.source.dedup_across_splits:
        # The duplicates dropped from train depend on all compared splits.
        items["compared"] = {name: [list(span) for span in split.ranges] for name, split in sorted(splits.items())}
    if append is not None:
        items = append.items(items, splits)
    identity = fingerprint.fingerprint_of(items)
    if config.source.dedup or request.runs is not None:
        splits = duplicates.mark(config, splits, columns, request.runs, runner=runner, fingerprint=identity)
    job = Job(
        root=config.output.root,
        name=config.output.name,
        fingerprint=identity,
        splits=splits,
        engine=config.engine,
        ingested=ingested,
        strict=config.max_error_rate == 0,
        spec=spec,
    )
    return OpenJob(
        request=request,
        encoder=encoder,
        job=append.continued(job, plan) if append else job,
        items=items,
        source_rows={name: split_groups.total_rows for name, split_groups in groups.items()},
    )


def _with_lengths(
    request: OpenRequest, columns: ColumnPlan, encoder: layouts.BatchEncoder, splits: Mapping[str, SplitSource]
) -> OpenRequest:
    config = request.config
    row_tokens, weights = sampling.row_lengths(request.shard_spec(columns, encoder), encoder, splits)
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
