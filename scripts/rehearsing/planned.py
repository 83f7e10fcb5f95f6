"""The plan of a huge split: made, written, and read by a worker.

python -m scripts.rehearsing.planned make FILE BLOCKS SHARDS
python -m scripts.rehearsing.planned read FILE
"""

from __future__ import annotations

import json
import pathlib
import sys
import time

import numpy as np

from pipelines.prepare.planning import Blocks, SplitPlan, plan_split

__all__ = ["make_plan"]

ROWS = 1_000
_SPREAD = 0.5


def make_plan(*, blocks: int, shards: int) -> SplitPlan:
    """A plan for blocks of 1,000 rows each, whose sizes differ as those of documents do."""
    starts = np.arange(blocks, dtype=np.int64) * ROWS
    sizes = np.random.default_rng(0).lognormal(np.log(1e6), _SPREAD, blocks)
    return plan_split(
        Blocks(starts, starts + ROWS, sizes),
        split="train",
        ranges=[(0, blocks * ROWS)],
        shard_bytes=int(sizes.sum() / shards),
        seed=0,
        shuffle=True,
    )


def _make(file: pathlib.Path, *, blocks: int, shards: int) -> dict[str, float]:
    started = time.perf_counter()
    plan = make_plan(blocks=blocks, shards=shards)
    planned = time.perf_counter()
    text = json.dumps(plan.to_json(), sort_keys=True).encode()
    written = time.perf_counter()
    file.write_bytes(text)
    return {
        "plan_seconds": planned - started,
        "dump_seconds": written - planned,
        "num_bytes": len(text),
        "shards": len(plan.shards),
    }


def _read(file: pathlib.Path) -> dict[str, float]:
    started = time.perf_counter()
    plan = SplitPlan.from_json(json.loads(file.read_bytes()), place=str(file))
    return {"read_seconds": time.perf_counter() - started, "shards": len(plan.shards)}


def main(words: list[str]) -> None:
    """Prints what was measured as JSON."""
    file = pathlib.Path(words[1])
    found = _read(file) if words[0] == "read" else _make(file, blocks=int(words[2]), shards=int(words[3]))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
