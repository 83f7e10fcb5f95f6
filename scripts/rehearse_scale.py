"""The parts that grow with the size of a job, tried at the size of the largest ones. Nothing is downloaded.

    python scripts/rehearse_scale.py [--blocks N] [--shards N] [--files N] [--worker-shards N] [--only NAME ...]
                                     [--workdir DIR] [--json]

    plan      a million blocks of a split, shared out among ten thousand shards; written, and read as workers do
    graph     the Beam graph for as many tasks, as it is sent to a service
    finish    the commit of as many shards, and the manifest and the folder as the reader opens them
    worker    the memory of one worker after its first shard, its tenth, and its last

Each part is a process of its own. Times and memory depend on the machine: the bars are for two slow cores. Needs Linux.
Exit status: 0 if every bar is reached, 1 if not, or if a part failed; 2 usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
from typing import Any

# `python scripts/rehearse_scale.py` puts scripts/ on the path, not the repository that holds the packages.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from scripts import arguments
from scripts.benchmarks import figures, measure
from scripts.benchmarks.figures import Figure

_DESCRIPTION = (__doc__ or "").partition("\n")[0]
_SHARD_BYTES = 2_000_000
_MB = 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the rehearsed job is."""

    blocks: int = 1_000_000
    shards: int = 10_000
    files: int = 2_000
    worker_shards: int = 50


def plan(sizes: Sizes, workdir: pathlib.Path) -> list[Figure]:
    """A split's plan: time, memory, size."""
    file = workdir / "plan.json"
    made = _part("planned", "make", file, sizes.blocks, sizes.shards)
    read = _part("planned", "read", file)
    for run in (made, read):
        _expect(round(run.result["shards"] / sizes.shards, 2), 1.0, "shards of those that were asked for")
    what = f"plan of {sizes.blocks:,} blocks, {made.result['shards']:,} shards"
    return [
        Figure(name=f"{what}: made in", measured=made.result["plan_seconds"], at_most=10, unit=" s"),
        Figure(name=f"{what}: memory", measured=made.process_bytes / _MB, at_most=500, unit=" MB"),
        Figure(name="plan.json: size", measured=made.result["num_bytes"] / _MB, at_most=50, unit=" MB"),
        Figure(name="plan.json: made in", measured=made.result["dump_seconds"], at_most=10, unit=" s"),
        Figure(name="plan.json: read in", measured=read.result["read_seconds"], at_most=10, unit=" s"),
        Figure(name="plan.json: memory of reading", measured=read.process_bytes / _MB, at_most=500, unit=" MB"),
    ]


def graph(sizes: Sizes, workdir: pathlib.Path) -> list[Figure]:
    """What is sent to a service."""
    found = _part("graph", workdir, sizes.shards, sizes.files).result
    what = f"graph of {sizes.shards:,} tasks"
    files = f"{what}, {sizes.files:,} files in the source"
    return [
        Figure(name=what, measured=found["graph_bytes"] / _MB, at_most=1, unit=" MB"),
        Figure(name=files, measured=found["with_files_bytes"] / _MB, at_most=1, unit=" MB"),
    ]


def finish(sizes: Sizes, workdir: pathlib.Path) -> list[Figure]:
    """The end of a job, and the first thing that a trainer does."""
    committed = _part("finished", "commit", workdir, sizes.shards).result
    opened = _part("finished", "open", workdir, sizes.shards).result
    what = f"{sizes.shards:,} shards"
    return [
        Figure(name=f"commit of {what}", measured=committed["commit_seconds"], at_most=20, unit=" s"),
        Figure(name=f"manifest of {what}: size", measured=opened["num_bytes"] / _MB, at_most=10, unit=" MB"),
        Figure(name=f"manifest of {what}: parsed in", measured=opened["parse_seconds"], at_most=1, unit=" s"),
        Figure(name=f"reader.open, {what}", measured=opened["open_seconds"], at_most=1, unit=" s"),
    ]


def worker(sizes: Sizes, workdir: pathlib.Path) -> list[Figure]:
    """The memory of a worker, which must not grow with what it has made."""
    found = _part("worker", workdir, sizes.worker_shards, _SHARD_BYTES).result
    resident = found["resident_bytes"]
    _expect(round(found["shard_bytes"] / _SHARD_BYTES, 1), 1.0, "of the size of a shard")
    early, last = min(10, len(resident)), len(resident)
    return [
        Figure(name="worker: memory after shard 1", measured=resident[0] / _MB, at_most=800, unit=" MB"),
        Figure(name=f"worker: shard {early} against shard 1", measured=resident[early - 1] / resident[0], at_most=1.15),
        Figure(
            name=f"worker: shard {last} against shard {early}",
            measured=resident[-1] / resident[early - 1],
            at_most=1.05,
        ),
    ]


SECTIONS = {"plan": plan, "graph": graph, "finish": finish, "worker": worker}


def main() -> int:
    """Runs the sections that were asked for and prints their table."""
    options = _options()
    sizes = Sizes(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Sizes)})
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as temporary:
        workdir = (options.workdir or pathlib.Path(temporary)).resolve()
        workdir.mkdir(parents=True, exist_ok=True)
        try:
            found = [figure for name in options.only for figure in SECTIONS[name](sizes, workdir)]
        except (measure.CommandFailedError, UnexpectedError) as error:
            print(error, file=sys.stderr)
            return 1
    print(figures.bars_table(found), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps([figure.to_json() for figure in found], indent=2))
    return exit_status(found)


def exit_status(found: list[Figure]) -> int:
    """0 if every bar is reached, else 1."""
    return 0 if all(figure.ok for figure in found) else 1


class UnexpectedError(Exception):
    """A part did something else than what it was to measure."""


def _part(name: str, *words: Any) -> measure.Run:
    """One part in a process of its own, without the network."""
    command = [sys.executable, "-m", f"scripts.rehearsing.{name}", *map(str, words)]
    return measure.run(command, env={"HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"})


def _expect(got: float, expected: float, what: str) -> None:
    if abs(got - expected) > 0.1 * expected:
        raise UnexpectedError(f"{got} {what}, expected {expected}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=_DESCRIPTION)
    texts = {
        "blocks": "of the plan",
        "shards": "of the plan, the graph and the finished dataset",
        "files": "of the source",
        "worker_shards": f"that one worker makes, of {_SHARD_BYTES / _MB:.0f} MB each",
    }
    for field in dataclasses.fields(Sizes):
        flag, text = "--" + field.name.replace("_", "-"), f"{texts[field.name]}; default {field.default:,}"
        parser.add_argument(flag, type=arguments.positive, default=field.default, metavar="N", help=text)
    arguments.add_only(parser, SECTIONS)
    arguments.add_output(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
