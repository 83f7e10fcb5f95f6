#!/usr/bin/env python
"""Measure how fast a dataset is exported to each format, in MB of its shards per CPU second.

python -m scripts.benchmarks.export out/corpus out/packed --to parquet arrayrecord
"""

import argparse
import os
import tempfile
import time
from typing import get_args

from pipelines.prepare.export.export_settings import ExportFormat
from prep_tfrecords import export
from tfrecord_io import reader
from tfrecord_io.errors import PrepError


def main() -> None:
    """Export each dataset to each format; print one line with the best of three speeds, after a run that compiles."""
    formats = get_args(ExportFormat)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--to", nargs="+", default=formats, choices=formats)
    arguments = parser.parse_args()
    for root in arguments.datasets:
        for to in arguments.to:
            print(f"{root} {to}: {_measured(root, to)}", flush=True)


def _measured(root: str, to: ExportFormat) -> str:
    data = reader.open(root)
    label = data.manifest.schema.with_role("label")
    # Columns hold labels, and files of ids alone don't.
    dropped = [label.name] if label and to not in ("parquet", "arrayrecord", "tfrecord") else []
    seconds = []
    try:
        for _ in range(4):
            with tempfile.TemporaryDirectory() as folder:
                began = time.process_time()
                export(root, to=to, output=folder, drop=dropped, workers=1)
                seconds.append(time.process_time() - began)
                size = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
    except PrepError as error:
        return str(error)
    megabytes, tokens = (
        sum(getattr(split, name) for split in data.splits.values()) / 1e6 for name in ("num_bytes", "num_tokens")
    )
    best = min(seconds)
    speeds = f"{megabytes / best:.0f} MB/s, {tokens / best:.0f} million tokens/s"
    return f"{speeds}, {size / tokens / 1e6:.2f} bytes a token"


if __name__ == "__main__":
    main()
