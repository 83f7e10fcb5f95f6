"""The same digests: one dataset in every way in which it can be made, and one set of shards.

For each form of the source: threads of the launcher, worker processes of Beam's portable runner, and Flink.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from scripts.benchmarks.figures import table
from scripts.proving import building, corpora, places
from scripts.proving.building import Job
from scripts.proving.corpora import Shape
from scripts.proving.figures import Figure

__all__ = ["FORMS", "Made", "digests_table", "figures", "make"]

FORMS = ("parquet", "parquet-large-groups", "jsonl")
"""Read where it lies; row groups too large for that; another format."""
_WAYS = (
    *(("threads", workers) for workers in (1, 2, 7)),
    *(("portable", workers) for workers in (1, 2, 7)),
    ("flink", 3),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """One way of making a dataset, and what came out: the digest and the number of shards, or why there is none."""

    form: str
    engine: str
    workers: int
    digest: str = ""
    num_shards: int = 0
    failure: str = ""
    untried: str = ""


def make(workdir: Path, shape: Shape, *, engines: tuple[str, ...], shard_size: str) -> list[Made]:
    """Makes the dataset in every way that the engines, and threads, have."""
    folder = corpora.made(workdir, shape)
    job = Job(source=f"{folder}/*{shape.suffix}", tokenizer=building.tokenizer(workdir), shard_size=shard_size)
    ground = workdir / f"digests-{shape.form}"
    found = []
    for engine, workers in _WAYS:
        if engine != "threads" and engine not in engines:
            continue
        shutil.rmtree(ground, ignore_errors=True)
        found.append(_make(job, Made(form=shape.form, engine=engine, workers=workers), ground))
    shutil.rmtree(ground, ignore_errors=True)
    return found


def figures(found: list[Made]) -> list[Figure]:
    """The claim about one form of the source."""
    figure = Figure(section="digests", claim=f"{found[0].form}: the same shards in every way")
    for made in found:
        if made.untried:
            figure.note = f"{made.engine}: {made.untried}"
            continue
        differs = "" if made.digest == found[0].digest else f"{made.engine} with {made.workers}: another dataset"
        figure.check(made.failure or differs)
    return [figure]


def digests_table(found: list[Made]) -> str:
    """The digest of every way."""
    rows = [[made.form, made.engine, str(made.workers), str(made.num_shards), _came_out(made)] for made in found]
    return table(["source", "engine", "workers", "shards", "digest of the dataset"], rows)


def _came_out(made: Made) -> str:
    return made.untried or made.failure.partition("\n")[0] or made.digest[:16]


def _make(job: Job, way: Made, ground: Path) -> Made:
    job = dataclasses.replace(job, options=("--workers", str(way.workers)))
    if way.engine == "threads":
        return _built(job, way, ground)
    if missing := places.missing(way.engine):
        return dataclasses.replace(way, untried=missing)
    with places.cluster(way.engine, ground / "servers", **building.home_environment(ground / "worker-home")) as cluster:
        beam = places.beam_args(way.engine, cluster, workers=way.workers)
        return _built(dataclasses.replace(job, beam=beam), way, ground)


def _built(job: Job, way: Made, ground: Path) -> Made:
    built = building.build(job, ground / "out", home=ground / "home")
    if built.failure:
        return dataclasses.replace(way, failure=built.failure)
    manifest = building.local_manifest(ground / "out")
    num_shards = sum(len(split["shards"]) for split in manifest["splits"].values())
    return dataclasses.replace(way, digest=building.dataset_digest(manifest), num_shards=num_shards)
