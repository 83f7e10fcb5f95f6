"""All index files of one shard: `record_index`, for our readers, and `dali_index`, if it was asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tfrecord_io.format import dali_index, record_index

__all__ = ["ShardIndexes"]


class ShardIndexes:
    """Gathers what the index files of a shard need while its records are written."""

    def __init__(self, shard_name: str, *, indexed: bool, dali: bool) -> None:
        self._dumps: dict[str, Callable[[np.ndarray], bytes]] = {}
        if indexed:
            self._dumps[record_index.file_name(shard_name)] = record_index.dump
        if dali:
            self._dumps[dali_index.file_name(shard_name)] = dali_index.dump
        self._record_bytes: list[np.ndarray] = [np.zeros(0, np.int64)]

    @property
    def names(self) -> tuple[str, ...]:
        """The paths of the files, relative to the dataset's folder."""
        return tuple(self._dumps)

    def add(self, record_bytes: np.ndarray) -> None:
        """Take the next records' sizes in bytes with their frames, int64 [n]."""
        self._record_bytes.append(record_bytes)

    def files(self) -> dict[str, bytes]:
        """Return the files' contents by path."""
        record_bytes = np.concatenate(self._record_bytes)
        return {name: dump(record_bytes) for name, dump in self._dumps.items()}
