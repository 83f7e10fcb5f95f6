"""The files of a split: bytes of its shards, and the edges of their groups of records.

A compressed shard has no bytes to begin at: it is decompressed as a whole and kept while there is room. To read such
shards at random costs a shard for each row; read them in order. A shard without index is read once as a whole, for its
edges alone.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence

import numpy as np

from tfrecord_io.errors import CorruptRecordError, ReaderError
from tfrecord_io.format import record_index
from tfrecord_io.format.ledger import Shard
from tfrecord_io.random_access.groups import Shards, Spans
from tfrecord_io.random_access.storage import Bounded, PerProcess, Storage
from tfrecord_io.shown import without_secrets

__all__ = ["ShardFiles"]

# Of indexes, which take 8 bytes for 16 rows: enough for 64 million rows.
_INDEX_BYTES = 32 << 20
# Of decompressed shards: a few, and at least one.
_UNPACKED_BYTES = 512 << 20
_FRAME_BYTES = 16


class ShardFiles:
    """The shards of one split in a storage; `index_stride` as in the manifest.

    Can be pickled: what it keeps in memory belongs to the process.
    """

    def __init__(
        self,
        storage: Storage,
        shards: Sequence[Shard],
        *,
        index_stride: int | None,
        compressed: bool,
        most_record_bytes: int,
    ) -> None:
        self._storage = storage
        self._shards = tuple(shards)
        self._compressed = compressed
        self._most_frame_bytes = most_record_bytes + _FRAME_BYTES
        self._closed = False
        self.indexed = index_stride is not None
        self.stride = index_stride or record_index.STRIDE
        self.shards = Shards(
            names=tuple(shard.name for shard in shards),
            rows=tuple(shard.num_examples for shard in shards),
        )
        self._edges: PerProcess[Bounded[np.ndarray]] = PerProcess(_no_edges)
        self._unpacked: PerProcess[Bounded[np.ndarray]] = PerProcess(_nothing_unpacked)

    @property
    def shown(self) -> str:
        """The folder as messages name it."""
        return self._storage.shown

    @property
    def remedy(self) -> str:
        """What to do about a damaged shard."""
        return f"run `prep-tfrecords verify {self.shown} --repair`, which makes it again, or copy it again"

    @property
    def gap(self) -> int:
        """Bytes between two groups up to which they are better read as one."""
        return self._storage.gap

    def path(self, shard: int) -> str:
        """A shard's file as messages name it."""
        return self._storage.path(self.shards.names[shard])

    def close(self) -> None:
        """Closes the files. Raises: ReaderError from any later reading."""
        self._closed = True
        self._storage.close()
        self._edges.clear()
        self._unpacked.clear()

    def edges(self, shard: int) -> np.ndarray:
        """Where the groups of a shard begin, and the last of them ends: int64 [groups + 1].

        Raises: ReaderError if the index cannot be read, CorruptRecordError if it does not fit.
        """
        return self._edges.get().get(shard, lambda: _sized(self._find_edges(shard)))

    def read(self, spans: Spans) -> np.ndarray:
        """Bytes of the spans, one behind the other: uint8 [total].

        Raises: CorruptRecordError if a shard is shorter than its manifest says, ReaderError if it cannot be read.
        """
        self._check_open()
        shards = spans.shards_R.tolist()
        if self._compressed:
            places = zip(shards, spans.starts_R.tolist(), spans.stops_R.tolist(), strict=True)
            return np.concatenate([self._unpack(shard)[start:stop] for shard, start, stop in places])
        names = [self.shards.names[shard] for shard in shards]
        try:
            data, sound = self._storage.read_ranges(names, spans.starts_R, spans.stops_R)
        except OSError as error:
            failed = os.path.basename(str(error.filename))
            raise self._unreadable(failed if failed in names else names[0], error) from error
        if sound < len(shards):
            raise self._cut_off(shards[sound], int(spans.stops_R[sound]))
        return data

    def read_one(self, shard: int, start: int, stop: int) -> np.ndarray:
        """Bytes of one span, as `read`."""
        self._check_open()
        if self._compressed:
            return self._unpack(shard)[start:stop]
        name = self.shards.names[shard]
        try:
            data = self._storage.read_range(name, start, stop)
        except OSError as error:
            raise self._unreadable(name, error) from error
        if len(data) < stop - start:
            raise self._cut_off(shard, stop)
        return data

    def _check_open(self) -> None:
        if self._closed:
            raise ReaderError(f"{self.shown}: closed, expected an open dataset", remedy="open it again")

    def _cut_off(self, shard: int, stop: int) -> CorruptRecordError:
        return CorruptRecordError(
            f"{self.path(shard)}: ends before byte {stop}, expected {self._shards[shard].num_bytes} bytes by the "
            "manifest: it was cut off or replaced",
            remedy=self.remedy,
        )

    def _find_edges(self, shard: int) -> np.ndarray:
        if not self.indexed:
            content = self._unpack(shard) if self._compressed else self._whole(shard)
            return self._scan(content, shard)
        name = record_index.file_name(self.shards.names[shard])
        entry = self._shards[shard]
        # One byte more than it should have, to see that it has not.
        offsets_file = self._read(name, most=8 * -(-entry.num_examples // self.stride) + 1)
        offsets = record_index.parse(offsets_file, shard=entry, stride=self.stride, place=self._storage.path(name))
        return np.append(offsets, entry.num_bytes)

    def _unpack(self, shard: int) -> np.ndarray:
        """All bytes of a shard as they were before compression; of an uncompressed one, all bytes."""
        return self._unpacked.get().get(shard, lambda: _sized(self._whole(shard)))

    def _whole(self, shard: int) -> np.ndarray:
        entry = self._shards[shard]
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
        try:
            # One byte more than it may have, to see that it has not: a small file can unpack to any size.
            unpacked = inflater.decompress(content, self._shards[shard].num_examples * self._most_frame_bytes + 1)
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
        num_examples, position, edges = self._shards[shard].num_examples, 0, []
        data = content.data
        for record in range(num_examples):
            if record % self.stride == 0:
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
            return self._storage.read(name, most=most)
        except OSError as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: OSError) -> ReaderError:
        return ReaderError(
            f"{self._storage.path(name)}: cannot be read ({type(error).__name__}: {without_secrets(str(error))}), "
            "expected a file of the dataset",
            remedy=f"check that this machine may read it; if it is gone, {self.remedy}",
        )


def _sized(array: np.ndarray) -> tuple[np.ndarray, int]:
    return array, array.nbytes


def _no_edges() -> Bounded[np.ndarray]:
    return Bounded(room=_INDEX_BYTES)


def _nothing_unpacked() -> Bounded[np.ndarray]:
    return Bounded(room=_UNPACKED_BYTES)
