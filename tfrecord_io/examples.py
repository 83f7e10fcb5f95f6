"""Encode arrays as `tf.train.Example` bytes and decode them, thousands of rows at a time, without TensorFlow.

With the int64 feature `ids` and the float32 feature `score`, row i of the arrays becomes record i:

    ids   int32[N, 3] ──► 0a 24 │ 0a 0f  0a 03 "ids"  12 08  1a 06  0a 04  07 80 02 00 │ ... "score" ...
    score float32[N]            │ └ one entry of the map: 7, 256 and 0 as varints
                                └ size of the map

`encode` writes the bytes of Python's `SerializeToString(deterministic=True)`, and `decode` accepts no others. So any
other byte in a record is damage.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from tfrecord_io.codec import encoding
from tfrecord_io.codec.decoding import Decoder, damage
from tfrecord_io.codec.kernels import frozen
from tfrecord_io.errors import CorruptRecordError
from tfrecord_io.schema import Schema

__all__ = ["Payloads", "decode", "encode"]

REMEDY = "run `prep-tfrecords verify DATASET --repair`, which makes the shard again, or copy it from where it was made"

# Smallest size of a value. Text may be empty.
_LEAST_BYTES = {"int64": 1, "float32": 4}


@dataclasses.dataclass(frozen=True, eq=False)
class Payloads:
    """N serialized messages, back to back.

    data: uint8 [total], contiguous. offsets: int64 [N + 1]; message i is data[offsets[i] : offsets[i + 1]].

    Raises: ValueError if the offsets do not partition the data.
    """

    data: np.ndarray
    offsets: np.ndarray

    def __post_init__(self) -> None:
        data, offsets = self.data, self.offsets
        # Kernels follow the offsets without checking bounds.
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
            raise ValueError(f"payload data {data.dtype}{list(data.shape)}, expected contiguous uint8[total]")
        if offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) == 0:
            raise ValueError(f"payload offsets {offsets.dtype}{list(offsets.shape)}, expected int64[N + 1]")
        if offsets[0] != 0 or offsets[-1] != len(data) or (offsets[1:] < offsets[:-1]).any():
            raise ValueError(f"payload offsets do not ascend from 0 to {len(data)}")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"message {index} of {len(self)}")
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return (self[index] for index in range(len(self)))


def encode(columns: Mapping[str, np.ndarray], schema: Schema) -> Payloads:
    """Serialize row i of every column as Example i.

    Args:
        columns: one array [N, *shape] per feature. For int64 features: bool, integers of up to 32 bits, or int64. For
            float32 features: float32; all bits are kept, even of NaNs. For text or bytes: objects, `str` or `bytes`.

    Raises: SchemaError if a column is missing, unknown, or has another dtype, shape or number of rows.
    """
    return Payloads(*encoding.write(columns, schema, framed=False))


def decode(payloads: Payloads, schema: Schema, *, place: str) -> dict[str, np.ndarray]:
    """Decode records into one array per feature, in the schema's order: the inverse of `encode`.

    Returns: int64 [N, *shape] or float32 [N, *shape]; objects [N] for text and bytes.

    Raises: CorruptRecordError, which names `place` and the first record that `encode` cannot have written.
    """
    least = sum(feature.num_values * _LEAST_BYTES.get(feature.dtype, 0) for feature in schema.features)
    sizes_N = np.diff(payloads.offsets)
    if len(small := np.flatnonzero(sizes_N < least)):
        raise CorruptRecordError(
            f"{place}, record {small[0]}: {sizes_N[small[0]]} bytes, "
            f"expected at least {least} for the values of {list(schema.names)}",
            remedy=REMEDY,
        )
    offsets = frozen(payloads.offsets)
    sound, columns = Decoder(schema).read(frozen(payloads.data), offsets[:-1], offsets[1:])
    if sound < len(payloads):
        what = damage(payloads[sound], schema) or "no Example"
        raise CorruptRecordError(f"{place}, record {sound}, {what}", remedy=REMEDY)
    return columns
