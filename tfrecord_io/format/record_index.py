"""Write and read index files, which let readers start in the middle of a shard (docs/format.md)."""

import numpy as np

from tfrecord_io.errors import CorruptRecordError
from tfrecord_io.format.ledger import Shard
from tfrecord_io.shown import some

FOLDER = "index"
# Records per offset, as in the reader's default block.
STRIDE = 16

_DTYPE = np.dtype("<u8")
_REMEDY = "run `prep-tfrecords verify DATASET --repair` to remake the index"


def file_name(shard_name: str) -> str:
    return f"{FOLDER}/{shard_name}.offsets"


def dump(record_bytes: np.ndarray) -> bytes:
    """Return the content of an index file. `record_bytes`: size of each record with its frame, int64 [n]."""
    starts = np.cumsum(record_bytes) - record_bytes
    return starts[::STRIDE].astype(_DTYPE).tobytes()


def num_bytes(shard: Shard, *, stride: int) -> int:
    return -(-shard.num_examples // stride) * _DTYPE.itemsize


def parse(content: bytes, *, shard: Shard, stride: int, place: str) -> np.ndarray:
    """Return the byte offset of every `stride`-th record from an index file, int64 [ceil(num_examples / stride)].

    Raises: CorruptRecordError if `content` cannot be the index of `shard`.
    """
    if len(content) != (expected := num_bytes(shard, stride=stride)):
        raise CorruptRecordError(
            f"{place}: {some(len(content), 'byte')}, expected {expected:,} for {some(shard.num_examples, 'example')}",
            remedy=_REMEDY,
        )
    offsets = np.frombuffer(content, _DTYPE)
    # Unsigned: large offsets must not become negative.
    ascending = bool(np.all(offsets[1:] > offsets[:-1]))
    if len(offsets) and (offsets[0] != 0 or not ascending or offsets[-1] >= shard.num_bytes):
        raise CorruptRecordError(
            f"{place}: invalid offsets, expected them to ascend from 0 and stay below {shard.num_bytes:,}, the "
            "shard's size in bytes",
            remedy=_REMEDY,
        )
    return offsets.astype(np.int64)


class ShardIndexes:
    """Collect the sizes of a shard's records, and make its index file; no file unless `indexed`."""

    def __init__(self, shard_name: str, *, indexed: bool) -> None:
        self.names = (file_name(shard_name),) if indexed else ()
        self._record_bytes: list[np.ndarray] = [np.zeros(0, np.int64)]

    def add(self, record_bytes: np.ndarray) -> None:
        self._record_bytes.append(record_bytes)

    def files(self) -> dict[str, bytes]:
        return {name: dump(np.concatenate(self._record_bytes)) for name in self.names}
