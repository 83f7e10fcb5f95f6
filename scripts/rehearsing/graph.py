"""The Beam graph of a huge job, as it would be sent to a service.

python -m scripts.rehearsing.graph FOLDER TASKS FILES
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import sys

import apache_beam as beam

from pipelines.prepare import job, pipeline
from pipelines.prepare.arrow_files import ArrowFiles
from pipelines.prepare.job import Resolved
from pipelines.prepare.planning import ShardTask
from pipelines.prepare.opened import SplitSource
from scripts.rehearsing import small_job

# As file names of a long history of exports are.
_FILE = "/mnt/datasets/a-corpus-of-the-web/2024-06-01/documents/part-{index:05d}-of-{count:05d}.arrow"


def graph_bytes(resolved: Resolved, *, num_tasks: int, num_files: int) -> int:
    """The size of the graph of so many tasks, with that many files in the source."""
    (split,) = resolved.job.splits.values()
    assert isinstance(split.files, ArrowFiles)
    paths = tuple(_FILE.format(index=index, count=num_files) for index in range(num_files))
    files = ArrowFiles(paths, tuple(split.files.stamps[0] for _ in paths))
    huge = dataclasses.replace(
        resolved.job, splits={split.name: SplitSource(name=split.name, files=files, ranges=split.ranges)}
    )
    entries = [  # digests are what no compression makes smaller
        {
            "name": pathlib.PurePath(path).name,
            "bytes": 500_000_000 + index,
            "xxh3": hashlib.md5(path.encode()).hexdigest(),
        }
        for index, path in enumerate(paths)
    ]
    identity = {**resolved.source.identity, "files": entries}
    arguments = pipeline.CommitArguments(
        items={**resolved.items, "source": identity}, identity=identity, max_error_rate=0.0
    )
    tasks = [
        ShardTask(split=split.name, index=index, count=num_tasks, segments=((index, index + 1),))
        for index in range(num_tasks)
    ]
    graph = beam.Pipeline(runner="FnApiRunner")
    pipeline._add_steps(graph, huge, tasks, arguments, give_sign=True)
    return len(graph.to_runner_api().SerializeToString())


def main(words: list[str]) -> None:
    """Prints what was measured as JSON."""
    resolved = job.resolve(small_job.config(pathlib.Path(words[0]), rows=100))
    num_tasks, num_files = int(words[1]), int(words[2])
    print(
        json.dumps(
            {
                "graph_bytes": graph_bytes(resolved, num_tasks=num_tasks, num_files=1),
                "with_files_bytes": graph_bytes(resolved, num_tasks=num_tasks, num_files=num_files),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
