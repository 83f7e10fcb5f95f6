"""Rows from our reader of single rows, for comparison, and our programs."""

import subprocess
import sys
from typing import Any

import numpy as np

from tfrecord_io import random_access

WORK = sys.argv[1]


def run(*words: str) -> str:
    """Return the output of a Python program that runs in its own process."""
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    return ended.stdout if ended.returncode == 0 else sys.exit(ended.stderr[-2000:])


def rows(layout: str, split: str = "train") -> dict[str, np.ndarray]:
    """Return every column of a split, in the shards' order."""
    found = random_access.open(f"{WORK}/{layout}")[split]
    return found.batch(list(range(len(found))))


def unpadded(columns: dict[str, np.ndarray]) -> list[list[int]]:
    """Return the tokens of each row without padding."""
    if "num_tokens" in columns:
        return [ids[:n].tolist() for ids, n in zip(columns["input_ids"], columns["num_tokens"], strict=True)]
    mask = columns["attention_mask"] if "attention_mask" in columns else columns["segment_ids"]
    return [ids[chosen > 0].tolist() for ids, chosen in zip(columns["input_ids"], mask, strict=True)]


def require_same(name: str, found: Any, expected: np.ndarray) -> None:
    """Exit with the place of the first difference, if there is one."""
    if not np.array_equal(np.asarray(found), expected):
        sys.exit(f"{name}: other values than the shards hold")


def documents(layout: str, split: str = "train") -> list[tuple[list[int], list[int]]]:
    """Return the ids and the mask of the learned tokens of each document of packed rows, in order."""
    columns = rows(layout, split)
    learned = columns.get("loss_mask", np.ones_like(columns["input_ids"]))
    return [
        (ids[segments == segment].tolist(), mask[segments == segment].tolist())
        for ids, segments, mask in zip(columns["input_ids"], columns["segment_ids"], learned, strict=True)
        for segment in range(1, segments.max() + 1)
    ]
