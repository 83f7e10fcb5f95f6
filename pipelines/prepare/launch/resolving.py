"""From a request to a job, in two steps, since the rows of some sources must be ingested in between.

open_request   open source and tokenizer side by side, check columns by their types
resolve        once rows are located: choose splits, collect label names, complete the job and its fingerprint
"""

from __future__ import annotations

import dataclasses
import logging
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from typing import Any

from pipelines.prepare import layouts
from pipelines.prepare.dataset import fingerprint, reservation
from pipelines.prepare.dataset.job import Job, JobSplit
from pipelines.prepare.launch import appending
from pipelines.prepare.options import bucket_lengths
from pipelines.prepare.options.config import PrepareConfig, SourceConfig
from pipelines.prepare.plan import sampling
from pipelines.prepare.plan.spec import ShardSpec
from pipelines.prepare.process import threads
from pipelines.prepare.sources.columns.column_planning import plan_columns, plan_types
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.formats.groups import Groups
from pipelines.prepare.sources.rows import function_calls, hold_out, opening, selection
from pipelines.prepare.sources.rows.function_check import ChangedSplits, apply_functions
from pipelines.prepare.sources.rows.hold_out import HoldOut
from pipelines.prepare.sources.rows.opening import OpenedSource
from pipelines.prepare.sources.rows.reading import RowReader, Source, SplitSource
from pipelines.prepare.sources.rows.user_functions import UserFunction
from pipelines.prepare.tokenize import document_frames, engines, tokenization
from pipelines.prepare.tokenize.ragged import id_dtype
from tfrecord_io import manifest
from tfrecord_io.manifest import Manifest, TokenizerFacts
from tfrecord_io.schema import Schema
from tfrecord_io.shown import without_access

