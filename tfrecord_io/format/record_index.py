"""Record index: a small file beside each uncompressed shard, to read from its middle.

    index/NAME-SPLIT-00000-of-00012.tfrecord.offsets      uint64 [ceil(num_examples / STRIDE)], little-endian:
                                                          byte offsets of the records 0, STRIDE, 2 STRIDE, ...

Compressed shards have none.
"""

import numpy as np

from tfrecord_io.errors import CorruptRecordError
from tfrecord_io.format.ledger import Shard

FOLDER = "index"
# The reader's default block: the index takes 8 bytes per 16 records.
STRIDE = 16

_DTYPE = np.dtype("<u8")
_REMEDY = "run `prep-tfrecords verify DATASET --repair`, which makes it again"


def file_name(shard_name: str) -> str:
    return f"{FOLDER}/{shard_name}.offsets"


def dump(record_bytes: np.ndarray) -> bytes:
    """Return the content of an index, given the records' sizes in bytes with frames, int64 [n]."""
    starts = np.cumsum(record_bytes) - record_bytes
    return starts[::STRIDE].astype(_DTYPE).tobytes()


def num_bytes(shard: Shard, *, stride: int) -> int:
    return -(-shard.num_examples // stride) * _DTYPE.itemsize


def parse(content: bytes, *, shard: Shard, stride: int, place: str) -> np.ndarray:
    """Return the byte offset of every `stride`-th record, int64 [ceil(num_examples / stride)].

    Raises: CorruptRecordError if `content` cannot be the index of `shard`.
    """
    if len(content) != (expected := num_bytes(shard, stride=stride)):
        raise CorruptRecordError(
            f"{place}: {len(content)} bytes, expected {expected} for {shard.num_examples} examples", remedy=_REMEDY
        )
    offsets = np.frombuffer(content, _DTYPE)
    # Unsigned: large offsets must not become negative.
    ascending = bool(np.all(offsets[1:] > offsets[:-1]))
    if len(offsets) and (offsets[0] != 0 or not ascending or offsets[-1] >= shard.num_bytes):
        raise CorruptRecordError(
            f"{place}: expected offsets that ascend from 0 and stay below {shard.num_bytes}, the bytes of the shard",
            remedy=_REMEDY,
        )
    return offsets.astype(np.int64)


class ShardIndexes:
    """Collect a shard's record sizes during writing, and make its index, if `indexed`."""

    def __init__(self, shard_name: str, *, indexed: bool) -> None:
        self.names = (file_name(shard_name),) if indexed else ()
        self._record_bytes: list[np.ndarray] = [np.zeros(0, np.int64)]

    def add(self, record_bytes: np.ndarray) -> None:
        self._record_bytes.append(record_bytes)

    def files(self) -> dict[str, bytes]:
        return {name: dump(np.concatenate(self._record_bytes)) for name in self.names}
