"""The files of a split: from row numbers to bytes of its shards.

An index has the byte of every `stride`-th record, so what can be read by itself is a group of that many records:

    row of the split   ─►  shard, record of it  ─►  group = record // stride,  skip = record % stride
    groups of a shard        │ 0 ........ │ 1 ........ │ 2 ...... │         edges: where they begin, and the shard's end
    to read                  └────── one span ─────────┘                    neighbours are read together

A compressed shard has no bytes to begin at: it is decompressed as a whole and kept while there is room. To
read such shards at random costs a shard for each row; read them in order. A shard without index is read once as a
whole, for its edges alone.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import os
import zlib
from typing import Any, NamedTuple

import numpy as np

from tfrecord_io.errors import CorruptRecordError, ReaderError
from tfrecord_io.format import record_index
from tfrecord_io.format.ledger import Shard
from tfrecord_io.manifest import Manifest
from tfrecord_io.random_access.storage import Storage
from tfrecord_io.shown import without_secrets

__all__ = ["Groups", "ShardFiles"]

# Indexes that are kept, of 8 bytes for 16 rows: 25 KB of a shard of 100 MB.
_INDEXES = 1024
# Of decompressed shards: a few, and at least one.
_UNPACKED_BYTES = 512 << 20
_FRAME_BYTES = 16


class Groups(NamedTuple):
    """Bytes of some groups, and the N records that are wanted of them: number `skips_N` of the group that lies in
    `data` from byte `starts_N` to `stops_N`. All int64 [N], in the order of the request.
    """

    data: np.ndarray
    starts_N: np.ndarray
    stops_N: np.ndarray
    skips_N: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class ShardFiles:
    """The shards of one split in a storage. Can be pickled: what it keeps in memory belongs to the process."""

    storage: Storage
    manifest: Manifest
    split: str

    def __reduce__(self) -> tuple[Any, ...]:
        return (ShardFiles, (self.storage, self.manifest, self.split))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def remedy(self) -> str:
        """Return what to do about a damaged shard."""
        return f"run `prep-tfrecords verify {self.storage.shown} --repair`, which makes it again, or copy it again"

    def path(self, shard: int) -> str:
        """Return a shard's file as messages name it."""
        return self.storage.path(self.shards[shard].name)

    def locate(self, row: int) -> tuple[int, int]:
        """Return the shard of a row, and its record there."""
        shard = bisect.bisect_right(self._ends, row)
        return shard, row - (self._ends[shard - 1] if shard else 0)

    def locate_all(self, rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Locate many rows: `locate` for row numbers int64 [N]."""
        shards_N = np.searchsorted(self._ends_S, rows_N, side="right")
        return shards_N, rows_N - np.where(shards_N > 0, self._ends_S[shards_N - 1], 0)

    def read_one(self, shard: int, record: int) -> Groups:
        """Read the group of one record, without the array arithmetic of `read`. Raises: as `read`."""
        edges = self._edges(shard)
        entry, skip = divmod(record, self._stride)
        start, stop = int(edges[entry]), int(edges[entry + 1])
        place = np.array([0, stop - start, skip])
        if self._compressed:
            data = self._unpacked(shard)[start:stop]
        else:
            name = self.shards[shard].name
            try:
                data = self.storage.read_range(name, start, stop)
            except OSError as error:
                raise self._unreadable(name, error) from error
            if len(data) < stop - start:
                raise self._cut_off(shard, stop)
        return Groups(data, place[:1], place[1:2], place[2:])

    def read(self, shards_N: np.ndarray, records_N: np.ndarray) -> Groups:
        """Read the groups of some records; those that lie close to each other are one span.

        Raises: CorruptRecordError if a shard is shorter than its manifest says, or an index does not fit; ReaderError
            if a file cannot be read.
        """
        entries_N, skips_N = np.divmod(records_N, self._stride)
        # Sorted by shard and group, each group once.
        key_G, group_N = np.unique((shards_N << 40) | entries_N, return_inverse=True)
        shard_G, entry_G = key_G >> 40, key_G & ((1 << 40) - 1)
        start_G, stop_G = self._bounds(shard_G, entry_G)
        new_G = np.ones(len(key_G), np.bool_)
        new_G[1:] = (shard_G[1:] != shard_G[:-1]) | (start_G[1:] - stop_G[:-1] > self.storage.gap)
        first_R = np.flatnonzero(new_G)
        last_R = np.append(first_R[1:], len(key_G)) - 1
        start_R, stop_R = start_G[first_R], stop_G[last_R]
        sizes_R = stop_R - start_R
        # How far the bytes of a span are shifted when all spans lie one behind the other.
        shift_G = (np.cumsum(sizes_R) - sizes_R - start_R)[np.cumsum(new_G) - 1]
        data = self._read_spans(shard_G[first_R].tolist(), start_R, stop_R)
        return Groups(data, (start_G + shift_G)[group_N], (stop_G + shift_G)[group_N], skips_N)

    def _bounds(self, shard_G: np.ndarray, entry_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return bytes [start, stop) of groups that are sorted by shard, int64 [G] twice."""
        start_G, stop_G = np.empty((2, len(shard_G)), np.int64)
        firsts = np.flatnonzero(np.diff(shard_G, prepend=-1)).tolist()
        for first, last in zip(firsts, [*firsts[1:], len(shard_G)], strict=True):
            edges_E, entries = self._edges(int(shard_G[first])), entry_G[first:last]
            start_G[first:last], stop_G[first:last] = edges_E[entries], edges_E[entries + 1]
        return start_G, stop_G

    def _read_spans(self, shards: list[int], starts_R: np.ndarray, stops_R: np.ndarray) -> np.ndarray:
        """Read bytes of shards, one span behind the other: uint8 [total]."""
        if self._compressed:
            places = zip(shards, starts_R.tolist(), stops_R.tolist(), strict=True)
            return np.concatenate([self._unpacked(shard)[start:stop] for shard, start, stop in places])
        names = [self.shards[shard].name for shard in shards]
        try:
            data, sound = self.storage.read_ranges(names, starts_R, stops_R)
        except OSError as error:
            failed = os.path.basename(str(error.filename))
            raise self._unreadable(failed if failed in names else names[0], error) from error
        if sound < len(shards):
            raise self._cut_off(shards[sound], int(stops_R[sound]))
        return data

    @functools.cached_property
    def shards(self) -> tuple[Shard, ...]:
        """The shards in order."""
        return self.manifest.splits[self.split].shards

    @functools.cached_property
    def _ends(self) -> list[int]:
        """The first row behind each shard."""
        return self._ends_S.tolist()

    @functools.cached_property
    def _ends_S(self) -> np.ndarray:
        return np.cumsum([shard.num_examples for shard in self.shards], dtype=np.int64)

    @functools.cached_property
    def _compressed(self) -> bool:
        return self.manifest.compression == "gzip"

    @functools.cached_property
    def _stride(self) -> int:
        return self.manifest.index_stride or record_index.STRIDE

    @functools.cached_property
    def _edges(self) -> Any:
        """Return where the groups of a shard begin, and the last of them ends: int64 [groups + 1]."""
        return functools.lru_cache(_INDEXES)(self._find_edges)

    def _unpacked(self, shard: int) -> np.ndarray:
        """All bytes of a compressed shard as they were before compression, kept while there is room."""
        content = self._kept.get(shard)
        if content is None:
            content = self._kept[shard] = self._whole(shard)
            for oldest in list(self._kept)[:-1]:
                if sum(map(len, list(self._kept.values()))) <= _UNPACKED_BYTES:
                    break
                self._kept.pop(oldest, None)  # another thread may have let go of it
        return content

    @functools.cached_property
    def _kept(self) -> dict[int, np.ndarray]:
        return {}

    def _cut_off(self, shard: int, stop: int) -> CorruptRecordError:
        return CorruptRecordError(
            f"{self.path(shard)}: ends before byte {stop}, expected {self.shards[shard].num_bytes} bytes by the "
            "manifest: it was cut off or replaced",
            remedy=self.remedy,
        )

    def _find_edges(self, shard: int) -> np.ndarray:
        if self.manifest.index_stride is None:
            return self._scan((self._unpacked if self._compressed else self._whole)(shard), shard)
        name = record_index.file_name(self.shards[shard].name)
        entry = self.shards[shard]
        # One byte more than it should have, to see that it has not.
        offsets_file = self._read(name, most=8 * -(-entry.num_examples // self._stride) + 1)
        offsets = record_index.parse(offsets_file, shard=entry, stride=self._stride, place=self.storage.path(name))
        return np.append(offsets, entry.num_bytes)

    def _whole(self, shard: int) -> np.ndarray:
        entry = self.shards[shard]
        content = self._read(entry.name, most=entry.num_bytes + 1)
        if len(content) != entry.num_bytes:
            more = "more" if len(content) > entry.num_bytes else len(content)
            raise CorruptRecordError(
                f"{self.path(shard)}: {more} bytes, expected {entry.num_bytes} by the manifest: it was cut off or "
                "replaced",
                remedy=self.remedy,
            )
        if self._compressed:
            content = self._inflate(content, shard)
        return np.frombuffer(content, np.uint8)

    def _inflate(self, content: bytes, shard: int) -> bytes:
        inflater = zlib.decompressobj(wbits=31)
        most_frame_bytes = self.manifest.schema.most_record_bytes + _FRAME_BYTES
        try:
            # One byte more than it may have, to see that it has not: a small file can unpack to any size.
            unpacked = inflater.decompress(content, self.shards[shard].num_examples * most_frame_bytes + 1)
        except zlib.error as error:
            raise CorruptRecordError(f"{self.path(shard)}: damaged gzip data ({error})", remedy=self.remedy) from error
        if not inflater.eof or inflater.unused_data:
            raise CorruptRecordError(
                f"{self.path(shard)}: gzip data without an end, or with more behind it, expected one whole member",
                remedy=self.remedy,
            )
        return unpacked

    def _scan(self, content: np.ndarray, shard: int) -> np.ndarray:
        """The edges of a shard without an index, by walking over its frames."""
        num_examples, position, edges = self.shards[shard].num_examples, 0, []
        data = content.data
        for record in range(num_examples):
            if record % self._stride == 0:
                edges.append(position)
            size = int.from_bytes(data[position : position + 8], "little")
            if size > len(data) - position - _FRAME_BYTES:
                raise CorruptRecordError(
                    f"{self.path(shard)}, record {record} at byte {position}: reaches beyond the end of the shard, "
                    f"expected {num_examples} records",
                    remedy=self.remedy,
                )
            position += size + _FRAME_BYTES
        if position != len(data):
            raise CorruptRecordError(
                f"{self.path(shard)}: {len(data) - position} bytes after {num_examples} records, expected none",
                remedy=self.remedy,
            )
        return np.array([*edges, position], np.int64)

    def _read(self, name: str, *, most: int) -> bytes:
        try:
            return self.storage.read(name, most=most)
        except OSError as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: OSError) -> ReaderError:
        return ReaderError(
            f"{self.storage.path(name)}: cannot be read ({type(error).__name__}: {without_secrets(str(error))}), "
            "expected a file of the dataset",
            remedy=f"check that this machine may read it; if it is gone, {self.remedy}",
        )
