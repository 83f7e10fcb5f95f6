"""One way of reading rows in a process of its own, for some seconds. Its result on stdout.

python -m scripts.benchmarks.random_worker CONTENDER DATASET_FOLDER SECONDS   ->   {"rows_per_second": ...}
"""

from __future__ import annotations

import functools
import itertools
import json
import pathlib
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

BATCH_SIZE = 256


def main() -> None:
    contender, root, seconds = sys.argv[1], pathlib.Path(sys.argv[2]), float(sys.argv[3])
    json.dump(_opened(root) if contender == "open" else _speed(CONTENDERS[contender](root), seconds), sys.stdout)


def _speed(batches: Iterator[int], seconds: float) -> dict[str, float]:
    """Takes batches for that long, after as long to warm up."""
    for _ in range(2):
        started, rows = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - started) < seconds:
            rows += next(batches)
    return {"rows_per_second": rows / elapsed}


def _opened(root: pathlib.Path) -> dict[str, float]:
    from tfrecord_io import random_access

    started = time.perf_counter()
    rows = random_access.open(root)["train"]
    seconds = time.perf_counter() - started
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows[0]
    return {"seconds": seconds, "megabytes": megabytes}


def _rows(root: pathlib.Path) -> Any:
    from tfrecord_io import random_access

    return random_access.open(root)["train"]


def _array_record(root: pathlib.Path) -> Any:
    """The same rows as ArrayRecord files, one for each shard; made once."""
    import grain
    from array_record.python import array_record_module

    rows = _rows(root)
    paths: list[str] = []
    for shard in rows.manifest.splits["train"].shards:
        path = root / f"{shard.name}.array_record"
        first = len(paths) * shard.num_examples
        paths.append(str(path))
        if not path.exists():
            writer = array_record_module.ArrayRecordWriter(f"{path}.partial", "group_size:1")
            for ids_L in rows[first : first + shard.num_examples]["input_ids"].astype(np.int32):
                writer.write(ids_L.tobytes())
            writer.close()
            pathlib.Path(f"{path}.partial").rename(path)
    return grain.sources.ArrayRecordDataSource(paths)


def _through_grain(read: Callable[[Any], Any], num_rows: int, *, threads: int) -> Iterator[int]:
    import grain

    batches = grain.MapDataset.range(num_rows).seed(0).shuffle().repeat().batch(BATCH_SIZE).map(read)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
    return (BATCH_SIZE for _ in batches.to_iter_dataset(options))


def _ours(root: pathlib.Path, *, threads: int) -> Iterator[int]:
    rows = _rows(root)
    return _through_grain(rows.batch, len(rows), threads=threads)


def _theirs(root: pathlib.Path, *, threads: int) -> Iterator[int]:
    source = _array_record(root)

    def read(indices: Any) -> np.ndarray:
        return np.stack([np.frombuffer(each, np.int32) for each in source.__getitems__(indices.tolist())])

    return _through_grain(read, len(source), threads=threads)


def _one_by_one(read: Callable[[int], Any], num_rows: int) -> Iterator[int]:
    order = np.random.default_rng(0).permutation(num_rows)
    for at in itertools.count(0, BATCH_SIZE):
        for index in order[np.arange(at, at + BATCH_SIZE) % num_rows].tolist():
            read(index)
        yield BATCH_SIZE


def _ours_one_by_one(root: pathlib.Path) -> Iterator[int]:
    rows = _rows(root)
    return _one_by_one(rows.__getitem__, len(rows))


def _theirs_one_by_one(root: pathlib.Path) -> Iterator[int]:
    source = _array_record(root)
    return _one_by_one(lambda index: np.frombuffer(source[index], np.int32), len(source))


def _ours_in_order(root: pathlib.Path) -> Iterator[int]:
    rows = _rows(root)
    starts: Iterable[int] = itertools.cycle(range(0, len(rows) - BATCH_SIZE, BATCH_SIZE))
    return (len(rows[start : start + BATCH_SIZE]["input_ids"]) for start in starts)


def _reader_in_order(root: pathlib.Path) -> Iterator[int]:
    from tfrecord_io import reader

    data = reader.open(str(root)).dataset("train", global_batch_size=BATCH_SIZE, training=False)
    return (BATCH_SIZE for _ in data.repeat())


CONTENDERS: dict[str, Callable[[pathlib.Path], Iterator[int]]] = {
    "ours_1": functools.partial(_ours, threads=1),
    "ours_8": functools.partial(_ours, threads=8),
    "array_record_1": functools.partial(_theirs, threads=1),
    "array_record_8": functools.partial(_theirs, threads=8),
    "ours_rows": _ours_one_by_one,
    "array_record_rows": _theirs_one_by_one,
    "ours_sequential": _ours_in_order,
    "reader_sequential": _reader_in_order,
}

if __name__ == "__main__":
    main()
