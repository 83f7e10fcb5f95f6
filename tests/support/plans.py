"""Jobs and plans of made-up sources, without rows."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.dataset import reservation
from pipelines.prepare.plan.planning import SplitPlan
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.resolve.data_files import DataFile

SHARDS = [[(0, 10), (50, 100)], [(10, 20)], [(20, 50)]]


def groups_of(sizes: Sequence[int], *, files: int = 2) -> Groups:
    """Groups with these numbers of rows, half of them in each file."""
    count, rows = len(sizes), np.array(sizes)
    names = [DataFile(path=f"gs://bucket/data/{index}.parquet", size=9, version=str(index)) for index in range(files)]
    places: dict[str, Any] = {"file": (np.arange(count) * files // count).astype(np.int32), "at": np.arange(count)}
    totals: dict[str, Any] = {"source_rows": np.array([count]), "num_bytes": rows * 100, "stored_bytes": rows * 50}
    return Groups(files=tuple(names), num_rows=rows, **places, **totals)


def plan_of(shards: Sequence[Sequence[tuple[int, int]]], *, rows: int) -> SplitPlan:
    counts = tuple(sum(stop - start for start, stop in shard) for shard in shards)
    facts: dict[str, Any] = {"split": "train", "source_split": "train", "ranges": ((0, rows),), "predicted_bytes": 9}
    return SplitPlan(**facts, rows=counts, spans=np.array([span for shard in shards for span in shard]))


def job_in(folder: Path, *, rows: int = 100, source_split: str = "train") -> Any:
    """As much of a job as its plan takes, with the file that says that it is there."""
    job = SimpleNamespace(
        root=str(folder),
        splits={"train": SimpleNamespace(ranges=((0, rows),), source_split=source_split, tasks_before=0)},
        work_path=lambda *parts: str(folder.joinpath(".prep", "f", *parts)),
    )
    storage.write_bytes(job.work_path(reservation.JOB_FILE), b"{}")
    return job


GROUPS = groups_of([10] * 10)
