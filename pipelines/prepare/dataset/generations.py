"""The generations of a dataset: the build that made it, and each append since.

    build        train  shards 0, 1, 2    rows [0, 1000)         manifest.json
    append       train  shards 3, 4       rows [1000, 1500)      manifest.json anew; the former is manifest-0.json

Each has its own fingerprint, and its own folder with plan and receipts. Tasks are numbered on from generation to
generation, and so are the rows of the source, of which the new ones are the last.
"""

from __future__ import annotations

from pipelines.prepare.plan.planning import RowRanges
from tfrecord_io.manifest import Generation, Manifest

__all__ = ["generations_of", "joined_ranges", "task_in"]


def generations_of(manifest: Manifest) -> tuple[Generation, ...]:
    """Return all generations of a dataset; one that was never appended to has one."""
    if manifest.generations:
        return manifest.generations
    rows = manifest.source.get("splits", {})
    only = Generation(
        fingerprint=manifest.fingerprint,
        tasks={name: len(split.by_task()) for name, split in manifest.splits.items()},
        rows={name: tuple((start, stop) for start, stop in rows.get(name, ())) for name in manifest.splits},
    )
    return (only,)


def task_in(manifest: Manifest, split: str, task: int) -> int:
    """Return the number of the generation that made a task of a split."""
    end = 0
    generations = generations_of(manifest)
    for number, generation in enumerate(generations):
        end += generation.tasks.get(split, 0)
        if task < end:
            return number
    raise ValueError(f"no task {task} of split {split!r}")


def joined_ranges(before: RowRanges, ranges: RowRanges) -> RowRanges:
    """Return the row ranges of both, with the last and the first joined where they meet."""
    if before and ranges and before[-1][1] == ranges[0][0]:
        return (*before[:-1], (before[-1][0], ranges[0][1]), *ranges[1:])
    return (*before, *ranges)
