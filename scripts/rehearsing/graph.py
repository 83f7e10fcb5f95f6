"""The Beam graph of a huge job, as it would be sent to a service.

python -m scripts.rehearsing.graph FOLDER TASKS FILES
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys

import apache_beam as beam

from pipelines.prepare.beam import pipeline, transforms
from pipelines.prepare.beam.run import Run
from pipelines.prepare.launch.resolved_job import Resolved
from pipelines.prepare.plan.planning import ShardTask
from scripts.rehearsing import small_job

# As file names of a long history of exports are.
_FILE = "documents/part-{index:05d}-of-{count:05d}.parquet"


def graph_bytes(resolved: Resolved, *, num_tasks: int, num_files: int) -> int:
    """The size of the graph of so many tasks, with that many files in the source."""
    (split,) = resolved.job.splits
    entries = [  # digests are what no compression makes smaller
        {
            "name": (name := _FILE.format(index=index, count=num_files)),
            "bytes": 500_000_000 + index,
            "xxh3": hashlib.md5(name.encode()).hexdigest(),
        }
        for index in range(num_files)
    ]
    identity = {**resolved.source.identity, "files": entries}
    arguments = transforms.CommitArguments(
        items={**resolved.items, "source": identity}, identity=identity, max_error_rate=0.0
    )
    tasks = [ShardTask(split=split, index=index, count=num_tasks, num_rows=1) for index in range(num_tasks)]
    graph = beam.Pipeline(runner="FnApiRunner")
    pipeline._add_shards(graph, resolved.job, tasks, arguments, run=Run(), threads=None, started_file="sign")
    return len(graph.to_runner_api().SerializeToString())


def main(words: list[str]) -> None:
    """Prints what was measured as JSON."""
    resolved = small_job.resolved(small_job.config(pathlib.Path(words[0]), rows=100))
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
