"""How well an epoch is shuffled, for a source that is sorted: by label, or by length. Prints a table.

    python -m scripts.benchmarks.shuffle_quality [WORKDIR]

A source of 204,800 rows is written as `build` does (blocks of rows permuted, rows of a shard permuted) and as it does
with --no-shuffle, into 20 shards, and read in batches of 256. A shard has ten blocks, where those of a build have 32 or
more, and so are more alike. A row's source number is its only token, so that
the reader itself is measured in the order of hosts; the global order is arithmetic.

    distance      between the source numbers of neighbours in a batch, as a share of what a full permutation has
    label, batch  mutual information of label (10 equal ones, sorted) and batch, in millibits: 0 but for chance
    16 batches    the same of the label and each 16 batches in a row: whether batches near in time are alike
    length        the standard deviation of the mean length of batches (lengths 1 to 512, sorted), in tokens
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
from collections.abc import Callable

import numpy as np

from scripts.benchmarks import figures, random_reading
from tfrecord_io.ordering.batch_columns import alone
from tfrecord_io.ordering.global_order import GlobalOrder

_SHARDS, _SHARD_ROWS, _BATCH = 20, 10_240, 256
_ROWS = _SHARDS * _SHARD_ROWS
_BLOCK_ROWS, _LABELS, _LENGTH = 1000, 10, 512


def main() -> None:
    workdir = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    lines = []
    for written, source_rows in (("as built", _as_built()), ("--no-shuffle", np.arange(_ROWS))):
        for name, order in _orders(workdir / written.strip("-"), source_rows).items():
            lines.append([written, name, *_figures(order)])
    lines.append(["", "full permutation", *_figures(np.random.default_rng(1).permutation(_ROWS))])
    print(figures.table(["shards", "order", "distance", "label, batch", "16 batches", "length"], lines))


def _as_built() -> np.ndarray:
    """The source rows in the order of the shards, int64 [N]."""
    rng = np.random.default_rng(0)
    blocks = np.array_split(np.arange(_ROWS), -(-_ROWS // _BLOCK_ROWS))
    rows = np.concatenate([blocks[at] for at in rng.permutation(len(blocks))])
    return np.concatenate([rng.permutation(shard) for shard in np.split(rows, _SHARDS)])


def _orders(folder: pathlib.Path, source_rows: np.ndarray) -> dict[str, np.ndarray]:
    """Source rows in the order of an epoch's batches, int64 [N], by how they are read."""
    if not folder.exists():
        shards = source_rows.astype(np.int32).reshape(_SHARDS, _SHARD_ROWS, 1)
        random_reading.write_dataset(
            folder, num_shards=_SHARDS, rows=_SHARD_ROWS, length=1, ids=lambda shard: shards[shard]
        )
    return {
        "shards in order": source_rows,
        "hosts, 1 host": _of_hosts(folder, hosts=1),
        "hosts, 4 hosts": _of_hosts(folder, hosts=4),
        **{
            f"global, blocks of {block}, window {window:,}": source_rows[_global(block, window)]
            for block, window in ((64, 16384), (16, 16384), (64, 65536))
        },
        "global, up to 64 MB": source_rows[_global(1, 16384)],
    }


def _global(block: int, window: int) -> np.ndarray:
    order = GlobalOrder(shard_rows=(_SHARD_ROWS,) * _SHARDS, seed=1, block=block, window=window, batches=alone(_BATCH))
    return np.concatenate([order.rows(step) for step in range(_ROWS // _BATCH)])


def _of_hosts(folder: pathlib.Path, *, hosts: int) -> np.ndarray:
    import tensorflow as tf

    from tfrecord_io import reader

    inputs = reader.open(str(folder)).input_fn("train", global_batch_size=_BATCH, seed=1)
    batches = [
        inputs(
            tf.distribute.InputContext(num_input_pipelines=hosts, input_pipeline_id=host, num_replicas_in_sync=hosts)
        )
        for host in range(hosts)
    ]
    steps = zip(*(each.take(_ROWS // _BATCH) for each in batches), strict=True)
    return np.concatenate([element["input_ids"].numpy()[:, 0] for step in steps for element in step])


def _figures(rows: np.ndarray) -> list[str]:
    batches = rows.reshape(-1, _BATCH).astype(np.int64)
    labels, lengths = batches * _LABELS // _ROWS, 1 + batches * _LENGTH // _ROWS
    distance = np.abs(np.diff(batches, axis=1)).mean() / (_ROWS / 3)
    of_16 = labels[: len(labels) // 16 * 16].reshape(-1, 16 * _BATCH)
    values: list[tuple[Callable[[float], str], float]] = [
        ("{:.3f}".format, distance),
        ("{:.1f}".format, 1000 * _mutual_information(labels)),
        ("{:.1f}".format, 1000 * _mutual_information(of_16)),
        ("{:.1f}".format, float(lengths.mean(axis=1).std())),
    ]
    return [shown(value) for shown, value in values]


def _mutual_information(labels: np.ndarray) -> float:
    """Bits that a batch's number tells of a label, int64 [batches, rows]."""
    counts = np.stack([(labels == label).sum(axis=1) for label in range(_LABELS)], axis=1) / labels.size
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0)
    there = counts > 0
    return float((counts[there] * np.log2(counts[there] / expected[there])).sum())


if __name__ == "__main__":
    main()
