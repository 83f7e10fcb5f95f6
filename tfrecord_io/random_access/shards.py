"""Read serialized records from a split's files, by row number.

The smallest readable unit is a group of `stride` records. Neighbouring groups are read together.

A shard without an index is unpacked from its start, so read it in order.
"""

import bisect
import collections
import dataclasses
import functools
import io
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfrecord_io.errors import CorruptRecordError, ReaderError
from tfrecord_io.format import record_index
from tfrecord_io.manifest import Manifest, Shard
from tfrecord_io.random_access.storage import Storage
from tfrecord_io.shown import some, without_secrets

# Cached indexes. The index of a shard of 100 MB has 25 KB.
_INDEXES = 1024
# Cached shards without index, and the unpacked bytes kept for each: a file of 2 MB can become 2 GB.
_WHOLE_SHARDS = 2
_UNPACKED_BYTES = 512 << 20

# N serialized Examples in the order of the request: data, begins_N and ends_N, all read-only.
Messages = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class ShardFiles:
    """Shards of a split. Can be pickled. `check`: whether to verify checksums; compressed shards always are."""

    storage: Storage
    manifest: Manifest
    split: str
    check: bool

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.storage, self.manifest, self.split, self.check))

    def __len__(self) -> int:
        return int(self._ends_S[-1]) if self._shards else 0

    @property
    def _remedy(self) -> str:
        return f"run `prep-tfrecords verify {self.storage.shown} --repair` to remake it, or copy it again"

    def _path(self, shard: int) -> str:
        return self.storage.path(self._shards[shard].name)

    def locate(self, row: int) -> tuple[int, int]:
        """Return the number of the shard that contains a row, and the number of its record there."""
        shard = bisect.bisect_right(self._ends_S, row)
        return shard, row - (int(self._ends_S[shard - 1]) if shard else 0)

    def _locate_all(self, rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shards_N = np.searchsorted(self._ends_S, rows_N, side="right")
        return shards_N, rows_N - np.where(shards_N > 0, self._ends_S[shards_N - 1], 0)

    def _read_one(self, shard: int, record: int) -> Messages:
        # Without the array arithmetic of `_read`: 20 instead of 110 us.
        if self.manifest.index_stride is None:
            return self._of_whole_shards([shard], [record])
        edges = self._edges(shard)
        entry, skip = divmod(record, self.manifest.index_stride)
        start, stop = int(edges[entry]), int(edges[entry + 1])
        name, place = self._shards[shard].name, np.array([0, stop - start, skip])
        try:
            data = self.storage.read_range(name, start, stop)
        except OSError as error:
            raise self._unreadable(name, error) from error
        if len(data) < stop - start:
            raise self._cut_off(shard, stop)
        return self._messages(data, place[:1], place[1:2], place[2:], shards=[shard], records=[record])

    def _read(self, shards_N: np.ndarray, records_N: np.ndarray) -> Messages:
        if self.manifest.index_stride is None:
            return self._of_whole_shards(shards_N.tolist(), records_N.tolist())
        entries_N, skips_N = np.divmod(records_N, self.manifest.index_stride)
        key_G, group_N = np.unique((shards_N << 40) | entries_N, return_inverse=True)
        shard_G, entry_G = key_G >> 40, key_G & ((1 << 40) - 1)
        start_G, stop_G = np.empty((2, len(key_G)), np.int64)
        firsts = np.flatnonzero(np.diff(shard_G, prepend=-1)).tolist()
        for first, last in zip(firsts, [*firsts[1:], len(key_G)], strict=True):
            edges_E, entries = self._edges(int(shard_G[first])), entry_G[first:last]
            start_G[first:last], stop_G[first:last] = edges_E[entries], edges_E[entries + 1]
        new_G = np.ones(len(key_G), np.bool_)
        new_G[1:] = (shard_G[1:] != shard_G[:-1]) | (start_G[1:] - stop_G[:-1] > self.storage.gap)
        first_R = np.flatnonzero(new_G)
        last_R = np.append(first_R[1:], len(key_G)) - 1
        start_R, stop_R = start_G[first_R], stop_G[last_R]
        sizes_R = stop_R - start_R
        # The storage concatenates the spans.
        shift_G = (np.cumsum(sizes_R) - sizes_R - start_R)[np.cumsum(new_G) - 1]
        shard_R = shard_G[first_R].tolist()
        names = [self._shards[shard].name for shard in shard_R]
        try:
            data, sound = self.storage.read_ranges(names, start_R, stop_R)
        except OSError as error:
            failed = os.path.basename(str(error.filename))
            raise self._unreadable(failed if failed in names else names[0], error) from error
        if sound < len(names):
            raise self._cut_off(shard_R[sound], int(stop_R[sound]))
        bounds_N = (start_G + shift_G)[group_N], (stop_G + shift_G)[group_N]
        return self._messages(data, *bounds_N, skips_N, shards=shards_N.tolist(), records=records_N.tolist())

    def _messages(
        self, data: np.ndarray, starts_N: Any, stops_N: Any, skips_N: Any, *, shards: list[int], records: list[int]
    ) -> Messages:
        from tfrecord_io.codec import kernels  # importing Numba takes half a second

        data = data.view()
        data.flags.writeable = False
        places_2N = np.empty((2, len(shards)), np.int64)
        sound = kernels.find_frames(data, starts_N, stops_N, skips_N, self.check, places_2N[0], places_2N[1])
        if sound < len(shards):
            from tfrecord_io.records import check_frames

            group, first = data[int(starts_N[sound]) : int(stops_N[sound])], records[sound] - int(skips_N[sound])
            try:
                check_frames(group, place=self._path(shards[sound]), first_record=first)
            except CorruptRecordError as error:
                raise CorruptRecordError(error.cause, remedy=self._remedy) from None
            raise CorruptRecordError(
                f"{self._path(shards[sound])}, record {records[sound]}: not at the position in the index",
                remedy=self._remedy,
            )
        places_2N.flags.writeable = False
        return data, places_2N[0], places_2N[1]

    @functools.cached_property
    def _shards(self) -> Sequence[Shard]:
        return self.manifest.splits[self.split].shards

    @functools.cached_property
    def _ends_S(self) -> np.ndarray:
        return np.cumsum([shard.num_examples for shard in self._shards], dtype=np.int64)

    @functools.cached_property
    def _edges(self) -> Any:
        # Returns a shard's edges, the starts of its groups and the end of the last one: int64 [groups + 1].
        return functools.lru_cache(_INDEXES)(self._read_edges)

    def _read_edges(self, shard: int) -> np.ndarray:
        entry, stride = self._shards[shard], self.manifest.index_stride
        assert stride is not None, "the shards have an index"
        name = record_index.file_name(entry.name)
        # One more byte detects a longer file.
        offsets_file = self._read_file(name, most=record_index.num_bytes(entry, stride=stride) + 1)
        offsets = record_index.parse(offsets_file, shard=entry, stride=stride, place=self.storage.path(name))
        return np.append(offsets, entry.num_bytes)

    def _of_whole_shards(self, shards: list[int], records: list[int]) -> Messages:
        messages = [self._whole(shard)[record] for shard, record in zip(shards, records, strict=True)]
        edges = np.cumsum([0, *map(len, messages)])
        edges.flags.writeable = False
        return np.frombuffer(b"".join(messages), np.uint8), edges[:-1], edges[1:]

    @functools.cached_property
    def _whole(self) -> Any:
        return functools.lru_cache(_WHOLE_SHARDS)(self._read_whole)

    def _read_whole(self, shard: int) -> "_UnpackedShard":
        entry, place = self._shards[shard], self._path(shard)
        content = self._read_file(entry.name, most=entry.num_bytes + 1)
        if len(content) < entry.num_bytes:
            raise self._cut_off(shard, entry.num_bytes)
        return _UnpackedShard(
            content, manifest=self.manifest, num_examples=entry.num_examples, place=place, remedy=self._remedy
        )

    def _cut_off(self, shard: int, stop: int) -> CorruptRecordError:
        return CorruptRecordError(
            f"{self._path(shard)}: ends before byte {stop}, expected {self._shards[shard].num_bytes:,} bytes "
            "according to the manifest; the file was cut off or replaced",
            remedy=self._remedy,
        )

    def _read_file(self, name: str, *, most: int) -> bytes:
        try:
            return self.storage.read(name, most=most)
        except OSError as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: OSError) -> ReaderError:
        return ReaderError(
            f"{self.storage.path(name)}: cannot be read ({type(error).__name__}: {without_secrets(str(error))})",
            remedy=f"check your permission to read it; if the file is missing, {self._remedy}",
        )


