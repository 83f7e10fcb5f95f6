"""A small disk: a source of gigabytes is built although cache, temporary and home folders have 200 MB together.

Those folders are a file system of their own (tmpfs) that only the build sees and that goes with it, which takes root or
a user namespace. Where neither is to be had, they are an ordinary folder, and the most that lay in it is compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from scripts.benchmarks.figures import table
from scripts.proving import building, corpora, places
from scripts.proving.building import BuildResult, Job
from scripts.proving.corpora import Shape
from scripts.proving.figures import Figure
from tests.cloud import emulator
from tests.support import faulty_sources

__all__ = ["PLACES", "Small", "figures", "limiting", "measure_disk", "most_bytes", "small_table"]

PLACES = ("gs://", "hub")
LIMIT_BYTES = 200_000_000
# The words before a command that give it mounts of its own: as root, or as root of a new user namespace.
_WAYS = (("unshare", "-m"), ("unshare", "-Urm"))
_SCRIPT = """
set -u
mkdir -p {home}
mount -t tmpfs -o size={bytes} tmpfs {home} || exit 99
mkdir -p {folders}
(while :; do stat -f -c '%b %f %S' {home}; sleep 0.1; done) >{log} & watcher=$!
"$@"; status=$?
kill $watcher
exit $status
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Small:
    """What one build needed of a small disk. `limited` is whether it could have had no more."""

    place: str
    form: str
    source_bytes: int
    built: BuildResult
    limited: bool
    most_bytes: int
    output_bytes: int


def measure_disk(workdir: Path, shape: Shape, place: str) -> Small:
    """Builds the source from `place` into a folder of `workdir`."""
    folder = corpora.made(workdir, shape)
    tokenizer = building.tokenizer(workdir)
    ground = workdir / f"small-{shape.form}-{place.strip(':/')}"
    shutil.rmtree(ground, ignore_errors=True)
    ground.mkdir()
    try:
        with _served(place, folder, pattern=f"*{shape.suffix}") as (source, env):
            job = Job(source=source, tokenizer=tokenizer, shard_size="64MB")
            prefix, log = limiting(ground)
            built = building.build(job, ground / "out", home=ground / "home", env=env, before=prefix)
        return Small(
            place=place,
            form=shape.form,
            source_bytes=corpora.stored_bytes(folder),
            built=built,
            limited=bool(prefix),
            most_bytes=most_bytes(log) if prefix else built.home_bytes,
            output_bytes=sum(path.stat().st_size for path in ground.glob("out/*.tfrecord")),
        )
    finally:
        shutil.rmtree(ground, ignore_errors=True)


def figures(small: Small) -> list[Figure]:
    """The claim of one build."""
    how = "in a file system of that size" if small.limited else "nothing can be mounted here: an ordinary folder"
    claim = (
        f"{small.form} from {small.place}: built with caches, temporary files and home in {LIMIT_BYTES / 1e6:,.0f} MB"
    )
    figure = Figure(section="disk", claim=claim, note=how)
    most = small.most_bytes
    figure.check(small.built.failure or ("" if most <= LIMIT_BYTES else f"{most:,} bytes lay there"))
    return [figure]


def small_table(found: list[Small]) -> str:
    """What each needed."""
    rows = []
    for small in found:
        seconds = "failed" if small.built.run is None else f"{small.built.run.seconds:,.0f}"
        source, output = f"{small.source_bytes / 1e6:,.0f}", f"{small.output_bytes / 1e6:,.0f}"
        rows.append([small.form, small.place, source, output, f"{small.most_bytes / 1e6:,.2f}", seconds])
    return table(["source", "from", "source, MB", "output, MB", "most on the small disk, MB", "s"], rows)


@contextlib.contextmanager
def _served(place: str, folder: Path, *, pattern: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields: DATASET, and environment variables that lead there."""
    if place == "hub":
        files: dict[str, bytes | Path] = {f"data/{path.name}": path for path in sorted(folder.iterdir())}
        with faulty_sources.hub(files) as server:
            yield server.dataset, server.environment()
    else:
        with places.filled_bucket(folder) as bucket:
            yield bucket.address(f"data/{pattern}"), emulator.settings(bucket.gcs.endpoint)


def limiting(ground: Path) -> tuple[list[str], Path]:
    """The words before a command whose home in `ground` is to be small, none if that cannot be done; and the log of
    what lay there.
    """
    way = next((way for way in _WAYS if subprocess.run([*way, "true"], capture_output=True).returncode == 0), None)
    home, log = ground / "home", ground / "home.log"
    if way is None:
        return [], log
    inside = building.home_environment(home)
    folders = [path for path in inside.values() if path.startswith(str(home))]
    script = _SCRIPT.format(
        home=shlex.quote(str(home)),
        bytes=LIMIT_BYTES,
        folders=shlex.join(folders),
        log=shlex.quote(str(log)),
    )
    return [*way, "bash", "-c", script, "build"], log


def most_bytes(log: Path) -> int:
    """The most bytes in use, of lines of all blocks, free blocks and bytes of a block."""
    most = 0
    for line in log.read_text().splitlines():
        blocks, free, size = map(int, line.split())
        most = max(most, (blocks - free) * size)
    return most
