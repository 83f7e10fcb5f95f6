"""One worker that makes many shards, and what memory it holds after each.

python -m scripts.rehearsing.worker FOLDER SHARDS SHARD_BYTES
"""

from __future__ import annotations

import json
import os
import pathlib
import sys

from pipelines.prepare.dataset import plan_files
from pipelines.prepare.launch import launcher
from pipelines.prepare.shards import shard_writer
from scripts.rehearsing import small_job

# Of a record, for the number of rows that fills the shards: its positions, a byte or two in each of two features, and
# its names.
_RECORD_BYTES = 1_650


def resident_bytes() -> int:
    """What this process holds in memory."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(words: list[str]) -> None:
    """Prints what was measured as JSON."""
    num_shards, shard_bytes = int(words[1]), int(words[2])
    rows = num_shards * (shard_bytes // _RECORD_BYTES)
    config = small_job.config(pathlib.Path(words[0]), rows=rows, shard_bytes=shard_bytes)
    resolved = small_job.resolved(config)
    (split,) = resolved.job.splits
    plan = launcher.plan_one(resolved, split, config).plan
    resolved.reserve(overwrite=False)
    plan_files.write(resolved.job, plan, resolved.source.splits[split].groups)
    resident, num_bytes = [], []
    for task in plan.tasks():
        looked_up = plan_files.task_of(resolved.job, plan_files.key_of(task))
        receipt = shard_writer.write(looked_up, resolved.job, resolved.encoder)
        num_bytes += [shard.num_bytes for shard in receipt.shards]
        resident.append(resident_bytes())
    print(json.dumps({"resident_bytes": resident, "shard_bytes": sum(num_bytes) / len(num_bytes)}))


if __name__ == "__main__":
    main(sys.argv[1:])
