"""Opening the source and the tokenizer of a request, side by side, with every check that needs no rows."""

from __future__ import annotations

import dataclasses
import logging
import zlib
from collections.abc import Collection, Sequence
from importlib import metadata
from typing import Any

from pipelines.prepare import layouts
from pipelines.prepare.dataset import fingerprint
from pipelines.prepare.dedup.overlap import EvaluationRuns
from pipelines.prepare.launch import deciding
from pipelines.prepare.launch.appending import Append
from pipelines.prepare.options import bucket_lengths
from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.process import threads
from pipelines.prepare.sources.columns import chats
from pipelines.prepare.sources.columns.column_planning import plan_types
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.rows import opening, selection, user_functions
from pipelines.prepare.sources.rows.opening import OpenedSource
from pipelines.prepare.sources.rows.selection import HoldOut
from pipelines.prepare.sources.rows.user_functions import UserFunction
from pipelines.prepare.tokenize import document_frames, engines, tokenization
from pipelines.prepare.tokenize.ragged import id_dtype
from tfrecord_io import manifest
from tfrecord_io.manifest import Manifest, TokenizerFacts

__all__ = ["Request", "columns_read", "open_request"]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A request with its source and tokenizer open.

    `columns` and `encoder` are None if user functions decide the columns, which only rows can show. `append` is None
    for a dataset of its own, `runs` without --decontaminate.
    """

    config: PrepareConfig
    functions: Sequence[UserFunction]
    found: OpenedSource
    tokenizer: Any
    tokenizer_files: tokenization.Files
    facts: TokenizerFacts
    length: int
    append: Append | None
    runs: EvaluationRuns | None
    columns: ColumnPlan | None
    encoder: layouts.BatchEncoder | None = None

    @property
    def former(self) -> Manifest | None:
        """The manifest of the finished dataset to append to."""
        return self.append.former if self.append else None

    def needed_splits(self) -> Collection[str]:
        """Return the source's splits to read: those asked for, or every split to collect classes from rows."""
        every = list(self.found.listing.splits)
        columns = self.columns
        needs_names = columns is None or any(plan and plan.from_rows for plan in (columns.label, columns.tags))
        if needs_names and self.append is None:  # else the dataset has the names
            return every
        return selection.needed_source_splits(self.config.source, every)

    def fingerprint_items(self, held: Sequence[HoldOut] = ()) -> dict[str, Any]:
        """Return what the fingerprint covers; `held` are the rows to hold out."""
        config = self.config
        versions = {
            "format": manifest.FORMAT_VERSION,
            "algorithm": fingerprint.ALGORITHM,
            **{name: metadata.version(name) for name in ("tokenizers", "transformers")},
            # What zlib makes of the same bytes differs between its releases, and even more in zlib-ng.
            **({"zlib": zlib.ZLIB_RUNTIME_VERSION} if config.output.compression == "gzip" else {}),
        }
        return {
            **config.fingerprint_options(),
            **({"steps": [step.identity() for step in self.functions]} if self.functions else {}),
            **({"decontaminate": self.runs.to_json()} if self.runs is not None else {}),
            **({"hold_out": [each.to_json() for each in held]} if held else {}),
            "max_length": self.length,
            "tokenizer": self.facts.content_sha256,
            "source": dict(self.found.listing.identity),
            "versions": versions,
        }

    def early_items(self) -> dict[str, Any] | None:
        """Return what the fingerprint covers; None while some of it depends on rows."""
        config = self.config
        depends = bucket_lengths.automatic_count(config.layout.bucket_lengths) or config.source.hold_out or self.append
        return None if depends else self.fingerprint_items()

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

    def open_encoder(self, columns: ColumnPlan) -> layouts.BatchEncoder:
        """Return the encoder for these columns, the one that is open if it fits. Warn if no fast engine can be used."""
        # Encoders never read the label column, whose names only rows tell.
        if self.encoder and self.columns and dataclasses.replace(columns, label=self.columns.label) == self.columns:
            return self.encoder
        encoder = layouts.layout_of(self.config.layout).open_encoder(self.layout_context(columns))
        if self.config.engine == "auto" and encoder.reference is None:
            reasons = engines.why_slow(self.tokenizer, dtype=id_dtype(self.facts.vocab_size))
            _log.warning(
                "no fast engine can make these rows, so tokenizing takes about ten times as long (%s)", reasons
            )
        return encoder


def open_request(config: PrepareConfig) -> Request:
    """Open the source and the tokenizer, and check everything that can be checked without reading rows.

    Raises: SourceError, TokenizerError, ColumnError or ConfigError, before anything is written; with `--append` also
        FingerprintMismatchError.
    """
    append = Append.to(config.output.root) if config.append else None
    if append is not None:
        config = append.with_known_lengths(config)
    functions = user_functions.find(config.source.functions)
    # `datasets` looks for transformers in sys.modules and would use a half-imported one: import it before the threads.
    tokenization.import_libraries(config.tokenizer)
    # Side by side: reading footers and digests mostly releases the interpreter, loading a tokenizer does not.
    finding = threads.in_background(lambda: _find(config, functions))
    loading = threads.in_background(lambda: tokenization.resolve(config.tokenizer))
    threads.wait_for(finding, loading)
    found, columns = finding.result()
    tokenizer, files = loading.result()
    _warn_of_left_out_bos(config, tokenizer)
    request = Request(
        config=config,
        functions=functions,
        found=found,
        tokenizer=tokenizer,
        tokenizer_files=files,
        facts=tokenization.facts(tokenizer, name=config.tokenizer.name, files=files),
        length=tokenization.resolve_length(tokenizer, config.layout),
        append=append,
        runs=deciding.evaluation_runs(config.source),
        columns=columns,
    )
    if append is not None:
        append.require_same_request(config, found.listing, request.fingerprint_items())
    # Errors of the tokenizer show here, before anything is ingested, rather than on a worker.
    return dataclasses.replace(request, encoder=request.open_encoder(columns) if columns else None)


def columns_read(config: PrepareConfig) -> tuple[str, ...] | None:
    """Return the columns of the source that a build may read; None for all of them, for user functions to use."""
    if config.source.functions:
        return None
    source = config.source
    inputs = layouts.layout_of(config.layout).inputs(source)
    chat_columns = chats.CANDIDATES if inputs.finds_chats else ()
    names = (*inputs.names, *chat_columns, source.label_column, source.hold_out_by, *source.keep_columns)
    return tuple(name for name in names if name is not None)


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
