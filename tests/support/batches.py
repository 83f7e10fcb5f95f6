"""Digests of batches, to compare whole streams."""

import hashlib
from collections.abc import Iterable
from typing import Any

import tensorflow as tf


def digests(elements: Iterable[Any]) -> list[str]:
    return [
        hashlib.sha256(b"".join(leaf.numpy().tobytes() for leaf in tf.nest.flatten(element))).hexdigest()
        for element in elements
    ]
