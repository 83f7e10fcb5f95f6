"""A private dataset of a hub, built by workers that have no token: the launcher passes the files' bytes on to the
bucket, past its disk, and the token stays with it.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from scripts.benchmarks.figures import table
from scripts.proving import building, corpora, counting, places
from scripts.proving.building import BuildResult, Job
from scripts.proving.corpora import Shape
from scripts.proving.counting import Tally
from scripts.proving.figures import Figure
from scripts.proving.launcher_share import build_elsewhere, disk_problem
from tests.support import faulty_sources

__all__ = ["Relay", "figures", "measure_relay", "relays_table"]

TOKEN = "hf_SecretSecretSecretSecret"
_SHOWN = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relay:
    """What one build did. `told` are the objects of the bucket and the logs of the servers that have the token."""

    form: str
    source_bytes: int
    hub_bytes: int
    launcher: Tally
    workers: Tally
    built: BuildResult
    told: tuple[str, ...]
    digest: str
    expected: str


def measure_relay(workdir: Path, shape: Shape, engine: str, *, shard_size: str) -> Relay:
    """Builds the same source from a private hub with workers elsewhere, and from this machine's files."""
    folder = corpora.made(workdir, shape)
    job = Job(source=f"{folder}/*{shape.suffix}", tokenizer=building.tokenizer(workdir), shard_size=shard_size)
    ground = workdir / f"relayed-{shape.form}-{engine}"
    shutil.rmtree(ground, ignore_errors=True)
    files: dict[str, bytes | Path] = {f"data/{path.name}": path for path in sorted(folder.iterdir())}
    try:
        expected = building.built_digest(job, ground / "local", home=ground / "local-home")
        with (
            places.filled_bucket(None) as bucket,
            counting.counted(bucket.gcs.endpoint, "launcher", "workers") as tallies,
            faulty_sources.hub(files, token=TOKEN) as hub,
        ):
            env = hub.environment()
            remote = dataclasses.replace(job, source=hub.dataset)
            built = build_elsewhere(
                remote, bucket, tallies, engine, ground, launcher={**env, "HF_TOKEN": TOKEN}, workers=env
            )
            digest = "" if built.failure else building.dataset_digest(bucket.manifest("out"))
            kept = {
                **bucket.gcs.objects(bucket.name),
                **{path.name: path.read_bytes() for path in ground.glob("servers/*.log")},
            }
    finally:
        shutil.rmtree(ground, ignore_errors=True)
    return Relay(
        form=shape.form,
        source_bytes=corpora.stored_bytes(folder),
        hub_bytes=hub.served.total(),
        launcher=tallies["launcher"],
        workers=tallies["workers"],
        built=built,
        told=tuple(name for name, content in kept.items() if TOKEN.encode() in content),
        digest=digest,
        expected=expected,
    )


def figures(relay: Relay) -> list[Figure]:
    """The claims of one build."""
    claims = {"the build succeeds": relay.built.failure}
    if not relay.built.failure:
        claims["the launcher writes none of it to its disk"] = disk_problem(relay.built)
        claims["the dataset is that of a local build"] = "" if relay.digest == relay.expected else "another dataset"
    claims["the token is in no object and no log"] = ", ".join(relay.told[:_SHOWN])
    found = []
    for claim, problem in claims.items():
        found.append(Figure(section="relayed", claim=f"{relay.form} of a private hub: {claim}"))
        found[-1].check(problem)
    return found


def relays_table(relays: list[Relay]) -> str:
    """What went where, in megabytes."""
    rows = []
    for relay in relays:
        counts = (relay.source_bytes, relay.hub_bytes, relay.launcher.sent.total(), relay.workers.received.total())
        rows.append([relay.form, *(f"{count / 1e6:,.2f}" for count in (*counts, relay.built.home_bytes))])
    head = ["source", "source, MB", "sent by the hub", "sent to the bucket", "received by workers"]
    return table([*head, "most in the launcher's home"], rows)
