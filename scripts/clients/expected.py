"""Read our datasets with our own reader, for comparison, and run our programs."""

import subprocess
import sys
from typing import Any

import numpy as np

from tfrecord_io import random_access

WORK = sys.argv[1]


def run(*words: str) -> str:
    """Run Python with these arguments, and return its output. Exits with its errors if it fails."""
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    return ended.stdout if ended.returncode == 0 else sys.exit(ended.stderr[-2000:])


def rows(layout: str, split: str = "train") -> dict[str, np.ndarray]:
    """Return all rows of the dataset in WORK/LAYOUT as arrays by feature name, in the shards' order."""
    opened = random_access.open(f"{WORK}/{layout}")[split]
    return opened.batch(range(len(opened)))


def unpadded(columns: dict[str, np.ndarray]) -> list[list[int]]:
    """Return the token ids of each row without padding. `columns`: as `rows` returns them."""
    if "num_tokens" in columns:
        return [ids[:n].tolist() for ids, n in zip(columns["input_ids"], columns["num_tokens"], strict=True)]
    mask = columns["attention_mask"] if "attention_mask" in columns else columns["segment_ids"]
    return [ids[chosen > 0].tolist() for ids, chosen in zip(columns["input_ids"], mask, strict=True)]


def require_same(name: str, actual: Any, expected: np.ndarray) -> None:
    """Exit with a message that begins with `name` if the arrays differ."""
    if not np.array_equal(np.asarray(actual), expected):
        sys.exit(f"{name}: other values than the shards hold")


def documents(layout: str, split: str = "train") -> list[tuple[list[int], list[int]]]:
    """Return the token ids of each document in packed rows, and a mask that is 1 on tokens to learn."""
    columns = rows(layout, split)
    learned = columns.get("loss_mask", np.ones_like(columns["input_ids"]))
    return [
        (ids[segments == segment].tolist(), mask[segments == segment].tolist())
        for ids, segments, mask in zip(columns["input_ids"], columns["segment_ids"], learned, strict=True)
        for segment in range(1, segments.max() + 1)
    ]
