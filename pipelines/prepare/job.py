"""A resolved request: what the launcher found out, in the form that travels to workers.

    PrepareConfig  --resolve-->  Job          no tokenizer object in it, no open file, no secret: paths, names and
    numbers

Workers load the tokenizer from the job's own folder in the output, so that all of them use the launcher's.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from pipelines.prepare import (
    bucket_lengths,
    disproof,
    early_source,
    engines,
    layouts,
    overlap,
    storage,
    tokenization,
)
from pipelines.prepare.column_planning import plan_columns
from pipelines.prepare.columns import ColumnPlan
from pipelines.prepare.config import Compression, EngineName, LayoutConfig, PrepareConfig, SourceConfig
from pipelines.prepare.content import bytes_digest
from pipelines.prepare.opened import Source, SplitSource
from pipelines.prepare.planning import ShardTask
from pipelines.prepare.runs import id_dtype
from pipelines.prepare.sources import user_functions
from pipelines.prepare.sources.user_functions import UserFunction
from pipelines.prepare.stepping import stepped
from tfrecord_io import manifest, record_index
from tfrecord_io.errors import FormatError
from tfrecord_io.manifest import TokenizerFacts
from tfrecord_io.schema import Schema
from tfrecord_io.shown import without_access

__all__ = ["Job", "Resolved", "rejected_path", "resolve", "source_place", "tokenizer_files"]

WORK_FOLDER = ".prep"
_NOT_IN_NAMES = frozenset("\\\0")

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides the bytes, and where they go. `length` is L. `engine` decides how fast they come."""

    root: str
    name: str
    fingerprint: str
    splits: Mapping[str, SplitSource]
    columns: ColumnPlan
    schema: Schema
    layout: LayoutConfig
    length: int
    facts: TokenizerFacts
    compression: Compression
    seed: int
    shuffle: bool
    engine: EngineName = "auto"

    @property
    def index_stride(self) -> int | None:
        """Every that many records a shard's index has an offset; None for compressed shards, which have no index."""
        return record_index.STRIDE if self.compression == "none" else None

    def work_path(self, *parts: str) -> str:
        """A path in the job's own folder."""
        return storage.join(self.root, WORK_FOLDER, self.fingerprint, *parts)

    def shard_name(self, task: ShardTask, *, length: int | None = None) -> str:
        """The file name of a task's shard; of the one with rows of `length` tokens, if there are several lengths."""
        return manifest.shard_name(
            name=self.name,
            split=task.split,
            index=task.index,
            count=task.count,
            compression=self.compression,
            length=length,
        )

    def schema_of(self, length: int | None) -> Schema:
        """The features of a shard with rows of `length` tokens, None where all have the same."""
        return self.schema if length is None else self.schema.with_row_length(length)

    def receipt_path(self, task: ShardTask) -> str:
        """Where a task's receipt goes."""
        return self.work_path(task.split, f"receipt-{task.index:05d}-of-{task.count:05d}.json")

    def rejected_path(self, task: ShardTask) -> str:
        """Where a task's rejected rows go, if there are any."""
        return storage.join(self.root, rejected_path(task.split, task.index))

    def open_tools(self) -> layouts.Tools:
        """Loads the tokenizer from the job's folder and makes it ready, without an engine that was disproved.

        Raises: FormatError if it is not the one that was saved there.
        """
        tokenizer = tokenization.load(tokenizer_files(self))
        engine: EngineName = self.engine if disproof.read(self) is None else "hf"
        opening = layouts.Opening(
            tokenizer=tokenizer,
            facts=self.facts,
            layout=self.layout,
            length=self.length,
            columns=self.columns,
            engine=engine,
        )
        return layouts.layout_of(self.layout).open_tools(opening)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved:
    """What `resolve` found: the job, and what only the launcher needs."""

    job: Job
    source: Source
    tokenizer: Any
    tools: layouts.Tools
    tokenizer_files: tokenization.Files
    items: Mapping[str, Any]
    place: Mapping[str, Any]


def rejected_path(split: str, index: int) -> str:
    """The list of a shard's rejected rows, relative to the dataset's folder."""
    return f"rejected/{split}-{index:05d}.jsonl"


def resolve(config: PrepareConfig) -> Resolved:
    """Opens the source and the tokenizer, and decides everything that is left open.

    Raises: SourceError, TokenizerError or ConfigError, before anything is written.
    """
    found = user_functions.find(config.source.steps)
    # `datasets` asks whether transformers is there, and takes one that is half imported for whole.
    tokenization.import_libraries()
    # Preparing the files leaves the interpreter to others for most of the time, loading a tokenizer does not.
    opening = overlap.begun(lambda: _open_source(config, found))
    loading = overlap.begun(lambda: tokenization.resolve(config.tokenizer))
    overlap.wait_for(opening, loading)
    source, columns = opening.result()
    tokenizer, files = loading.result()
    length = tokenization.resolve_length(tokenizer, config.layout)
    facts = tokenization.facts(tokenizer, name=config.tokenizer.name, files=files)
    if config.layout.add_bos and facts.bos_id is None:
        raise tokenization.no_bos(config.tokenizer.name)
    layout = layouts.layout_of(config.layout)
    wanted = layouts.Opening(
        tokenizer=tokenizer,
        facts=facts,
        layout=config.layout,
        length=length,
        columns=columns,
        engine=config.engine,
    )
    # What the tokenizer cannot do shows here, not on a worker.
    tools = layout.open_tools(wanted)
    if bucket_lengths.automatic(config.layout.bucket_lengths):
        config, wanted = _with_lengths(config, wanted, tools, source=source)
        tools = layout.open_tools(wanted)
    if config.engine == "auto" and tools.reference is None:
        reasons = engines.why_slow(tokenizer, dtype=id_dtype(facts.vocab_size))
        _log.warning("no fast engine makes these rows, so that it takes about ten times as long (%s)", reasons)
    items = _fingerprint_items(config, length=wanted.length, facts=facts, source=source, found=found)
    return Resolved(
        job=_job(config, wanted, tools, source=source, fingerprint=_fingerprint(items)),
        source=source,
        tokenizer=tokenizer,
        tools=tools,
        tokenizer_files=files,
        items=items,
        place=source_place(config.source, source, found),
    )


