"""Where the CPU time of a build goes: its stages one after the other, on one thread.

python -m scripts.benchmarks.stages "DATA/*.parquet" --tokenizer DIR --layout pad|concat|pack [--max-length 512]

The stages are the functions that a build calls, in its order; what it does beside each other (batches, shards) is not
done here, so that CPU seconds add up. One shard is made, and the seconds are scaled to 100 MB of text.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scripts.benchmarks import figures
from scripts.benchmarks.figures import number

__all__ = ["main"]

# Before the libraries are imported, which start their threads then.
_ONE_THREAD = ("RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS", "OMP_NUM_THREADS")
_PER = 100e6


def main() -> None:
    """Prints one row for each stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--layout", choices=["pad", "concat", "pack"], required=True)
    parser.add_argument("--max-length", type=int, default=512)
    options = parser.parse_args()
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    with tempfile.TemporaryDirectory() as folder:
        clock, text_bytes = _measure(options, Path(folder))
    rows = [[name, number(seconds * _PER / text_bytes)] for name, seconds in clock.seconds.items()]
    rows.append(["together", number(sum(clock.seconds.values()) * _PER / text_bytes)])
    rows += [[f"before: {name}", f"{seconds:.2f} in all"] for name, seconds in clock.before.items()]
    print(figures.table(["stage", "CPU seconds for 100 MB of text"], rows))


class _Clock:
    """CPU seconds of this process by stage; `before` are those that come once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.before: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: str, *, once: bool = False) -> Iterator[None]:
        began = time.process_time()
        yield
        into = self.before if once else self.seconds
        into[name] = into.get(name, 0.0) + time.process_time() - began

    def each(self, name: str, items: Iterator) -> Iterator:
        """The items, the making of which is the stage."""
        while True:
            with self.stage(name):
                item = next(items, None)
            if item is None:
                return
            yield item


def _measure(options: argparse.Namespace, folder: Path) -> tuple[_Clock, int]:
    from pipelines.prepare.crosscheck import comparing
    from pipelines.prepare.launch import ingesting, launcher, opened_request
    from pipelines.prepare.options import config as configs
    from pipelines.prepare.shards import shard_writer
    from pipelines.prepare.sources.columns.extraction import extract, text_bytes_of

    clock = _Clock()
    config = configs.PrepareConfig(
        source=configs.SourceConfig(dataset=options.data),
        tokenizer=configs.TokenizerConfig(name=options.tokenizer),
        output=configs.OutputConfig(root=str(folder), name="stages"),
        layout=configs.LayoutConfig(name=options.layout, max_length=options.max_length),
    )
    with clock.stage("open source and tokenizer", once=True):
        resolved = ingesting.resolve(opened_request.open_request(config))
    with clock.stage("sample and plan", once=True):
        split = next(iter(resolved.job.splits))
        plan = launcher.plan_one(resolved, split, config).plan
    job, encoder = resolved.job, resolved.encoder
    pieces = resolved.source.splits[split].groups.pieces(plan.row_ranges(0))
    checks, builder, text_bytes = comparing.CrossCheck(encoder, split=split), encoder.builder(), 0
    for first, batch in clock.each("read", shard_writer.batches(job, split, pieces)):
        text_bytes += int(text_bytes_of(batch, job.spec.columns.content).sum())
        with clock.stage("validate"):
            rows, reasons = extract(batch, job.spec.columns, first=first)
        with clock.stage("engine and special tokens"):
            encoded = encoder.encode(rows)
        with clock.stage("cross-check"):
            numbers = first + np.flatnonzero(reasons == "")
            checks.add_some(rows, encoded, numbers=numbers, seed=job.spec.seed)
        with clock.stage("gather"):
            builder.add(encoded)
    with clock.stage("cross-check"):
        checks.finish()
    _write(clock, builder.chunks(np.random.default_rng(0)), job.spec.schema, path=folder / "shard")
    return clock, text_bytes


def _write(clock: _Clock, chunks: Iterator, schema: object, *, path: Path) -> None:
    from tfrecord_io import records

    digest = hashlib.sha256()
    with path.open("wb") as file:
        for columns in clock.each("permute and lay out", chunks):
            with clock.stage("encode and frame"):
                frames = records.encode_framed(columns, schema)  # type: ignore[arg-type]  # a Schema, imported late
                framed = frames.data.data
            with clock.stage("digest"):
                digest.update(framed)
            with clock.stage("write"):
                file.write(framed)


if __name__ == "__main__":
    main()
