"""Measure the launcher's work for builds of 1 GB, 100 GB and 10 TB, and write the table of docs/reference/scale.md.

    python scripts/simulate_scale.py            print the table
    python scripts/simulate_scale.py --write    put it on the page

Nothing is tokenized. The script invents row groups of a source of that size, then plans them, writes plan files and a
manifest with the functions of a build. Each size runs in a separate process, so that its memory can be measured.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pipelines.prepare.dataset import plan_files
from pipelines.prepare.launch import split_plans
from pipelines.prepare.plan.planning import Blocks, SplitPlan, block_rows, plan_split, runs_of
from pipelines.prepare.sources.parquet.groups import Groups, covers
from pipelines.prepare.sources.resolve.data_files import DataFile
from tfrecord_io import manifest
from tfrecord_io.manifest import Manifest, Shards, Split, TokenizerFacts
from tfrecord_io.schema import Feature, Schema

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "scale.md"
MARK = "<!-- the rest is written by scripts/simulate_scale.py -->\n"
SIZES = {"1 GB": 10**9, "100 GB": 10**11, "10 TB": 10**13}
GROUP_ROWS, GROUP_BYTES, FILE_GROUPS = 4_000, 10**7, 30
SHARD_BYTES = 100 * 10**6
BLOCK_ROWS = block_rows(row_bytes=GROUP_BYTES / GROUP_ROWS, shard_bytes=SHARD_BYTES)
# Bytes of text that one core tokenizes and writes per second (BPE, concat: docs/performance).
CORE_BYTES = 50 * 10**6
HUB_REQUESTS_A_SECOND = 3_000 / 300


def source_of(num_bytes: int) -> Groups:
    """Return the row groups of an invented source of `num_bytes` bytes, in files of 300 MB on the Hub."""
    index = np.arange(num_bytes // GROUP_BYTES, dtype=np.int32)
    file, num_bytes_G = index // FILE_GROUPS, np.full_like(index, GROUP_BYTES)
    rows = np.full_like(index, GROUP_ROWS)
    return Groups(
        files=tuple(
            DataFile(path=f"hf://datasets/owner/name@{'0' * 40}/data/train-{index:05d}.parquet", size=9)
            for index in range(int(file[-1]) + 1)
        ),
        num_rows=rows,
        file=file,
        at=index % FILE_GROUPS,
        num_bytes=num_bytes_G,
        stored_bytes=num_bytes_G.copy(),
        source_rows=np.bincount(file, weights=rows).astype(np.int64),
    )


def plan_of(groups: Groups) -> SplitPlan:
    """Return a plan of shards with 100 MB of text each."""
    rows = ((0, groups.total_rows),)
    blocks = Blocks.joined(
        [
            split_plans._cut_groups(
                cover, np.full(len(cover), float(GROUP_BYTES)), rows=BLOCK_ROWS, row_bytes=GROUP_BYTES / GROUP_ROWS
            )
            for cover in covers(groups.ends, rows)
        ]
    )
    split: Any = SimpleNamespace(name="train", source_split="train", ranges=rows, tasks_before=0)
    runs = runs_of(blocks, groups.file[np.searchsorted(groups.ends, blocks.starts, "right")], shard_bytes=SHARD_BYTES)
    return plan_split(blocks, split, shard_bytes=SHARD_BYTES, seed=0, shuffle=True, runs=runs)


def manifest_of(shards: int) -> Manifest:
    """Return a manifest with this number of shards of 100 MB."""
    same: dict[str, Any] = {
        name: [SHARD_BYTES] * shards for name in ("num_bytes", "num_examples", "num_tokens", "rows_in", "rows_used")
    }
    names = [manifest.shard_name(name="corpus", split="train", index=at, count=shards) for at in range(shards)]
    columns = Shards(name=names, sha256=["ab" * 32] * shards, rejected={}, filtered={}, tokens_cut=[0] * shards, **same)
    facts = TokenizerFacts(
        name="t", kind="t", vocab_size=9, content_sha256="ab" * 32, special_ids=(), padding_side="right", pad_id=0
    )
    return Manifest(
        name="corpus",
        fingerprint="ab",
        schema=Schema((Feature(name="input_ids", dtype="int64", shape=(1024,), role="token_ids"),)),
        layout={"name": "concat", "max_length": 1024},
        tokenizer=facts,
        splits={"train": Split(shards=columns)},
    )


def figures(num_bytes: int) -> dict[str, float]:
    """Plan a source of `num_bytes` bytes; return times, sizes and counts, by their names in the table."""
    began = time.process_time()
    groups = source_of(num_bytes)
    plan = plan_of(groups)
    requests = split_plans.hub_requests(groups, plan)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, ".prep", "f")
        job: Any = SimpleNamespace(root=folder, work_path=lambda *parts: str(work.joinpath(*parts)))
        plan_files.write(job, plan, groups)
        sizes = [path.stat().st_size for path in work.rglob("plan-*.parquet")]
    planned = time.process_time() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    text = manifest.dump(manifest_of(plan.num_shards))
    began = time.process_time()
    manifest.parse(text)
    return {
        "shards, each a task": plan.num_shards,
        "launcher: plan, CPU s": planned,
        "launcher: memory, MB": memory,
        "plan files": len(sizes),
        "plan files, MB": sum(sizes) / 1e6,
        "plan file that a worker reads, kB": max(sizes) / 1e3,
        "manifest.json, MB": len(text) / 1e6,
        "manifest.json: open, CPU s": time.process_time() - began,
        "requests to the Hub for the source's rows, a shard": requests / plan.num_shards,
        "files written, a shard (file, index, receipt)": 3,
        "the Hub's limit for one address, minutes": requests / HUB_REQUESTS_A_SECOND / 60,
        **{
            f"tokenize and write, {cores:,} cores, minutes": num_bytes / CORE_BYTES / cores / 60
            for cores in (8, 64, 1024)
        },
    }


def table(columns: dict[str, dict[str, float]]) -> str:
    """Return a Markdown table with a column per size and a row per figure."""
    head = f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}\n"
    names = next(iter(columns.values()))
    rows = (" | ".join([name, *(shown(column[name]) for column in columns.values())]) for name in names)
    return head + "".join(f"| {row} |\n" for row in rows)


def shown(value: float) -> str:
    """Format a number with two digits, or as a whole number if it is one or has more digits."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"


def main() -> None:
    """Run each size in a separate process, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the page")
    arguments = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        text = table(dict(zip(SIZES, pool.map(figures, SIZES.values(), chunksize=1), strict=True)))
    if arguments.write:
        PAGE.write_text(PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK + "\n" + text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
