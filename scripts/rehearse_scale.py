"""The parts that grow with the size of a job, tried at the size of the largest ones. Nothing is downloaded.

    python scripts/rehearse_scale.py [--groups N] [--shards N] [--files N] [--finished-shards N] [--worker-shards N]
                                     [--only NAME ...] [--workdir DIR] [--json]

    plan      ten million row groups of 100,000 files, shared out among 100,000 shards; written, and read as workers do
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

    groups: int = 10_000_000
    shards: int = 100_000
    files: int = 100_000
    finished_shards: int = 10_000
    worker_shards: int = 50


def plan(sizes: Sizes, workdir: pathlib.Path) -> list[Figure]:
    """A split's plan: time, memory, size; and what a worker reads to find the rows of a task."""
    folder = workdir / "plan"
    made = _part("planned", "make", folder, sizes.groups, sizes.files, sizes.shards)
    read = _part("planned", "read", folder, sizes.groups)
    for run in (made, read):
        _expect(round(run.result["shards"] / sizes.shards, 2), 1.0, "shards of those that were asked for")
    what = f"plan of {sizes.groups:,} groups, {made.result['shards']:,} shards"
    seconds = made.result["plan_seconds"] + made.result["write_seconds"]
    return [
        Figure(name=f"{what}: made and written in", measured=seconds, at_most=600, unit=" s"),
        Figure(name=f"{what}: memory", measured=made.process_bytes / _MB, at_most=4000, unit=" MB"),
        Figure(name="parts of the plan: size", measured=made.result["num_bytes"] / _MB, at_most=1000, unit=" MB"),
        Figure(name="task: read to find its rows", measured=read.result["task_bytes"] / _MB, at_most=3, unit=" MB"),
        Figure(name="task: found in", measured=read.result["task_seconds"], at_most=5, unit=" s"),
        Figure(
            name="plan of an earlier run: checked in", measured=read.result["whole_seconds"], at_most=600, unit=" s"
        ),
    ]


def graph(sizes: Sizes, workdir: pathlib.Path) -> list[Figure]:
    """What is sent to a service."""
    found = _part("graph", workdir, sizes.shards, sizes.files).result
    what = f"graph of {sizes.shards:,} tasks"
    files = f"{what}, {sizes.files:,} files in the source"
    return [
        Figure(name=what, measured=found["graph_bytes"] / _MB, at_most=1, unit=" MB"),
        Figure(name=files, measured=found["with_files_bytes"] / _MB, at_most=5, unit=" MB"),
    ]


def finish(sizes: Sizes, workdir: pathlib.Path) -> list[Figure]:
    """The end of a job, and the first thing that a trainer does."""
    committed = _part("finished", "commit", workdir, sizes.finished_shards).result
    opened = _part("finished", "open", workdir, sizes.finished_shards).result
    what = f"{sizes.finished_shards:,} shards"
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
        "groups": "row groups of the plan",
        "shards": "of the plan and the graph",
        "files": "of the source",
        "finished_shards": "of the finished dataset",
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
