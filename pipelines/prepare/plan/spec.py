"""Everything that decides a shard's bytes, apart from its rows: columns, layout, lengths, tokenizer and seed."""

from __future__ import annotations

import dataclasses

from pipelines.prepare.options.config import Compression, LayoutConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from tfrecord_io.format import record_index
from tfrecord_io.manifest import TokenizerFacts
from tfrecord_io.schema import Schema

__all__ = ["ShardSpec"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardSpec:
    """How rows become the records of a shard.

    `length` is L, the tokens of a record (of the longest, with several lengths); `facts` identify the tokenizer.
    """

    columns: ColumnPlan
    schema: Schema
    layout: LayoutConfig
    length: int
    facts: TokenizerFacts
    compression: Compression
    seed: int
    shuffle: bool
    dali_index: bool = False

    @property
    def index_stride(self) -> int | None:
        """Records per offset in a shard's index; None for compressed shards, which have no index."""
        return record_index.STRIDE if self.compression == "none" else None

    def schema_of(self, length: int | None) -> Schema:
        """Return the features of a shard whose records have `length` tokens; None: all have one length."""
        return self.schema if length is None else self.schema.with_row_length(length)