def _open_source(config: PrepareConfig, found: Sequence[UserFunction]) -> tuple[Source, ColumnPlan]:
    """With its columns, so that a misspelt one is said while the tokenizer is still loading."""
    source = stepped(early_source.awaited(config.source), found)
    inputs = layouts.layout_of(config.layout).inputs(config.source)
    return source, plan_columns(config.source, source, inputs=inputs)


def _job(
    config: PrepareConfig, opening: layouts.Opening, tools: layouts.Tools, *, source: Source, fingerprint: str
) -> Job:
    columns = opening.columns
    features = layouts.layout_of(config.layout).features(opening, tools)
    label = (columns.label.feature,) if columns.label else ()
    return Job(
        root=config.output.root,
        name=config.output.name,
        fingerprint=fingerprint,
        splits=source.splits,
        columns=columns,
        schema=Schema((*features, *label, *columns.kept)),
        layout=config.layout,
        length=opening.length,
        facts=opening.facts,
        compression=config.output.compression,
        seed=config.seed,
        shuffle=config.shuffle,
        engine=config.engine,
    )


def _with_lengths(
    config: PrepareConfig, opening: layouts.Opening, tools: layouts.Tools, *, source: Source
) -> tuple[PrepareConfig, layouts.Opening]:
    """The request with the lengths that suit a sample of its rows, in place of `auto:K`.

    Raises: RowsRejectedError if no row of the sample can be used.
    """
    from pipelines.prepare import sampling  # measures jobs, and so imports this module

    plain = dataclasses.replace(config, layout=dataclasses.replace(config.layout, bucket_lengths=None))
    job = _job(plain, opening, tools, source=source, fingerprint="")
    row_tokens, weights = sampling.row_lengths(job, tools)
    chosen = bucket_lengths.choose(
        row_tokens,
        count=bucket_lengths.automatic(config.layout.bucket_lengths) or 1,
        longest=opening.length,
        fixed=config.layout.max_length is not None,
        weights=weights,
    )
    layout = dataclasses.replace(config.layout, bucket_lengths=chosen, max_length=chosen[-1])
    changed = dataclasses.replace(opening, layout=layout, length=chosen[-1])
    return dataclasses.replace(config, layout=layout), changed


def source_place(config: SourceConfig, source: Source, found: Sequence[UserFunction] = ()) -> dict[str, Any]:
    """Where the dataset is, to open it again: an absolute path, an address without credentials, or a pinned hub id;
    and the steps that its rows go through, with their text.
    """
    known = {"config": config.config, "revision": source.identity.get("revision")}
    place = {"dataset": _address(config.dataset, source), **known}
    if config.more:
        place["more"] = [_address(path, source) for path in config.more]
    return {**place, "steps": [step.to_json() for step in found]} if found else place


def _address(dataset: str, source: Source) -> str:
    if "://" in dataset or source.identity["kind"] == "hub":
        return without_access(dataset)
    return os.path.abspath(os.path.expanduser(dataset))


def tokenizer_files(job: Job) -> tokenization.Files:
    """The saved tokenizer, from the job's folder. Raises: FormatError if it is not the one that was saved there."""
    return _tokenizer_files(job.work_path("tokenizer"), job.facts.content_sha256)


@functools.lru_cache(maxsize=4)
def _tokenizer_files(folder: str, expected: str) -> tokenization.Files:
    # Every thread of a worker asks for the same folder.
    remedy = (
        "delete this folder, and run the same build again, which saves the tokenizer anew; finished shards are kept"
    )
    names = storage.list_files(folder)
    if odd := [name for name in names if {"", ".", ".."} & {*name.split("/")} or set(name) & _NOT_IN_NAMES]:
        raise FormatError(f"{folder}: {odd[0]!r} is no name of a tokenizer's file", remedy=remedy)
    files = storage.read_folder(folder)
    # Whoever may write there may have changed it since, such as a worker of an earlier job that was delayed.
    if (got := bytes_digest(files)) != expected:
        raise FormatError(
            f"{folder}: the tokenizer's files have changed since they were saved: digest {got}, expected {expected}",
            remedy=remedy,
        )
    return files


def _fingerprint_items(
    config: PrepareConfig, *, length: int, facts: TokenizerFacts, source: Source, found: Sequence[UserFunction]
) -> dict[str, Any]:
    libraries = {name: metadata.version(name) for name in ("tokenizers", "transformers")}
    return {
        **config.deciding(),
        **({"steps": [step.identity() for step in found]} if found else {}),
        "max_length": length,
        "tokenizer": facts.content_sha256,
        "source": dict(source.identity),
        "versions": {"format": manifest.FORMAT_VERSION, **libraries},
    }


def _fingerprint(items: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()[:32]
