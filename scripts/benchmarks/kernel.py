"""The encoder against `memcpy`: token ids to framed records, and a copy of those records, on one core."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from scripts.benchmarks import figures, preparing
from scripts.benchmarks.figures import Figure, median, number
from tfrecord_io import examples, records
from tfrecord_io.schema import Feature, Schema

__all__ = ["report"]

_ROWS, _LENGTH, _ROUNDS = 1024, 512, 31


def report(settings: preparing.Settings) -> tuple[str, list[Figure]]:
    """The table of this section, and its figure with a bar."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 32_000, (_ROWS, _LENGTH)).astype(np.int32)
    feature = Feature(name="input_ids", dtype="int64", shape=(_LENGTH,), role="token_ids")
    schema = Schema((feature,))
    payloads = examples.encode({"input_ids": ids}, schema)
    framed = records.frame(payloads)
    size = len(framed) / 1e6
    rates = {
        "encode": size / _seconds(lambda: examples.encode({"input_ids": ids}, schema)),
        "frame": size / _seconds(lambda: records.frame(payloads)),
        "both at once": size / _seconds(lambda: records.encode_framed({"input_ids": ids}, schema)),
        "copy": size / _seconds(framed.copy),
    }
    name = "the encoder against a copy of what it writes"
    ratio = rates["encode"] / rates["copy"]
    rows = [[what, number(rate)] for what, rate in rates.items()]
    return figures.table(["what", "MB/s of output, one core"], rows), [
        Figure(name=name, measured=ratio, at_least=0.2, unit="x")
    ]


def _seconds(work: Callable[[], object]) -> float:
    """The median of some rounds, the first of which are not counted."""
    times = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return median(times[3:])
