"""Trace a step of a training to the records in its batch, and on to their source rows.

    run.json ─► batch size, seed, split, order ─► rows of the step's batch ─► shards and records ─► source rows
                                                  (tfrecord_io.ordering)                            (trace)

Steps are numbered as in the trainer's log: step 1 is the first batch, so the loss of step N is of batch N - 1, from 0.
"""

import dataclasses

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.audit.trace import Traced, Tracer
from pipelines.prepare.dataset import own_files
from tfrecord_io.errors import ConfigError, FingerprintMismatchError, FormatError, ReaderError
from tfrecord_io.format import json_fields
from tfrecord_io.input_pipeline import input_plan
from tfrecord_io.input_pipeline.input_plan import Host
from tfrecord_io.manifest import Manifest
from tfrecord_io.mixing import mixing_plan
from tfrecord_io.ordering import global_order


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """Options with which a training reads a dataset; each batch is divided among `replicas`."""

    global_batch_size: int
    order: str
    seed: int
    split: str
    replicas: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class TracedStep:
    """One row of a step's batch: its place there, the replica that got it, and its origin."""

    step: int
    place: int
    replica: int
    traced: Traced


def of_run(folder: str, manifest: Manifest, *, root: str, replicas: int = 1) -> tuple[Reading, Manifest]:
    """Read the run.json of a training in `folder`; return its reading options and the manifest that it reads.

    That is `manifest`, or the one of an earlier generation of the dataset in `root`.

    Raises: ReaderError if there is no run.json; FormatError if it is damaged; FingerprintMismatchError if the training
        used other data, or several datasets.
    """
    path = storage.join(folder, "run.json")
    try:
        found = json_fields.mapping(json_fields.load(storage.read_bytes(path)))
        reading = Reading(
            global_batch_size=json_fields.count(found["global_batch_size"]),
            seed=json_fields.count(found["seed"]),
            split=json_fields.text(found["train_split"]),
            order=json_fields.text(found.get("order", "hosts")),
            replicas=replicas,
        )
        fingerprint = json_fields.text(found["data"])
    except FileNotFoundError as error:
        raise ReaderError(
            f"{path}: no such file, expected that of a training", remedy="give the --model-dir of the training"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path}: is not what a training wrote ({error!r:.100})", remedy="copy it again from where the training was"
        ) from error
    read_by_run = own_files.read_former(root, manifest, fingerprint)
    if fingerprint != manifest.fingerprint and read_by_run is None:
        raise FingerprintMismatchError(
            f"{path}: trained on data with fingerprint {fingerprint[:12]}, this dataset has "
            f"{manifest.fingerprint[:12]}: it is another dataset, or one of several that were mixed",
            remedy="give the folder that was trained on; rows of a mixture are found by "
            "tfrecord_io.random_access.global_batches(...).origins(step)",
        )
    return reading, read_by_run or manifest


def trace_steps(
    tracer: Tracer, manifest: Manifest, reading: Reading, *, steps: range, replica: int | None = None
) -> list[TracedStep]:
    """Trace every row in the batches of `steps`, or only in the part of one `replica`, in the order of the batches.

    `manifest` is the one that the training reads: that of the tracer's dataset, or of an earlier generation, whose
    shards are the first ones of each split.

    Raises: ConfigError if there is no such step or replica; ReaderError for an order or split that cannot be followed.
    """
    found = [(step, *each) for step in steps for each in _records(manifest, reading, step=step, replica=replica)]
    size = reading.global_batch_size // reading.replicas
    # Shard by shard, since the tracer caches the rows of only one.
    traced = {
        (shard, record): tracer.trace(split=reading.split, shard=shard, record=record)
        for shard, record in sorted({(shard, record) for _, _, shard, record in found})
    }
    return [
        TracedStep(step=step, place=place, replica=place // size, traced=traced[shard, record])
        for step, place, shard, record in found
    ]


def _records(manifest: Manifest, reading: Reading, *, step: int, replica: int | None) -> list[tuple[int, int, int]]:
    """Return (place in the batch, shard, record) of each row of a step. Raises: as `trace_steps`."""
    size = input_plan.element_rows(reading.global_batch_size, Host(replicas=reading.replicas))
    input_plan.check_seed(reading.seed)
    if step < 1:
        raise ConfigError(f"step {step}, expected at least 1: the first batch is that of step 1")
    if replica is not None and not 0 <= replica < reading.replicas:
        raise ConfigError(
            f"--replica {replica} of {reading.replicas}, expected 0 to {reading.replicas - 1}",
            remedy="give --num-replicas, as many as the training had",
        )
    if reading.order != "global":
        raise ReaderError(
            f"order {reading.order!r}, expected 'global': in the order of hosts a batch depends on their number, and "
            "on random numbers that only TensorFlow draws",
            remedy="train with --order global, whose batches follow from seed and step",
        )
    if reading.split not in manifest.splits or not manifest.splits[reading.split].shards:
        have = ", ".join(name for name, split in manifest.splits.items() if split.shards)
        raise ReaderError(f"no split {reading.split!r} with examples", remedy=f"choose among {have}")
    if manifest.bucket_lengths:
        raise ReaderError(
            f"rows of several lengths, {list(manifest.bucket_lengths)}, expected one: which length a step has is not "
            "in run.json",
            remedy="use tfrecord_io.buckets: its schedule and steps_before say which batch of which length it is",
        )
    shards = manifest.splits[reading.split].shards
    order = global_order.GlobalOrder.of(
        shards,
        compression=manifest.compression,
        seed=reading.seed,
        shuffle=global_order.USUAL_SHUFFLE,
        cycle=mixing_plan.cycle((("", 1.0),), rows=reading.global_batch_size),
    )
    _, rows = order.place(step - 1)
    ends = np.cumsum([shard.num_examples for shard in shards])
    at = np.searchsorted(ends, rows, side="right")
    records = rows - (ends - [shard.num_examples for shard in shards])[at]
    places = range(len(rows)) if replica is None else range(replica * size, (replica + 1) * size)
    return [(place, int(at[place]), int(records[place])) for place in places]
