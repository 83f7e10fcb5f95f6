"""From a split's shards to its global order: what decides it beside the seed, in one place for all readers.

A split of up to 64 MB is read into memory as a whole, and its order is a full permutation (blocks of one row); of a
larger one blocks of rows are permuted, so that one read brings many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfrecord_io.format.ledger import Shard
from tfrecord_io.input_pipeline.input_plan import Shuffle
from tfrecord_io.mixing import mixing_plan
from tfrecord_io.ordering.batch_columns import BatchColumns
from tfrecord_io.ordering.global_order import GlobalOrder

__all__ = ["GCS_BLOCK_SIZE", "USUAL_SHUFFLE", "batch_columns", "fits_in_memory", "global_order"]

# One read fetches a block of 64 records: 16 would cost 5 us of CPU time more for each of them, beside 11, and 128 would
# save 1 us. The window is that of all hosts together.
USUAL_SHUFFLE = Shuffle(block_length=64, window=16384)

# The variable that says how much TensorFlow asks gs:// for at a time, read when it is imported.
GCS_BLOCK_SIZE = "GCS_READ_CACHE_BLOCK_SIZE_MB"

_MEMORY_BYTES = 64 << 20
# How large a gzip shard becomes is not known before it is read: token ids shrink to a third, padding to nothing.
_GZIP_RATIO = 8


def fits_in_memory(shards: Sequence[Shard], *, compression: str) -> bool:
    """Return whether a split is kept in memory to be read in the global order."""
    num_bytes = sum(shard.num_bytes for shard in shards)
    return num_bytes * (_GZIP_RATIO if compression == "gzip" else 1) <= _MEMORY_BYTES


def batch_columns(rates: Mapping[str, float], *, global_batch_size: int) -> tuple[BatchColumns, ...]:
    """The columns of each dataset of a mixture, or of one dataset by itself.

    Raises: ReaderError if a rate is too small for a batch of this size.
    """
    cycle = mixing_plan.cycle(tuple(rates.items()), rows=global_batch_size)
    return tuple(BatchColumns(cycle=cycle, part=part) for part in range(len(rates)))


def global_order(
    shards: Sequence[Shard], *, compression: str, seed: int, shuffle: Shuffle, batches: BatchColumns
) -> GlobalOrder:
    """The order of a split's rows, of one dataset or of one among several."""
    steps = -(-shuffle.window // batches.batch_rows)
    return GlobalOrder(
        shard_rows=tuple(shard.num_examples for shard in shards),
        seed=seed,
        block=1 if fits_in_memory(shards, compression=compression) else shuffle.block_length,
        window=max(1, round(steps * batches.mean_rows)),
        batches=batches,
    )
