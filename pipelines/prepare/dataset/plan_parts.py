"""One part of a plan as bytes: the pieces of some successive shards, and the files that they are in.

A part is an Arrow IPC stream in a zstd frame: one record batch with a row for each piece, and in the metadata of its
schema the files, as JSON by their index in the split: {"files": {"INDEX": [PATH, SIZE, INGESTED, VERSION, STAMP]}}.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.sources.parquet.groups import Pieces, StoredFile
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import count, flag, items, mapping, optional, text

__all__ = ["DAMAGED", "Part", "decode", "encode"]

# The errors that `decode` raises for bytes that are not a part.
DAMAGED = (*json_fields.WRONG, pa.ArrowException, OSError)

# The most that a part may unpack to in memory; 64 shards of a hundred pieces have 1 MB.
_MOST_BYTES = 256 << 20
# Bounds within which no sum over a part overflows int64.
_MOST_COUNT, _MOST_START = 1 << 40, 1 << 62

_TYPES = pa.schema(
    [
        ("shard", pa.int32()),
        ("starts", pa.int64()),
        ("counts", pa.int64()),
        ("skips", pa.int64()),
        ("file", pa.int32()),
        ("at", pa.int64()),
    ]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """The pieces of successive shards: shard `first` + i has those from offsets[i] up to offsets[i + 1]."""

    first: int
    pieces: Pieces
    offsets: np.ndarray

    @property
    def spans(self) -> np.ndarray:
        """Row ranges of all pieces, int64 [P, 2]."""
        return np.stack([self.pieces.starts, self.pieces.starts + self.pieces.counts], axis=1)

    def shard(self, index: int) -> Pieces:
        """Return the pieces of one shard."""
        inside = slice(int(self.offsets[index - self.first]), int(self.offsets[index - self.first + 1]))
        every = self.pieces
        used, file = np.unique(every.file[inside], return_inverse=True)
        return Pieces(
            files=tuple(every.files[each] for each in used.tolist()),
            starts=every.starts[inside],
            counts=every.counts[inside],
            skips=every.skips[inside],
            file=file.astype(np.int32),
            at=every.at[inside],
        )


def encode(pieces: Pieces, *, first: int, rows: np.ndarray) -> bytes:
    """Return the bytes of a part: the pieces of the shards from `first` on, which have `rows` int64 [n] each."""
    # A piece belongs to the shard that contains its last row.
    shard = first + np.searchsorted(np.cumsum(rows), np.cumsum(pieces.counts) - 1, "right")
    files = {str(number): _to_json(pieces.files[number]) for number in np.unique(pieces.file).tolist()}
    schema = _TYPES.with_metadata({"files": json.dumps(files)})
    columns = {"shard": shard, **{name: getattr(pieces, name) for name in _TYPES.names[1:]}}
    batch = pa.record_batch([pa.array(columns[field.name], field.type) for field in _TYPES], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch)
    packed: bytes = pa.compress(sink.getvalue(), codec="zstd", asbytes=True)
    return packed


def decode(content: bytes, *, first: int, rows: Sequence[int]) -> Part:
    """Return the part that `encode` gave. Raises: one of `DAMAGED` if the bytes are not one, or of other shards."""
    schema, columns = _unpacked(content)
    files = {int(number): _from_json(value) for number, value in mapping(_files_of(schema)).items()}
    numbers = np.array(sorted(files), np.int64)
    local = np.searchsorted(numbers, columns["file"])
    if not len(numbers) or not np.array_equal(numbers[np.minimum(local, len(numbers) - 1)], columns["file"]):
        raise ValueError("pieces of files that are not named")
    pieces = Pieces(
        files=tuple(files[number] for number in numbers.tolist()),
        **{name: columns[name] for name in ("starts", "counts", "skips", "at")},
        file=local.astype(np.int32),
    )
    return Part(first=first, pieces=pieces, offsets=_offsets(columns, first=first, rows=rows))


def _unpacked(content: bytes) -> tuple[pa.Schema, dict[str, np.ndarray]]:
    with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as unpacked:
        stream = unpacked.read(_MOST_BYTES + 1)
    if len(stream) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES:,} bytes")
    with pa.ipc.open_stream(stream) as reader:
        schema, batch = reader.schema, reader.read_next_batch()
    batch.validate(full=True)
    if not schema.equals(_TYPES) or any(column.null_count for column in batch.columns):
        raise ValueError("other columns than those of a plan")
    return schema, {name: batch.column(name).to_numpy() for name in _TYPES.names}


def _files_of(schema: pa.Schema) -> Any:
    return json_fields.load((schema.metadata or {})[b"files"])


def _offsets(columns: Mapping[str, np.ndarray], *, first: int, rows: Sequence[int]) -> np.ndarray:
    """Return the offsets of each shard's pieces, int64 [n + 1]. Raises: ValueError if they do not have its rows."""
    shard, counts, starts = columns["shard"], columns["counts"], columns["starts"]
    if not len(shard) or min(int(columns[name].min()) for name in _TYPES.names) < 0 or counts.min() < 1:
        raise ValueError("no pieces, or pieces of no rows")
    if counts.max() > _MOST_COUNT or starts.max() > _MOST_START:
        raise ValueError("more rows than there can be")
    offsets = np.searchsorted(shard, np.arange(first, first + len(rows) + 1))
    if (np.diff(shard) < 0).any() or offsets[0] != 0 or offsets[-1] != len(shard) or (np.diff(offsets) < 1).any():
        raise ValueError(f"pieces of other shards than {first} to {first + len(rows) - 1}")
    if not np.array_equal(np.add.reduceat(counts, offsets[:-1]), np.array(rows)):
        raise ValueError("shards of other rows than plan.json says")
    return offsets


def _to_json(file: StoredFile) -> list[Any]:
    return [file.path, file.size, file.ingested, file.version, file.stamp]


def _from_json(value: Any) -> StoredFile:
    path, size, ingested, version, stamp = items(value)
    return StoredFile(
        path=text(path),
        size=count(size),
        ingested=flag(ingested),
        version=text(version),
        stamp=optional(count, stamp),
    )
