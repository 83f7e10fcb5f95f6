"""Reads a built dataset as a trainer would, and shows what comes out: `python scripts/show_batches.py DATASET`.

One batch for training, then one whole pass for evaluation. The pass must give exactly the examples that the manifest
promises: rows that only fill up the last batch have weight 0, so the sum of all weights is the number of examples.
Exit status: 0 if both numbers agree, 1 if not or if the dataset cannot be read.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfrecord_io.errors import PrepError
from tfrecord_io.shown import visible_line

if TYPE_CHECKING:
    import tensorflow as tf


def show(root: str, *, batch_size: int) -> bool:
    """Prints both readings; whether the evaluation pass gave what the manifest says."""
    from tfrecord_io import reader

    data = reader.open(root)
    names = [name for name, split in data.splits.items() if split.num_examples]
    if not names:
        raise PrepError(f"{root}: no split has an example", remedy="see the ledger: prep-tfrecords inspect " + root)
    training = "train" if "train" in names else names[0]
    # One split is enough: a pass in order over the training split is as good a check.
    evaluation = next((name for name in names if name != training), training)

    batches = data.dataset(training, global_batch_size=batch_size, seed=0, training=True)
    print(f"split {training!r}, training: one batch of {batch_size}")
    for batch in batches.take(1):
        _print_batch(batch)

    seen, steps = _read_all(data.dataset(evaluation, global_batch_size=batch_size, training=False))
    expected = data.num_examples(evaluation)
    print(f"split {evaluation!r}, evaluation: {steps} batches, {seen} examples seen, {expected} in the manifest")
    return seen == expected


def _print_batch(batch: dict[str, tf.Tensor]) -> None:
    width = max(map(len, batch))
    for name, value in batch.items():
        print(f"  {name:{width}}  {value.dtype.name:8}{value.shape.as_list()!s:11}  first: {_start(value)}")


def _start(value: tf.Tensor, *, limit: int = 8) -> str:
    """The first row's first numbers."""
    numbers = value.numpy()[0].reshape(-1)
    return " ".join(f"{number:g}" for number in numbers[:limit]) + (" …" if numbers.size > limit else "")


def _read_all(batches: tf.data.Dataset) -> tuple[int, int]:
    """Examples (rows of weight 1) and batches of one pass."""
    weights = [batch["example_weight"].numpy().sum() for batch in batches]
    return round(float(sum(weights))), len(weights)


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="show_batches.py", description="Show what a trainer gets from a dataset.")
    parser.add_argument("dataset", help="the folder that prep-tfrecords build wrote, local or gs://")
    parser.add_argument("--batch-size", type=int, default=32, help="examples in a batch (default: %(default)s)")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    try:
        agrees = show(options.dataset, batch_size=options.batch_size)
    except PrepError as error:
        return _fail(error.cause, remedy=error.remedy)
    except tf.errors.OpError as error:  # what the graph meets while it reads, such as a damaged record
        return _fail(f"{options.dataset}: {error.message}", remedy=_repair(options.dataset))
    if not agrees:
        return _fail("the pass did not give the manifest's examples", remedy=_repair(options.dataset))
    return 0


def _repair(root: str) -> str:
    return f"run `prep-tfrecords verify {root} --repair`, which finds what is damaged and makes it again"


def _fail(cause: str, *, remedy: str) -> int:
    print(f"error: {visible_line(cause)}", file=sys.stderr)
    if remedy:
        print(f"remedy: {visible_line(remedy)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
