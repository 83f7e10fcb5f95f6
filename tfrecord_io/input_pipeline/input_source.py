"""Read shards with `tf.data`: whole, or from any row on.

To start in its middle, a shard's index (`record_index`) gives the byte of the last indexed record before the row, and
the few records in between are skipped:

    bytes      0 ............ offsets[row // stride] ............................ end
    records    not read      │ skipped: row % stride │ given: num_examples - row

The client reads the indexes; the graph holds byte offsets and runs no Python. A compressed shard has no index: it is
read from its beginning, and all records before the row are skipped.
"""

import concurrent.futures
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrecord_io.errors import ReaderError
from tfrecord_io.format import record_index
from tfrecord_io.format.ledger import Shard
from tfrecord_io.input_pipeline.input_plan import Order, Shuffle
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import BoundObjective

# Large sequential reads: an object store answers a request for 8 MiB about as fast as one for 256 KiB.
_READ_BYTES = 8 * 1024 * 1024
# An object store takes 20 to 50 ms for each request, and serves many at a time.
_REQUESTS = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitShards:
    """Shards of one split in folder `root`; `index_stride` as in the manifest.

    seed: decides the order of its own records. rate: its share of the rows of a mixture, which calls it `name`.
    """

    name: str
    root: str
    shards: Sequence[Shard]
    compression: str
    index_stride: int | None
    seed: int
    rate: float = 1.0

    @functools.cached_property
    def paths(self) -> tuple[str, ...]:
        """Path of each shard."""
        return tuple(join(self.root, shard.name) for shard in self.shards)

    @functools.cached_property
    def rows(self) -> tuple[int, ...]:
        """Number of records in each shard."""
        return tuple(shard.num_examples for shard in self.shards)

    def records(self, paths: Any, num_rows: Any) -> tf.data.Dataset:
        """Return the serialized records of whole shards. Reading fails if there are more or fewer than `num_rows`."""
        records = tf.data.TFRecordDataset(
            tf.constant(paths, tf.string) if isinstance(paths, tuple) else paths,
            compression_type=self._compression_type,
            buffer_size=_READ_BYTES,
        )
        return records.apply(tf.data.experimental.assert_cardinality(num_rows))

    def starts(self, shards: np.ndarray, rows: np.ndarray) -> tuple[tf.Tensor, ...]:
        """Return the arguments of `records_from` as columns, so that each of `shards` starts at its row in `rows`.

        Raises: ReaderError if the index of a shard to start in is missing, CorruptRecordError if it is damaged.
        """
        begun = np.flatnonzero(rows)
        found = in_parallel(self._place, shards[begun].tolist(), rows[begun].tolist())
        places = dict(zip(begun.tolist(), found, strict=True))
        columns = zip(*(places.get(at, (0, self.rows[shard], 0)) for at, shard in enumerate(shards)), strict=True)
        paths = tf.constant([self.paths[shard] for shard in shards], tf.string)
        return paths, *(tf.constant(column, tf.int64) for column in columns)

    def records_from(
        self,
        path: tf.Tensor,
        byte: tf.Tensor,
        num_records: tf.Tensor,
        skip: tf.Tensor,
        *,
        buffer_size: int = _READ_BYTES,
    ) -> tf.data.Dataset:
        """Return `num_records` serialized records of one shard, after the first `skip` from `byte` on.

        Reading fails if there are fewer. Use this only in functions that are mapped over a dataset: otherwise
        TensorFlow 2.21 cannot write this operation, which has no public class, into the dataset's graph.
        """
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=path[tf.newaxis],
            compression_type=self._compression_type,
            buffer_size=buffer_size,
            byte_offsets=byte[tf.newaxis],
        )
        records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
        return records.skip(skip).take(num_records).apply(tf.data.experimental.assert_cardinality(num_records))

    def block_bytes(self, index: int, *, length: int) -> np.ndarray:
        """Return where to read each block of `length` records of shard `index`: int64 [ceil(records / length)].

        It is the byte of the last indexed record that is not after the block's beginning.

        Raises: ReaderError if its index is missing, CorruptRecordError if it is damaged.
        """
        shard, stride = self.shards[index], self.index_stride
        assert stride is not None, "the caller has checked it"
        firsts = np.arange(0, shard.num_examples, length, dtype=np.int64)
        return self._offsets(shard, stride)[firsts // stride]

    @property
    def _compression_type(self) -> str:
        return "GZIP" if self.compression == "gzip" else ""

    def _place(self, index: int, row: int) -> tuple[int, int, int]:
        """Return where to start shard `index` at its row `row`: byte, number of records to read, number to skip."""
        shard, stride = self.shards[index], self.index_stride
        left = shard.num_examples - row
        if stride is None or row < stride:
            return 0, left, row
        return (
            (int(self._offsets(shard, stride)[row // stride]), left, row % stride) if left else (shard.num_bytes, 0, 0)
        )

    def _offsets(self, shard: Shard, stride: int) -> np.ndarray:
        path = join(self.root, record_index.file_name(shard.name))
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                # One byte more than expected, to notice a longer file.
                content = bytes(file.read(record_index.num_bytes(shard, stride=stride) + 1))
        except tf.errors.OpError as error:
            raise ReaderError(
                f"{path}: cannot be read ({type(error).__name__}: {error.message}), expected the index of the shard, "
                "which is read from the middle on",
                remedy=f"run `prep-tfrecords verify {self.root} --repair`, which makes it again",
            ) from error
        return record_index.parse(content, shard=shard, stride=stride, place=path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputRequest:
    """Checked arguments of `input_fn`, the same on every host. An evaluation has one source.

    manifest: describes the records of all sources. keep: features of text and bytes that elements have.
    """

    manifest: Manifest
    split: str
    sources: tuple[SplitShards, ...]
    global_batch_size: int
    seed: int
    objective: BoundObjective | None
    training: bool
    shuffle: Shuffle
    deterministic: bool
    order: Order
    start_step: int
    keep: tuple[str, ...] = ()


def join(folder: str, name: str) -> str:
    """Return the path of a file in a folder of any scheme."""
    return folder.rstrip("/") + "/" + name


def in_parallel(request: Any, *arguments: Any) -> list[Any]:
    """Call `request` concurrently with the arguments at each position, and return the results in order."""
    with concurrent.futures.ThreadPoolExecutor(_REQUESTS) as pool:
        return list(pool.map(request, *arguments))
