"""Splits with rows in Parquet files, jobs that read them, and the sizes of their shards."""

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare import layouts
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.launch import split_plans
from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.options.config import LayoutConfig, TokenizerConfig
from pipelines.prepare.plan import sampling
from pipelines.prepare.plan.planning import ShardSpec, SplitPlan, block_rows, plan_split
from pipelines.prepare.shards import shard_writer
from pipelines.prepare.sources.columns.extraction import ColumnPlan, extract
from pipelines.prepare.sources.rows.reading import RowReader, SplitSource
from pipelines.prepare.tokenize import tokenization
from tests.prepare.sources import stored
from tfrecord_io import records
from tfrecord_io.schema import Schema


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """A job with its tokenizer and splits."""

    job: Job
    encoder: BatchEncoder
    splits: Mapping[str, SplitSource]

    def measure(self, split: str = "train") -> sampling.Sample:
        return sampling.measure(self.job.spec, self.encoder, self.splits[split])


def parquet(
    folder: Path,
    columns: Mapping[str, Any] | pa.Table,
    *,
    group_rows: int = 100,
    files: int = 1,
    name: str = "train",
    ranges: Sequence[tuple[int, int]] | None = None,
    **options: Any,
) -> SplitSource:
    """Write the columns in row groups of the given sizes, in several files. `options` go to `pq.write_table`."""
    folder.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    paths = []
    for index, rows in enumerate(np.array_split(np.arange(table.num_rows), files)):
        path = folder / f"{name}-{index}.parquet"
        paths.append(stored.parquet(path, table.slice(rows[0], len(rows)), rows=group_rows, **options))
    return SplitSource(
        name=name,
        source_split=name,
        groups=stored.in_place(*paths, columns=table.column_names),
        ranges=tuple(ranges or ((0, table.num_rows),)),
        reader=RowReader(split=name, types=table.schema),
    )


def work(
    tokenizer: Path,
    *splits: SplitSource,
    layout: LayoutConfig | None = None,
    columns: ColumnPlan | None = None,
    root: str = "",
    **options: Any,
) -> Work:
    """A job of the splits; `options` are fields of the job or of its spec."""
    layout, columns = layout or LayoutConfig(max_length=64), columns or ColumnPlan(texts=("text",))
    opened, files = tokenization.resolve(TokenizerConfig(name=str(tokenizer)))
    facts = tokenization.facts(opened, name=str(tokenizer), files=files)
    length = tokenization.resolve_length(opened, layout)
    parts = {"tokenizer": opened, "facts": facts, "length": length, "columns": columns}
    encoder = layouts.open_encoder(layout, **parts, engine=options.get("engine", "auto"))
    features = encoder.features()
    label = (columns.label.feature,) if columns.label else ()
    deciding: dict[str, Any] = {"compression": "none", "seed": 0, "shuffle": True}
    deciding = {name: options.pop(name, default) for name, default in deciding.items()}
    job = Job(
        root=root,
        splits={split.name: split for split in splits},
        **{"name": "x", "fingerprint": "f", **options},
        spec=ShardSpec(
            columns=columns,
            schema=Schema((*features, *label, *columns.kept)),
            layout=layout,
            length=length,
            facts=facts,
            **deciding,
        ),
    )
    return Work(job=job, encoder=encoder, splits={split.name: split for split in splits})


def plan(work: Work, *, targets: float, split: str = "train") -> tuple[SplitPlan, int]:
    """Return the split's plan for a shard size that is predicted to give this many shards, and that size."""
    source, sample = work.splits[split], work.measure(split)
    total = float(split_plans.forecast(work.job.spec, source, sample, block_rows=1000).predicted_bytes.sum())
    shard_bytes = round(total / targets)
    return planned(work, sample, shard_bytes=shard_bytes, split=split), shard_bytes


def planned(work: Work, sample: sampling.Sample, *, shard_bytes: int, split: str = "train") -> SplitPlan:
    source = work.splits[split]
    rows = block_rows(row_bytes=sample.row_bytes, shard_bytes=shard_bytes)
    blocks = split_plans.forecast(work.job.spec, source, sample, block_rows=rows)
    return plan_split(blocks, source, shard_bytes=shard_bytes, seed=work.job.spec.seed, shuffle=work.job.spec.shuffle)


def shard_sizes(work: Work, made: SplitPlan) -> np.ndarray:
    return np.array([_shard_size(work, made, index) for index in range(made.num_shards)])


def _shard_size(work: Work, made: SplitPlan, index: int) -> int:
    job, builder = work.job, work.encoder.builder()
    for _, batch in work.splits[made.split].read(made.spans_of(index, index + 1).tolist(), job.spec.columns.names):
        rows, _ = extract(batch, job.spec.columns)
        if len(rows):
            builder.add(work.encoder.encode(rows))
    task = made.tasks()[index]
    data = [
        records.encode_framed(columns, job.spec.schema_of(one.length)).data
        for one in builder.by_length()
        for columns in one.chunks(shard_writer.shuffle_rng(job, task, length=one.length))
    ]
    return sum(_stored(job, data))


def _stored(job: Job, data: Sequence[np.ndarray]) -> Iterator[int]:
    packer = zlib.compressobj(wbits=31)
    for part in data:
        yield len(packer.compress(part.data)) if job.spec.compression == "gzip" else part.nbytes
    yield len(packer.flush()) if job.spec.compression == "gzip" else 0
