"""Trace a step of a training to the records in its batch, and on to their source rows.

    run.json ─► data, split, batch size, seed ─► `random_access.global_batches` ─► shards and records ─► `Tracer`

Steps are numbered as in the trainer's log: step 1 is the first batch.
"""

from typing import Any

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.audit.trace import Traced, Tracer
from tfrecord_io import random_access
from tfrecord_io.errors import FingerprintMismatchError, FormatError, ReaderError
from tfrecord_io.format import json_fields
from tfrecord_io.manifest import Manifest, former_name


def trace_step(tracer: Tracer, manifest: Manifest, *, root: str, run: str, step: int) -> list[Traced]:
    """Trace the rows in the batch of a step, in order. `run`: the folder of a training on the dataset in `root`.

    Raises: ReaderError if there is no training, or its order or split cannot be followed; FormatError if its run.json
        is damaged; FingerprintMismatchError if it used other data, or several datasets.
    """
    path = storage.join(run, "run.json")
    try:
        found: dict[str, Any] = json_fields.mapping(json_fields.load(storage.read_bytes(path)))
        size, seed = (json_fields.count(found[name]) for name in ("global_batch_size", "seed"))
        data, split = (json_fields.text(found[name]) for name in ("data", "train_split"))
    except FileNotFoundError as error:
        raise ReaderError(f"{path}: no such file", remedy="give the --model-dir of the training") from error
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: is not what a training wrote ({error!r:.100})", remedy="copy it again") from error
    if found.get("order") != "global":
        raise ReaderError(
            f"{path}: order {found.get('order')!r}, expected 'global': other batches depend on the number of hosts",
            remedy="train with --order global, whose batches follow from seed and step",
        )
    known = {each.fingerprint: storage.join(root, former_name(at)) for at, each in enumerate(manifest.generations[:-1])}
    known[manifest.fingerprint] = root
    if data not in known:
        raise FingerprintMismatchError(
            f"{path}: trained on data with fingerprint {data[:12]}, this dataset has {manifest.fingerprint[:12]}",
            remedy="give the folder that was trained on; rows of a mixture are found by "
            "tfrecord_io.random_access.global_batches(...).origins(step)",
        )
    rows = random_access.open(known[data])[split]
    numbers = random_access.global_batches(rows, global_batch_size=size, seed=seed).indices(step - 1)
    ends = np.cumsum([shard.num_examples for shard in rows.manifest.splits[split].shards])
    shards = np.searchsorted(ends, numbers, side="right")
    places = list(zip(shards.tolist(), (numbers - np.append(0, ends)[shards]).tolist(), strict=True))
    # Shard by shard, since the tracer caches the rows of only one.
    traced = {at: tracer.trace(split=split, shard=at[0], record=at[1]) for at in sorted(set(places))}
    return [traced[at] for at in places]
