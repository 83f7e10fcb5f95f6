#!/usr/bin/env python
"""Measure how fast the first shard of a dataset is exported to each format, in MB of the shard per CPU second.

python -m scripts.benchmarks.export out/corpus out/packed --to parquet arrayrecord
"""

import argparse
import dataclasses
import os
import tempfile
import time
from typing import get_args

from pipelines.option_fields import declared
from pipelines.prepare.dataset import own_files
from pipelines.prepare.export.export_settings import ExportFormat, ExportSettings
from pipelines.prepare.export.exporting import WRITERS, ExportTask, export_shard
from pipelines.prepare.process.progress import Progress
from tfrecord_io.errors import ConfigError

# Others hold ids alone.
_WITH_LABELS = next(each.taken_with for each in declared(ExportSettings) if each.field == "renamed")


def main() -> None:
    """Print one line per dataset and format: the best of three runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--to", nargs="+", default=get_args(ExportFormat), choices=get_args(ExportFormat))
    arguments = parser.parse_args()
    for root in arguments.datasets:
        for to in arguments.to:
            print(_measured(os.path.abspath(root), to))


def _measured(root: str, to: ExportFormat) -> str:
    manifest = own_files.require_manifest(root)
    split = next(iter(manifest.splits))
    shard = manifest.splits[split].shards[0]
    labels = tuple(each.name for each in manifest.schema.features if each.role == "label" and to not in _WITH_LABELS)
    settings = ExportSettings(to=to, dropped=labels, output="")
    try:
        WRITERS[to](manifest, settings).check()
    except ConfigError as error:
        return f"{root} {to}: {error}"
    described = dataclasses.replace(manifest, source={}, options={}, engines={}, generations=(), splits={})
    with tempfile.TemporaryDirectory() as folder:
        task = ExportTask(
            root=root,
            manifest=described,
            split=split,
            shard=shard,
            settings=dataclasses.replace(settings, output=folder),
            stem="exported",
            key="key",
        )
        export_shard(task, Progress())  # compiles once
        seconds = min(_seconds(task) for _ in range(3))
        size = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
    speed, tokens = shard.num_bytes / seconds / 1e6, shard.num_tokens / seconds / 1e6
    return f"{root} {to}: {speed:.0f} MB/s, {tokens:.0f} million tokens/s, {size / shard.num_tokens:.2f} bytes a token"


def _seconds(task: ExportTask) -> float:
    began = time.process_time()
    export_shard(task, Progress())
    return time.process_time() - began


if __name__ == "__main__":
    main()
