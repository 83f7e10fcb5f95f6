"""Record index: a small file beside each uncompressed shard, so that reading can start in its middle.

    index/NAME-SPLIT-00000-of-00012.tfrecord.offsets      uint64 [ceil(num_examples / STRIDE)], little-endian:
                                                          byte offsets of the records 0, STRIDE, 2 STRIDE, ...

TFRecord files have no index, and their records differ in length: without one, a reader that resumes at record n reads
all n before it. A byte offset means nothing in a compressed shard, which has no index.
"""

from __future__ import annotations

import numpy as np

from tfrecord_io.errors import CorruptRecordError
from tfrecord_io.format.ledger import Shard

__all__ = ["FOLDER", "STRIDE", "check_size", "dump", "file_name", "parse"]

FOLDER = "index"
# The reader's default block: it resumes only between two of them. 8 bytes for 16 records of 2 KB are 0.03 %.
STRIDE = 16

_DTYPE = np.dtype("<u8")
_REMEDY = "run `prep-tfrecords verify DATASET --repair`, which makes it again"


def file_name(shard_name: str) -> str:
    """The path of a shard's index, relative to the dataset's folder."""
    return f"{FOLDER}/{shard_name}.offsets"


def dump(record_bytes: np.ndarray) -> bytes:
    """Return the index of records of these sizes in bytes, with their frames, int64 [n]."""
    starts = np.cumsum(record_bytes) - record_bytes
    return starts[::STRIDE].astype(_DTYPE).tobytes()


def check_size(num_bytes: int, *, shard: Shard, stride: int, place: str) -> None:
    """Raises: CorruptRecordError if the index of `shard` cannot be of this size."""
    expected = -(-shard.num_examples // stride) * _DTYPE.itemsize
    if num_bytes != expected:
        raise CorruptRecordError(
            f"{place}: {num_bytes} bytes, expected {expected} for {shard.num_examples} examples", remedy=_REMEDY
        )


def parse(content: bytes, *, shard: Shard, stride: int, place: str) -> np.ndarray:
    """Byte offsets int64 [ceil(num_examples / stride)] of every `stride`-th record.

    Raises: CorruptRecordError if `content` cannot be the index of `shard`.
    """
    check_size(len(content), shard=shard, stride=stride, place=place)
    offsets = np.frombuffer(content, _DTYPE)
    # Compared as they are, unsigned: what is too large for int64 must not become negative.
    ascending = bool(np.all(offsets[1:] > offsets[:-1]))
    if len(offsets) and (offsets[0] != 0 or not ascending or offsets[-1] >= shard.num_bytes):
        raise CorruptRecordError(
            f"{place}: expected offsets that ascend from 0 and stay below {shard.num_bytes}, the bytes of the shard",
            remedy=_REMEDY,
        )
    return offsets.astype(np.int64)
