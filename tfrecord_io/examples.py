"""Encode arrays as `tf.train.Example` records and decode them, without TensorFlow.

`encode` writes the same bytes as `SerializeToString(deterministic=True)` in Python (docs/format.md). `decode` treats
any other bytes as damage.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from tfrecord_io.codec import encoding
from tfrecord_io.codec.decoding import Decoder, damage
from tfrecord_io.codec.kernels import frozen
from tfrecord_io.errors import CorruptRecordError
from tfrecord_io.schema import Schema
from tfrecord_io.shown import some

__all__ = ["Payloads", "decode", "encode"]

REMEDY = "run `prep-tfrecords verify DATASET --repair` to remake the shard, or copy the shard again from its origin"

# Minimum bytes of a value. Text may be empty.
_LEAST_BYTES = {"int64": 1, "float32": 4}


@dataclasses.dataclass(frozen=True, eq=False)
class Payloads:
    """Serialized messages in one buffer.

    data: all N messages, contiguous uint8.
    offsets: int64 [N + 1]; message i is data[offsets[i] : offsets[i + 1]].

    Raises: ValueError if the offsets do not ascend from 0 to the length of the data.
    """

    data: np.ndarray
    offsets: np.ndarray

    def __post_init__(self) -> None:
        data, offsets = self.data, self.offsets
        # Kernels follow the offsets without checking bounds.
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
            raise ValueError(f"payload data is {data.dtype}{list(data.shape)}, expected contiguous uint8[total]")
        if offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) == 0:
            raise ValueError(f"payload offsets are {offsets.dtype}{list(offsets.shape)}, expected int64[N + 1]")
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
    """Serialize N rows as Examples.

    Args:
        columns: one array [N, *shape] per feature. int64 features take bool, int64 and integers of up to 32 bits;
            float32 features take float32, and NaNs keep their bits; text and bytes take objects (`str`, `bytes`).

    Raises: SchemaError if a column is missing or unknown, or has a wrong dtype, shape or number of rows.
    """
    return Payloads(*encoding.write(columns, schema, framed=False))


def decode(payloads: Payloads, schema: Schema, *, place: str) -> dict[str, np.ndarray]:
    """Decode N Examples into arrays by feature name: [N, *shape] of int64 or float32; objects [N] for text and bytes.

    `place`: the file, for error messages. Raises: CorruptRecordError for the first damaged Example.
    """
    least = sum(feature.num_values * _LEAST_BYTES.get(feature.dtype, 0) for feature in schema.features)
    sizes_N = np.diff(payloads.offsets)
    if len(small := np.flatnonzero(sizes_N < least)):
        raise CorruptRecordError(
            f"{place}, record {small[0]}: {some(int(sizes_N[small[0]]), 'byte')}, "
            f"expected at least {least} for the values of {list(schema.names)}",
            remedy=REMEDY,
        )
    offsets = frozen(payloads.offsets)
    sound, columns = Decoder(schema).read(frozen(payloads.data), offsets[:-1], offsets[1:])
    if sound < len(payloads):
        problem = damage(payloads[sound], schema) or "not a tf.train.Example"
        raise CorruptRecordError(f"{place}, record {sound}, {problem}", remedy=REMEDY)
    return columns
