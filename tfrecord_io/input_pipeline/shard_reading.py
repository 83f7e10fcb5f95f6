"""Read shards with `tf.data`, from any row on.

A shard's index has the byte offset of every `stride`-th record. Compressed shards have none, and are read from their
start.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrecord_io.errors import ReaderError
from tfrecord_io.format import record_index
from tfrecord_io.input_pipeline.host_plan import Order, Shuffle
from tfrecord_io.manifest import Manifest, Shard
from tfrecord_io.mixing.mixing_plan import Rates
from tfrecord_io.objectives import BoundObjective

# A request of 8 MiB to an object store takes little longer than one of 256 KiB.
READ_BYTES, LEAST_READ_BYTES = 8 * 1024 * 1024, 256 * 1024
# TensorFlow's names of compressions.
TYPES = {"none": "", "gzip": "GZIP"}
# Stride of an index with the first record only.
NO_INDEX = 2**62


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitShards:
    """Shards of a split. `index_stride` is None if they have no index; `seed` determines the order of records."""

    root: str
    shards: Sequence[Shard]
    compression: str
    index_stride: int | None
    seed: int

    @functools.cached_property
    def paths(self) -> tuple[str, ...]:
        return tuple(join(self.root, shard.name) for shard in self.shards)

    @functools.cached_property
    def rows(self) -> tuple[int, ...]:
        return tuple(shard.num_examples for shard in self.shards)

    def block_bytes(self, index: int, *, length: int) -> np.ndarray:
        """Return the byte offset from which to read each block of `length` records of shard number `index`, int64 [n].

        Raises: ReaderError if the index is missing, CorruptRecordError if it is damaged.
        """
        shard, stride = self.shards[index], self.index_stride
        assert stride is not None, "the caller has checked it"
        path = join(self.root, record_index.file_name(shard.name))
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                # One more byte detects a longer file.
                content = bytes(file.read(record_index.num_bytes(shard, stride=stride) + 1))
        except tf.errors.OpError as error:
            raise ReaderError(
                f"{path}: cannot be read ({type(error).__name__}: {error.message}), expected the shard's index, which "
                "is needed to read from the middle of the shard",
                remedy=f"run `prep-tfrecords verify {self.root} --repair` to remake it",
            ) from error
        offsets = record_index.parse(content, shard=shard, stride=stride, place=path)
        return offsets[np.arange(0, shard.num_examples, length) // stride]

    @property
    def columns(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.constant(self.paths, tf.string), tf.constant(self.rows, tf.int64)

    @property
    def num_rows(self) -> int:
        return sum(self.rows)


def pieces(paths_S: tf.Tensor, rows_S: tf.Tensor, first: Any, last: Any) -> tuple[tf.Tensor, ...]:
    """Return the parts of S shards that contain the rows [first, last). `rows_S`: numbers of the shards' rows.

    Returns: for n parts, the shard's path, string [n]; its number of rows, the part's first row in it and the part's
        number of rows, int64 [n].
    """
    begins_S = tf.cumsum(rows_S, exclusive=True)
    firsts_S, lasts_S = (tf.clip_by_value(tf.cast(at, tf.int64) - begins_S, 0, rows_S) for at in (first, last))
    used = tf.where(lasts_S > firsts_S)[:, 0]
    return tuple(tf.gather(column, used) for column in (paths_S, rows_S, firsts_S, lasts_S - firsts_S))


def records_from(
    path: tf.Tensor,
    rows: tf.Tensor,
    first: tf.Tensor,
    count: tf.Tensor,
    *,
    compression: Any,
    index_stride: Any,
    buffer_size: int = READ_BYTES,
) -> tf.data.Dataset:
    """Return `count` serialized records of a shard that has `rows` records, from record `first` on.

    Reading fails if the shard has fewer records, or is read to its end and has more. Call only as `records_at`.
    """
    start = functools.partial(_offset, path, first, count=-(-rows // index_stride), index_stride=index_stride)
    byte, skip = tf.cond(first < index_stride, lambda: tf.zeros([], tf.int64), start), first % index_stride
    most = tf.where(first + count == rows, tf.constant(-1, tf.int64), count)
    return records_at(path, byte, most, skip, count, compression=compression, buffer_size=buffer_size)


def _offset(path: tf.Tensor, row: tf.Tensor, *, count: tf.Tensor, index_stride: Any) -> tf.Tensor:
    index = tf.strings.regex_replace(path, "([^/]+)$", record_index.file_name(r"\1"))
    offsets = tf.io.decode_raw(tf.io.read_file(index), tf.int64)
    whole = tf.size(offsets, tf.int64) == count
    with tf.control_dependencies([tf.debugging.Assert(whole, [index, "is not the index of its shard"])]):
        return offsets[row // index_stride]


def records_at(
    path: tf.Tensor,
    byte: tf.Tensor,
    most: tf.Tensor,
    skip: tf.Tensor,
    num_records: tf.Tensor,
    *,
    compression: Any,
    buffer_size: int = READ_BYTES,
) -> tf.data.Dataset:
    """Read a shard from byte `byte` on, skip `skip` records, and return the next `most` serialized ones, or all if -1.

    Reading fails if their number is not `num_records`. Call only in functions mapped over a dataset: TensorFlow 2.21
    cannot serialize this operation elsewhere.
    """
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=path[tf.newaxis],
        compression_type=compression,
        buffer_size=buffer_size,
        byte_offsets=byte[tf.newaxis],
    )
    records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    return records.skip(skip).take(most).apply(tf.data.experimental.assert_cardinality(num_records))


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputRequest:
    """Checked arguments of `InputFunctions.input_fn`, the same on every host.

    sources: one per dataset; an evaluation has one.
    rates: shares of the datasets by step, empty in an evaluation.
    end_step: number of steps after which the batches end; None if they are endless.
    """

    manifest: Manifest
    sources: tuple[SplitShards, ...]
    global_batch_size: int
    seed: int
    objective: BoundObjective | None
    training: bool
    shuffle: Shuffle
    order: Order
    start_step: int
    rates: Rates
    end_step: int | None = None
    keep: tuple[str, ...] = ()


def join(folder: str, name: str) -> str:
    return folder.rstrip("/") + "/" + name
