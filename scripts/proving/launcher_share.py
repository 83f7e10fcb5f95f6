"""The launcher's share: of a source in a bucket, workers elsewhere read the rows, and the launcher hardly anything.

For each form of the source and each engine one build from gs:// to gs://, with the launcher and the workers counted
apart, and one build of the same files on this machine.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

from scripts.benchmarks.figures import table
from scripts.proving import building, corpora, counting, places
from scripts.proving.building import BuildResult, Job
from scripts.proving.corpora import Shape
from scripts.proving.counting import Tally
from scripts.proving.figures import Figure
from scripts.proving.places import Bucket
from tests.cloud import emulator

__all__ = ["Share", "build_elsewhere", "disk_problem", "figures", "measure_share", "share_table"]

MOST_SHARE = 0.02
# What the libraries keep in the home, and all that is written to files: a copy of the tokenizer takes 1.4 MB of it.
MOST_HOME_BYTES = 1 << 20
MOST_WRITTEN_BYTES = 4 << 20
WORKERS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """What one build received and wrote. `digest` and `expected` are those of its dataset and of the local one."""

    form: str
    engine: str
    source_bytes: int
    launcher: Tally
    workers: Tally
    built: BuildResult
    digest: str
    expected: str

    @property
    def share(self) -> float:
        """Bytes that the launcher received, in all, of the source's."""
        return self.launcher.received.total() / self.source_bytes


def measure_share(workdir: Path, shape: Shape, engine: str, *, shard_size: str) -> Share:
    """Builds the same source in both ways."""
    folder = corpora.made(workdir, shape)
    job = Job(source=f"{folder}/*{shape.suffix}", tokenizer=building.tokenizer(workdir), shard_size=shard_size)
    ground = workdir / f"share-{shape.form}-{engine}"
    shutil.rmtree(ground, ignore_errors=True)
    try:
        expected = building.built_digest(job, ground / "local", home=ground / "local-home")
        with (
            places.filled_bucket(folder) as bucket,
            counting.counted(bucket.gcs.endpoint, "launcher", "workers") as tallies,
        ):
            remote = dataclasses.replace(job, source=bucket.address(f"data/*{shape.suffix}"))
            built = build_elsewhere(remote, bucket, tallies, engine, ground)
            digest = "" if built.failure else building.dataset_digest(bucket.manifest("out"))
    finally:
        shutil.rmtree(ground, ignore_errors=True)
    return Share(
        form=shape.form,
        engine=engine,
        source_bytes=corpora.stored_bytes(folder),
        launcher=tallies["launcher"],
        workers=tallies["workers"],
        built=built,
        digest=digest,
        expected=expected,
    )


def figures(share: Share) -> list[Figure]:
    """The claims of one build."""
    where = f"{share.form} from gs:// on {share.engine}"
    ended = Figure(section="launcher", claim=f"{where}: the build succeeds")
    ended.check(share.built.failure)
    if share.built.run is None:
        return [ended]
    claims = {
        "the launcher receives less than 2 % of the source": (
            "" if share.share < MOST_SHARE else f"{share.launcher.received.total():,} bytes, {share.share:.2%}"
        ),
        "the launcher writes none of it to its disk": disk_problem(share.built),
        "the dataset is that of a local build": "" if share.digest == share.expected else "another dataset",
    }
    found = [ended]
    for claim, problem in claims.items():
        found.append(Figure(section="launcher", claim=f"{where}: {claim}"))
        found[-1].check(problem)
    return found


def share_table(shares: list[Share]) -> str:
    """Bytes by client, by what they belong to: data is the source, out is the output."""
    rows = []
    for share in shares:
        for client, tally in (("launcher", share.launcher), ("workers", share.workers)):
            total = tally.received.total()
            counts = [f"{tally.requests:,}", f"{total / 1e6:,.2f}", f"{total / share.source_bytes:.2%}"]
            folders = [_folders(tally.received), _folders(tally.sent)]
            rows.append([share.form, share.engine, client, *counts, *folders, _disk(share, client)])
    head = ["source", "engine", "client", "requests", "received, MB", "of the source", "of these", "sent, MB"]
    return table([*head, "its disk"], rows)


def build_elsewhere(
    job: Job,
    bucket: Bucket,
    tallies: Mapping[str, Tally],
    engine: str,
    ground: Path,
    *,
    launcher: Mapping[str, str] | None = None,
    workers: Mapping[str, str] | None = None,
) -> BuildResult:
    """Builds into the folder `out` of the bucket, with worker processes. `launcher` and `workers` are further
    environment variables of theirs.
    """
    settings = {client: emulator.settings(tally.endpoint) for client, tally in tallies.items()}
    of_workers = {**settings["workers"], **building.home_environment(ground / "worker-home"), **(workers or {})}
    with places.cluster(engine, ground / "servers", **of_workers) as cluster:
        beam = places.beam_args(engine, cluster, workers=WORKERS)
        remote = dataclasses.replace(job, options=("--workers", str(WORKERS)), beam=beam)
        env = {**settings["launcher"], **(launcher or {})}
        return building.build(remote, bucket.address("out"), home=ground / "home", env=env)


def disk_problem(built: BuildResult) -> str:
    """What says that a launcher kept rows on its disk; empty if nothing does."""
    assert built.run is not None
    lay, written = built.home_bytes, built.run.written_bytes
    is_little = lay <= MOST_HOME_BYTES and written <= MOST_WRITTEN_BYTES
    return "" if is_little else f"{lay:,} bytes lay there, {written:,} written"


def _folders(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count / 1e6:,.2f}" for name, count in sorted(counts.items()))


def _disk(share: Share, client: str) -> str:
    if client != "launcher" or share.built.run is None:
        return ""
    return f"at most {share.built.home_bytes / 1e6:,.2f} MB, {share.built.run.written_bytes / 1e6:,.2f} MB written"
