"""Hosts and parts that make a training's batches: recorded when it begins, kept when it resumes on other devices.

In the order of hosts, batches depend on the number of hosts that read them, and masks on the number of parts, one for
each device, in which they are made. JAX takes a batch as a whole. So where a training that began on 4 hosts of 2
devices goes on with 2 hosts of 1, each of these reads what two of the former read:

    parts         0 1 │ 2 3 │ 4 5 │ 6 7
    before       host 0│  1  │  2  │  3           4 streams of rows, each of which makes 2 parts of a step
    now          host 0      │  1                 2 of these streams each

With more hosts than before, several read the same stream, and each keeps its parts. In the global order nothing of
this matters. TensorFlow's strategies ask each host for its own part, so with another number of hosts they cannot go on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfrecord_io.errors import FingerprintMismatchError
from tfrecord_io.format import json_fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputParts:
    """Number of hosts that make a batch, and of the parts in which they make it; 0 parts are one per replica."""

    hosts: int
    parts: int = 0

    def kept(self, recorded: Mapping[str, Any], *, order: str, model_dir: str) -> InputParts:
        """Return the hosts and parts to resume with, given those that were `recorded` when the training began.

        Raises: FingerprintMismatchError if these hosts cannot make its batches.
        """
        began = InputParts(**{name: json_fields.count(recorded[name]) for name in ("hosts", "parts")})
        if order == "global" or (began.parts % self.hosts == 0 if began.parts else began.hosts == self.hosts):
            return self if order == "global" else began
        fitting = [each for each in range(1, began.parts + 1) if began.parts % each == 0] or [began.hosts]
        raise FingerprintMismatchError(
            f"--model-dir {model_dir} holds a training that began on {began.hosts} hosts, now {self.hosts}: by --order "
            f"hosts, its batches follow from their number, expected one of {fitting}",
            remedy="go on with as many hosts, or begin in another --model-dir with --order global, which goes on with "
            "any number",
        )

    def read(self, make: Callable[[tf.distribute.InputContext], tf.data.Dataset], *, host: int, hosts: int) -> Any:
        """Return the part of each global batch that host `host` of `hosts` reads: arrays [parts / hosts, rows, ...]."""
        each_made = self.parts // self.hosts
        first, last = (self.parts // hosts * at for at in (host, host + 1))

        def stream(former: int) -> tf.data.Dataset:
            context = tf.distribute.InputContext(
                num_input_pipelines=self.hosts, input_pipeline_id=former, num_replicas_in_sync=self.parts
            )
            own = slice(max(0, first - former * each_made), last - former * each_made)
            steps = make(context).batch(each_made, drop_remainder=True)
            return steps.map(lambda *step: tf.nest.map_structure(lambda values: values[own], step))

        streams = tuple(map(stream, range(first // each_made, (last - 1) // each_made + 1)))
        joined = tf.data.Dataset.zip(streams)
        return joined.map(lambda *steps: tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *steps))
