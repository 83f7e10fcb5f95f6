"""The reader with other sizes of its shuffle than the default ones: where these come from. A table on stdout.

    python -m scripts.benchmarks.reader_tuning DATASET_FOLDER [SECONDS] [ROUNDS]

Each choice differs from the default in one size. Choices take turns, since the machine may be noisy, and each run is a
process of its own. Shards on a local disk only: what the latency of a bucket does to the number of open
shards needs a bucket.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

from scripts.benchmarks import baselines, figures, measure
from scripts.benchmarks.reading_worker import BATCH_SIZE, consume

__all__ = ["CHOICES"]

CHOICES: dict[str, dict[str, Any]] = {
    "default": {},
    **{f"cycle_length {size}": {"cycle_length": size} for size in (1, 4, 64)},
    **{f"block_length {size}": {"block_length": size} for size in (1, 4, 64, 256)},
    **{f"window {size:,}": {"window": size} for size in (1024, 65536)},
    "deterministic=False": {"deterministic": False},
}
_WARM_UP_SHARE = 0.5


def main() -> None:
    """Runs every choice, or, with a choice as the fourth argument, that one in this process."""
    root, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
    if len(sys.argv) > 4:
        json.dump({"examples_per_second": _measured(root, CHOICES[sys.argv[4]], seconds)}, sys.stdout)
        return
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    found: dict[str, list[float]] = {name: [] for name in CHOICES}
    for _ in range(rounds):
        for name, rates in found.items():
            command = [sys.executable, "-m", "scripts.benchmarks.reader_tuning", str(root), str(seconds), "1", name]
            rates.append(float(measure.run(command).result["examples_per_second"]))
    default = figures.median(found["default"])
    rows = [
        [name, figures.spread(rates), figures.number(figures.median(rates) / default)] for name, rates in found.items()
    ]
    print(figures.table(["sizes", "examples/s", "of the default"], rows))


def _measured(root: pathlib.Path, sizes: dict[str, Any], seconds: float) -> float:
    from tfrecord_io import reader
    from tfrecord_io.input_pipeline import input_plan

    sizes = dict(sizes)
    deterministic = sizes.pop("deterministic", True)
    batches = iter(
        reader.open(str(root)).dataset(
            baselines.split_name(root),
            global_batch_size=BATCH_SIZE,
            training=True,
            shuffle=input_plan.Shuffle(**sizes),
            deterministic=deterministic,
        )
    )
    next(batches)
    consume(batches, seconds * _WARM_UP_SHARE)
    return consume(batches, seconds)


if __name__ == "__main__":
    main()
