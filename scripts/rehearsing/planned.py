"""The plan of a huge split, from what its files' footers say: made, written in parts, and read by a worker.

python -m scripts.rehearsing.planned make FOLDER GROUPS FILES SHARDS
python -m scripts.rehearsing.planned read FOLDER GROUPS
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
import types
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.dataset import plan_files, reservation
from pipelines.prepare.dataset.job import Job, JobSplit
from pipelines.prepare.plan import blocks, sample_choice
from pipelines.prepare.plan.planning import SplitPlan, block_rows, plan_split
from pipelines.prepare.plan.sample_rows import ReadRows
from pipelines.prepare.plan.sampling import Sample
from pipelines.prepare.plan.size_curve import Curve
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.parquet.groups import Groups, StoredFile
from pipelines.prepare.sources.rows.reading import RowReader, SplitSource

__all__ = ["made_source", "planned"]

ROWS = 1_000
_GROUP_BYTES = 1e6
_SPREAD = 0.5
# As names of a long history of exports are.
_FILE = "gs://a-bucket-of-exports/a-corpus-of-the-web/2024-06-01/documents/part-{index:05d}-of-{count:05d}.parquet"
_TYPES = pa.schema([("text", pa.string())])


def made_source(*, groups: int, files: int) -> SplitSource:
    """A split of groups of 1,000 rows each, whose bytes differ as those of documents do."""
    rng = np.random.default_rng(0)
    num_bytes = rng.lognormal(np.log(_GROUP_BYTES), _SPREAD, groups).astype(np.int64)
    file = np.arange(groups) * files // groups
    return SplitSource(
        name="train",
        source_split="train",
        groups=Groups(
            files=tuple(
                StoredFile(
                    path=_FILE.format(index=index, count=files),
                    size=int(1e8) + index,
                    version=str(1_700_000_000_000_000 + 7919 * index),
                )
                for index in range(files)
            ),
            num_rows=np.full(groups, ROWS),
            file=file.astype(np.int32),
            at=np.arange(groups) - np.searchsorted(file, file),
            num_bytes=num_bytes,
            stored_bytes=num_bytes * 2 // 5,
            source_rows=np.bincount(file, minlength=files) * ROWS,
            nulls={"text": np.zeros(groups, np.int64)},
        ),
        ranges=((0, groups * ROWS),),
        reader=RowReader(split="train", types=_TYPES),
    )


def planned(job: Job, source: SplitSource, *, shards: int) -> SplitPlan:
    """The split's plan; the sample is made up, since there are no rows."""
    sample = _sample(job, source)
    shard_bytes = int(source.groups.num_bytes.sum() / shards)
    rows = block_rows(row_bytes=sample.row_bytes, shard_bytes=shard_bytes)
    found = blocks.forecast(job.spec, source, sample, block_rows=rows)
    return plan_split(
        found.blocks,
        split=source.name,
        source_split=source.source_split,
        ranges=source.ranges,
        shard_bytes=shard_bytes,
        seed=job.spec.seed,
        shuffle=job.spec.shuffle,
    )


def _sample(job: Job, source: SplitSource) -> Sample:
    """What a sample of the groups that would be read might show."""
    choice = next(sample_choice.choices(job.spec, source))
    numbers = np.concatenate([np.arange(*span) for span in choice.read_ranges.tolist()])
    means = (source.groups.num_bytes / source.groups.num_rows)[numbers // ROWS]
    text_bytes = (np.random.default_rng(1).lognormal(-(_SPREAD**2) / 2, _SPREAD, len(numbers)) * means).astype(np.int64)
    read = ReadRows(
        numbers=numbers,
        text_bytes=text_bytes,
        reasons=np.full(len(numbers), "", dtype=object),
        whole=choice.whole,
        in_whole_groups=choice.in_whole_groups,
    )
    return Sample(
        curve=Curve(np.array([0.0, 1e9]), np.array([0.0, 1e9]), row_bytes=_GROUP_BYTES / ROWS),
        row_bytes=_GROUP_BYTES / ROWS,
        record_bytes=1e3,
        row_tokens=np.zeros(0, np.int64),
        num_tokens=0.0,
        output_bytes=0.0,
        padding=None,
        text_bytes=0,
        token_bytes=2.0,
        seconds=0.0,
        read=read,
    )


class _Job:
    """As much of a job as its plan takes."""

    def __init__(self, root: pathlib.Path, split: SplitSource) -> None:
        self.root = str(root)
        self.spec = types.SimpleNamespace(columns=ColumnPlan(texts=("text",)), seed=0, shuffle=True, compression="none")
        self.splits = {split.name: JobSplit(source_split=split.source_split, ranges=split.ranges, reader=split.reader)}

    def work_path(self, *parts: str) -> str:
        """A path in the job's own folder."""
        return os.path.join(self.root, ".prep", "rehearsal", *parts)


def _make(folder: pathlib.Path, *, groups: int, files: int, shards: int) -> dict[str, float]:
    source = made_source(groups=groups, files=files)
    job = cast("Job", _Job(folder, source))
    storage.write_bytes(job.work_path(reservation.JOB_FILE), b"{}")
    started = time.perf_counter()
    plan = planned(job, source, shards=shards)
    made = time.perf_counter()
    plan_files.write(job, plan, source.groups)
    written = time.perf_counter()
    sizes = [path.stat().st_size for path in pathlib.Path(job.work_path("train")).iterdir()]
    return {
        "plan_seconds": made - started,
        "write_seconds": written - made,
        "num_bytes": sum(sizes),
        "shards": plan.num_shards,
        "rows": int(plan.shard_rows.sum()),
    }


def _read(folder: pathlib.Path, *, groups: int) -> dict[str, float]:
    """What a worker does first; and what the launcher does that goes on with the plan of an earlier run."""
    source = SplitSource(
        name="train",
        source_split="train",
        groups=Groups.joined([]),
        ranges=((0, groups * ROWS),),
        reader=RowReader(split="train", types=_TYPES),
    )
    job = cast("Job", _Job(folder, source))
    header = plan_files.read_header(job, "train")
    assert header is not None
    read_bytes: list[int] = []
    storage.read_bytes = _counted(storage.read_bytes, read_bytes)
    started = time.perf_counter()
    task = plan_files.task_of(job, ("train", header.num_shards // 2, header.num_shards))
    found = time.perf_counter()
    of_task = sum(read_bytes)
    plan_files.require_whole(job, header)
    return {
        "task_seconds": found - started,
        "task_bytes": of_task,
        "task_pieces": len(task.located),
        "whole_seconds": time.perf_counter() - found,
        "shards": header.num_shards,
    }


def _counted(read: Callable[..., bytes], sizes: list[int]) -> Callable[..., bytes]:
    def counted(path: str, **options: Any) -> bytes:
        content = read(path, **options)
        sizes.append(len(content))
        return content

    return counted


def main(words: list[str]) -> None:
    """Prints what was measured as JSON."""
    folder, sizes = pathlib.Path(words[1]), list(map(int, words[2:]))
    if words[0] == "make":
        print(json.dumps(_make(folder, groups=sizes[0], files=sizes[1], shards=sizes[2])))
    else:
        print(json.dumps(_read(folder, groups=sizes[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
