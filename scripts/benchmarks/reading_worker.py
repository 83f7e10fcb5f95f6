"""One reader in a process of its own: warms up, then counts examples for some seconds. Its result on stdout.

    python -m scripts.benchmarks.reading_worker CONTENDER DATASET_FOLDER SECONDS   ->   {"examples_per_second": ...}

The warm-up starts with the first batch, so shuffle buffers are full and tf.data's autotuning has settled. Our library
is imported only by the contenders that use it.
"""

import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from scripts.benchmarks import baselines

BATCH_SIZE = 256
_WARM_UP_SHARE = 0.5


def main() -> None:
    contender, root, seconds = sys.argv[1], pathlib.Path(sys.argv[2]), float(sys.argv[3])
    batches = iter(CONTENDERS[contender](root))
    next(batches)
    consume(batches, seconds * _WARM_UP_SHARE)
    json.dump({"examples_per_second": consume(batches, seconds)}, sys.stdout)


def consume(batches: Iterator[Any], seconds: float) -> float:
    """Takes batches for that long. Returns: examples per second."""
    started, taken = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        next(batches)
        taken += 1
    return taken * BATCH_SIZE / elapsed


def _ours(root: pathlib.Path, *, objective: Any = None) -> Any:
    from tfrecord_io import reader

    split, data = baselines.split_name(root), reader.open(str(root))
    return data.dataset(split, global_batch_size=BATCH_SIZE, seed=0, objective=objective, training=True)


def _ours_objective(root: pathlib.Path) -> Any:
    from tfrecord_io import objectives

    return _ours(root, objective=objectives.masked_lm())


def _per_record(root: pathlib.Path) -> Any:
    return baselines.per_record(root, batch_size=BATCH_SIZE)


def _bare(root: pathlib.Path) -> Any:
    return baselines.bare(root, batch_size=BATCH_SIZE)


def _bare_objective(root: pathlib.Path) -> Any:
    from tfrecord_io import objectives

    return baselines.bare_objective(root, batch_size=BATCH_SIZE, objective=objectives.masked_lm())


CONTENDERS: dict[str, Callable[[pathlib.Path], Any]] = {
    "ours": _ours,
    "bare": _bare,
    "per_record": _per_record,
    "ours_objective": _ours_objective,
    "bare_objective": _bare_objective,
}

if __name__ == "__main__":
    main()
