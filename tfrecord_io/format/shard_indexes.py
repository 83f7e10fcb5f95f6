"""All index files of one shard: `record_index`, for our readers, and `dali_index`, if it was asked for."""

from __future__ import annotations

import numpy as np

from tfrecord_io.format import dali_index, record_index
from tfrecord_io.format.dali_index import DaliIndexBuilder
from tfrecord_io.format.record_index import IndexBuilder

__all__ = ["ShardIndexes"]


class ShardIndexes:
    """Gathers the index files of a shard while its records are written."""

    def __init__(self, shard_name: str, *, indexed: bool, dali: bool) -> None:
        self._builders: dict[str, IndexBuilder | DaliIndexBuilder] = {}
        if indexed:
            self._builders[record_index.file_name(shard_name)] = IndexBuilder()
        if dali:
            self._builders[dali_index.file_name(shard_name)] = DaliIndexBuilder()

    @property
    def names(self) -> tuple[str, ...]:
        """The paths of the files, relative to the dataset's folder."""
        return tuple(self._builders)

    def add(self, record_bytes: np.ndarray) -> None:
        """Takes the next records' sizes in bytes with their frames, int64 [n]."""
        for builder in self._builders.values():
            builder.add(record_bytes)

    def files(self) -> dict[str, bytes]:
        """The files' contents by path."""
        return {name: builder.dump() for name, builder in self._builders.items()}