__all__ = [
    "OpenedRequest",
    "Resolved",
    "changed_readers",
    "columns_read",
    "divided",
    "job_split",
    "needed_splits",
    "open_request",
    "resolve",
    "source_location",
    "whole_split",
]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenedRequest:
    """A request whose rows are not located yet.

    `columns` and `encoder` are None if user functions decide the columns, which only rows can show. `former` is the
    finished dataset to append to, if that is asked for.
    """

    config: PrepareConfig
    functions: Sequence[UserFunction]
    found: OpenedSource
    tokenizer: Any
    tokenizer_files: tokenization.Files
    facts: TokenizerFacts
    length: int
    columns: ColumnPlan | None
    encoder: layouts.BatchEncoder | None
    former: Manifest | None = None

    def layout_context(self, columns: ColumnPlan) -> layouts.LayoutContext:
        """Return what a layout opens its encoder with."""
        return layouts.LayoutContext(
            tokenizer=self.tokenizer,
            facts=self.facts,
            layout=self.config.layout,
            length=self.length,
            columns=columns,
            engine=self.config.engine,
        )

    def items(self) -> dict[str, Any] | None:
        """Return what the fingerprint covers; None while some of it depends on rows."""
        depends = (
            bucket_lengths.automatic_count(self.config.layout.bucket_lengths)
            or self.config.source.hold_out
            or self.former is not None
        )
        return None if depends else _fingerprint_items(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved:
    """A resolved request: the job that travels to workers, and what only the launcher needs."""

    job: Job
    source: Source
    tokenizer: Any
    encoder: layouts.BatchEncoder
    tokenizer_files: tokenization.Files
    items: Mapping[str, Any]
    source_record: Mapping[str, Any]
    former: Manifest | None = None

    def reserve(self, *, overwrite: bool) -> None:
        """Write the job's own files to the output. Raises: as `reservation.check`."""
        reservation.reserve(
            self.job,
            items=self.items,
            source=self.source_record,
            tokenizer_files=self.tokenizer_files,
            overwrite=overwrite,
            former=self.former,
        )


def open_request(config: PrepareConfig) -> OpenedRequest:
    """Open the source and the tokenizer, and check everything that can be checked without reading rows.

    Raises: SourceError, TokenizerError, ColumnError or ConfigError, before anything is written.
    """
    former = appending.to_append_to(config.output.root) if config.append else None
    if former is not None:
        config = appending.with_known_lengths(config, former)
    functions = function_calls.find(config.source.functions)
    # `datasets` looks for transformers in sys.modules and would use a half-imported one: import it before the threads.
    tokenization.import_libraries(config.tokenizer)
    # Side by side: reading footers and digests mostly releases the interpreter, loading a tokenizer does not.
    finding = threads.in_background(lambda: _find(config, functions))
    loading = threads.in_background(lambda: tokenization.resolve(config.tokenizer))
    threads.wait_for(finding, loading)
    found, columns = finding.result()
    tokenizer, files = loading.result()
    facts = tokenization.facts(tokenizer, name=config.tokenizer.name, files=files)
    _warn_of_left_out_bos(config, tokenizer)
    request = OpenedRequest(
        config=config,
        functions=functions,
        found=found,
        tokenizer=tokenizer,
        tokenizer_files=files,
        facts=facts,
        length=tokenization.resolve_length(tokenizer, config.layout),
        columns=columns,
        encoder=None,
        former=former,
    )
    if former is not None:
        _require_same(request, former)
    if columns is None:
        return request
    # Errors of the tokenizer show here, before anything is ingested, rather than on a worker.
    return dataclasses.replace(request, encoder=_open_encoder(request, columns))


def _require_same(request: OpenedRequest, former: Manifest) -> None:
    """Check that the request can append to a dataset, as far as that shows before rows are located.

    Raises: FingerprintMismatchError; NothingNewError.
    """
    root, listing = request.config.output.root, request.found.listing
    appending.require_same_options(former, _fingerprint_items(request), root=root, early=True)
    appending.require_same_source(former, listing, request.config.source, root=root)
    appending.require_new_rows(former, listing, request.config)


def columns_read(config: PrepareConfig) -> tuple[str, ...] | None:
    """Return the columns of the source that a build reads; None for all of them, for user functions to use."""
    if config.source.functions:
        return None
    source = config.source
    names = (*layouts.layout_of(config.layout).inputs(source).names, source.label_column, *source.keep_columns)
    return tuple(name for name in names if name is not None)


def needed_splits(request: OpenedRequest) -> Collection[str]:
    """Return the source's splits to read: those asked for, or every split to collect the names of string labels."""
    every = request.found.listing.splits
    columns = request.columns
    has_names = columns is None or any(plan and plan.kind == "string" for plan in (columns.label, columns.tags))
    if request.former is not None:  # it has the names
        has_names = False
    return list(every) if has_names else selection.needed_source_splits(request.config.source, list(every))


def resolve(request: OpenedRequest, groups: Mapping[str, Groups]) -> Resolved:
    """Complete the job, now that rows can be read.

    Raises: as `open_request`; SplitNotFoundError; RowsRejectedError if `--bucket-lengths auto` has no row to go by.
    """
    source, columns, held = _source_of(request, groups)
    former, found = request.former, columns
    if former is not None:
        columns = appending.with_manifest_facts(found, former)
    encoder = request.encoder if _same_but_for_label(columns, request.columns) else None
    encoder = encoder or _open_encoder(request, columns)
    if bucket_lengths.automatic_count(request.config.layout.bucket_lengths):
        request = _with_lengths(request, columns, encoder, source=source)
        encoder = _open_encoder(request, columns)
    items = _fingerprint_items(request, held)
    if former is not None:
        appending.require_same_options(former, items, root=request.config.output.root)
        rows = {name: [list(span) for span in split.ranges] for name, split in sorted(source.splits.items())}
        items["append"] = {"to": former.fingerprint, "rows": rows}
    job = _job(request, columns, encoder, source=source, fingerprint=fingerprint.fingerprint_of(items))
    if former is not None:
        appending.require_same_schema(former, found, job.spec.schema, root=job.root)
    return Resolved(
        job=job,
        source=source,
        tokenizer=request.tokenizer,
        encoder=encoder,
        tokenizer_files=request.tokenizer_files,
        items=items,
        source_record={
            **source_location(request.config.source, request.found, request.functions),
            "rows": {name: each.total_rows for name, each in groups.items()},
        },
        former=former,
    )


def _source_of(request: OpenedRequest, groups: Mapping[str, Groups]) -> tuple[Source, ColumnPlan, tuple[HoldOut, ...]]:
    """Return the splits with their rows after the user functions, their column plan, and the rows to hold out."""
    config, found = request.config, request.found
    asked = selection.needed_source_splits(config.source, list(found.listing.splits))
    readers, columns = changed_readers(found, groups, request.functions, requested=asked)
    every = {name: whole_split(name, groups[name], reader) for name, reader in readers.items()}
    chosen = selection.select_splits(config.source, {name: groups[name] for name in asked}, readers)
    held = hold_out.resolve(config.source.hold_outs, chosen)
    if request.former is not None:
        chosen = appending.new_rows(request.former, chosen, root=config.output.root)
        every = {split.source_split: split for split in chosen.values()}
    source = Source(splits=chosen, all_splits=every, columns=columns, identity=found.listing.identity)
    plan = plan_columns(config.source, source, inputs=layouts.layout_of(config.layout).inputs(config.source))
    here = [each for each in held if each.from_split in chosen]
    return dataclasses.replace(source, splits=divided(chosen, here, plan, seed=config.seed)), plan, held


def changed_readers(
    found: OpenedSource, groups: Mapping[str, Groups], functions: Sequence[UserFunction], *, requested: Collection[str]
) -> ChangedSplits:
    """Return readers that apply the user functions to the rows of the source's splits, and the resulting columns."""
    readers = {name: RowReader(split=name, types=found.types(name), addresses=found.addresses) for name in groups}
    columns = {name: found.columns[name] for name in groups}
    return apply_functions(readers, groups, columns, functions, requested=requested)


def divided(
    splits: Mapping[str, SplitSource], held: Sequence[HoldOut], plan: ColumnPlan, *, seed: int
) -> dict[str, SplitSource]:
    """Return the splits without the rows held out of them, and the splits made of held-out rows."""
    optional = [name for purpose, name in plan.nested.items() if purpose == "tools"]
    return hold_out.divide(splits, held, columns=plan.content, optional=optional, seed=seed)


def whole_split(name: str, groups: Groups, reader: RowReader) -> SplitSource:
    """Return a split with all rows of a split of the source."""
    ranges = ((0, groups.total_rows),) if groups.total_rows else ()
    return SplitSource(name=name, source_split=name, groups=groups, ranges=ranges, reader=reader)


def source_location(
    config: SourceConfig, found: OpenedSource, functions: Sequence[UserFunction] = ()
) -> dict[str, Any]:
    """Return what is needed to open the source again, as source.json holds it: an absolute path, an address without
    credentials or a pinned hub id, and the text of the user functions.
    """
    identity = found.listing.identity
    place = {
        "dataset": _address(config.dataset, identity),
        "config": config.config,
        "revision": identity.get("revision"),
    }
    if config.more_paths:
        place["more"] = [_address(path, identity) for path in config.more_paths]
    return {**place, "steps": [step.to_json() for step in functions]} if functions else place


def _find(config: PrepareConfig, functions: Sequence[UserFunction]) -> tuple[OpenedSource, ColumnPlan | None]:
    """Find the source and check its columns, so that a misspelt one is reported while the tokenizer still loads."""
    found = opening.open_source(config.source, columns=columns_read(config))
    if functions:
        return found, None
    inputs = layouts.layout_of(config.layout).inputs(config.source)
    chosen = selection.needed_source_splits(config.source, list(found.listing.splits))
    columns = {name: found.columns[name] for name in chosen}
    return found, plan_types(config.source, columns, kind=found.listing.identity["kind"], inputs=inputs)


def _warn_of_left_out_bos(config: PrepareConfig, tokenizer: Any) -> None:
    layout = config.layout
    if not layouts.layout_of(layout).joins_rows or layout.name == "chat":  # there the template decides
        return
    if bos := document_frames.left_out_bos(tokenizer, layout.special_tokens):
        _log.warning(
            "tokenizer %r begins every text with %s, but --special-tokens %s leaves it out; "
            "--special-tokens bos-eos puts it before each document",
            config.tokenizer.name,
            bos,
            layout.special_tokens,
        )


def _open_encoder(request: OpenedRequest, columns: ColumnPlan) -> layouts.BatchEncoder:
    encoder = layouts.layout_of(request.config.layout).open_encoder(request.layout_context(columns))
    if request.config.engine == "auto" and encoder.reference is None:
        reasons = engines.why_slow(request.tokenizer, dtype=id_dtype(request.facts.vocab_size))
        _log.warning("no fast engine can make these rows, so tokenizing takes about ten times as long (%s)", reasons)
    return encoder


def _same_but_for_label(one: ColumnPlan, other: ColumnPlan | None) -> bool:
    """Whether an encoder for these columns is one for the others: none looks at the label, whose names rows tell."""
    return other is not None and dataclasses.replace(one, label=other.label) == other


def _job(
    request: OpenedRequest, columns: ColumnPlan, encoder: layouts.BatchEncoder, *, source: Source, fingerprint: str
) -> Job:
    config, former = request.config, request.former
    splits = {name: job_split(split) for name, split in source.splits.items()}
    features = layouts.layout_of(config.layout).features(request.layout_context(columns), encoder)
    label = (columns.label.feature,) if columns.label else ()
    return Job(
        root=config.output.root,
        name=config.output.name,
        fingerprint=fingerprint,
        splits=splits if former is None else appending.continued(former, splits),
        engine=config.engine,
        strict=config.max_error_rate == 0,
        appends_to=None if former is None else former.fingerprint,
        spec=ShardSpec(
            columns=columns,
            schema=Schema((*features, *label, *columns.kept)),
            layout=config.layout,
            length=request.length,
            facts=request.facts,
            compression=config.output.compression,
            seed=config.seed,
            shuffle=config.shuffle,
            dali_index=config.output.dali_index,
        ),
    )


def job_split(split: SplitSource) -> JobSplit:
    """Return the part of a split that travels to workers."""
    return JobSplit(source_split=split.source_split, ranges=split.ranges, reader=split.reader)


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
    job = _job(plain, columns, encoder, source=source, fingerprint="")
    row_tokens, weights = sampling.row_lengths(job.spec, encoder, source.splits)
    chosen = bucket_lengths.choose(
        row_tokens,
        count=bucket_lengths.automatic_count(config.layout.bucket_lengths) or 1,
        longest=request.length,
        fixed=config.layout.max_length is not None,
        weights=weights,
    )
    layout = dataclasses.replace(config.layout, bucket_lengths=chosen, max_length=chosen[-1])
    return dataclasses.replace(request, config=dataclasses.replace(config, layout=layout), length=chosen[-1])


def _address(dataset: str, identity: Mapping[str, Any]) -> str:
    if "://" in dataset or identity["kind"] == "hub":
        return without_access(dataset)
    return os.path.abspath(os.path.expanduser(dataset))


def _fingerprint_items(request: OpenedRequest, held: Sequence[HoldOut] = ()) -> dict[str, Any]:
    versions = {
        "format": manifest.FORMAT_VERSION,
        "algorithm": fingerprint.ALGORITHM,
        **{name: metadata.version(name) for name in ("tokenizers", "transformers")},
        # What zlib makes of the same bytes differs between its releases, and even more in zlib-ng.
        **({"zlib": zlib.ZLIB_RUNTIME_VERSION} if request.config.output.compression == "gzip" else {}),
    }
    return {
        **request.config.fingerprint_options(),
        **({"steps": [step.identity() for step in request.functions]} if request.functions else {}),
        **({"hold_out": [each.to_json() for each in held]} if held else {}),
        "max_length": request.length,
        "tokenizer": request.facts.content_sha256,
        "source": dict(request.found.listing.identity),
        "versions": versions,
    }