class _UnpackedShard:
    def __init__(self, content: bytes, *, manifest: Manifest, num_examples: int, place: str, remedy: str) -> None:
        self._content, self._manifest, self._num_examples = content, manifest, num_examples
        self._place, self._remedy = place, remedy
        self._lock = threading.Lock()
        self._start()

    def __getitem__(self, record: int) -> bytes | memoryview:
        with self._lock:
            if self._kept and record < self._kept[0][0]:
                self._start()
            while record >= self._end:
                self._unpack()
            first, payloads = next(batch for batch in reversed(self._kept) if batch[0] <= record)
            return payloads[record - first]

    def _start(self) -> None:
        from tfrecord_io import records

        self._batches = records.read_payloads(
            io.BytesIO(self._content),
            compression=self._manifest.compression,
            place=self._place,
            most_record_bytes=self._manifest.schema.most_record_bytes,
        )
        self._end, self._kept, self._kept_bytes = 0, collections.deque[tuple[int, Any]](), 0

    def _unpack(self) -> None:
        payloads = next(self._batches, None)
        if payloads is None:
            raise self._wrong_count(some(self._end, "record"))
        self._kept.append((self._end, payloads))
        self._end += len(payloads)
        self._kept_bytes += len(payloads.data)
        # The newest messages are kept.
        while self._kept_bytes > _UNPACKED_BYTES and len(self._kept) > 1:
            self._kept_bytes -= len(self._kept.popleft()[1].data)
        is_last = self._end == self._num_examples
        if self._end > self._num_examples or (is_last and next(self._batches, None) is not None):
            raise self._wrong_count("more records")

    def _wrong_count(self, number: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"{self._place}: {number}, expected {self._num_examples:,} according to the manifest", remedy=self._remedy
        )
