"""A dataset of many shards: committed from their receipts, its manifest read, and opened by the reader.

python -m scripts.rehearsing.finished commit FOLDER SHARDS       its files are there, but hold nothing of sense
python -m scripts.rehearsing.finished open FOLDER SHARDS
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections.abc import Callable

import numpy as np

from pipelines.prepare.dataset import job, plan_files, receipts
from pipelines.prepare.dataset.commit import commit
from pipelines.prepare.dataset.receipts import Receipt
from pipelines.prepare.plan.planning import ShardTask, SplitPlan
from scripts.rehearsing import small_job
from tfrecord_io import manifest
from tfrecord_io.manifest import Ledger, Shard

_CONTENT = b"a tiny file"
_TIMES = 3


def _commit(folder: pathlib.Path, *, num_shards: int) -> dict[str, float]:
    """Leaves what workers would have left, one row in each shard, and commits."""
    resolved = small_job.resolved(small_job.config(folder, rows=num_shards))
    resolved.reserve(overwrite=False)
    (split,) = resolved.source.splits.values()
    plan = SplitPlan(
        split=split.name,
        source_split=split.source_split,
        ranges=split.ranges,
        predicted_bytes=num_shards,
        starts=np.arange(num_shards),
        stops=np.arange(num_shards) + 1,
        offsets=np.arange(num_shards + 1),
    )
    plan_files.write(resolved.job, plan, split.groups)
    for task in plan.tasks():
        _leave(resolved.job, task)
    started = time.perf_counter()
    commit(resolved.job, items=resolved.items, identity=resolved.source.identity, max_error_rate=0.0)
    return {"commit_seconds": time.perf_counter() - started}


def _leave(of: job.Job, task: ShardTask) -> None:
    """A shard and its receipt. Written plainly: what waits for the disk is not what is measured here."""
    shard = Shard(
        name=of.shard_name(task),
        num_bytes=len(_CONTENT),
        num_examples=1,
        num_tokens=1,
        sha256=f"{task.index:064x}",
        ledger=Ledger(rows_in=1, rows_used=1),
    )
    receipt = Receipt(
        fingerprint=of.fingerprint,
        split=task.split,
        index=task.index,
        shards=(shard,),
        engine="hf",
        rows_checked=0,
    )
    pathlib.Path(of.root, shard.name).write_bytes(_CONTENT)
    pathlib.Path(of.receipt_path(task)).write_bytes(receipts.dump(receipt))


def _open(folder: pathlib.Path, *, num_shards: int) -> dict[str, float]:
    from tfrecord_io import reader  # and TensorFlow, which preparing does without

    root = small_job.config(folder, rows=num_shards).output.root
    text = pathlib.Path(root, manifest.FILE_NAME).read_bytes()
    assert len(reader.open(root).splits["train"].shards) == num_shards
    return {
        "num_bytes": len(text),
        "parse_seconds": _shortest(lambda: manifest.parse(text)),
        "open_seconds": _shortest(lambda: reader.open(root)),
    }


def _shortest(do: Callable[[], object]) -> float:
    """Seconds, of several times: what else the machine does makes it slower, never faster."""
    seconds = []
    for _ in range(_TIMES):
        started = time.perf_counter()
        do()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def main(words: list[str]) -> None:
    """Prints what was measured as JSON."""
    section = {"commit": _commit, "open": _open}[words[0]]
    print(json.dumps(section(pathlib.Path(words[1]), num_shards=int(words[2]))))


if __name__ == "__main__":
    main(sys.argv[1:])
