"""Torture: everything that can go wrong while a dataset is made or kept, done on purpose, many times. One table.

    python scripts/torture.py [--kills 200] [--only SECTION ...] [--seed N] [--workdir DIR] [--json]

    kills      a build is killed at any moment, again and again, and run to its end
    flips      every byte of shards, their indexes and the manifest is damaged once, and `verify` has to say so
    storage    every single operation on an object store or a disk fails once
    disk       full ones and read-only ones, for real; needs root or a user namespace
    meddling   the source, the caches or the output change or vanish in the middle of a build
    jobs       two builds in one folder at the same time
    repair     `verify --repair` of what was damaged at random

It makes its own corpus and tokenizer, needs no network, and draws everything from --seed; only the scheduler of the
machine is left to chance. It needs Linux. Exit status: 0 if every claim held, 1 if one did not, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
import time

# `python scripts/torture.py` puts scripts/ on the path, not the repository that holds the packages.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from scripts import arguments
from scripts.torturing import figures, processes
from scripts.torturing.figures import Figure

SECTIONS = ("kills", "flips", "storage", "disk", "meddling", "jobs", "repair")
_DESCRIPTION = (__doc__ or "").partition("\n")[0]


def main() -> int:
    """Runs the sections that were asked for and prints their table."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="torture-") as temporary:
        workdir = (options.workdir or pathlib.Path(temporary)).resolve()
        workdir.mkdir(parents=True, exist_ok=True)
        processes.environment(workdir / "hub")
        found = _run(options, workdir)
    text = figures.figures_table(found)
    failures = figures.failures_text(found)
    print(text, failures, sep="\n\n" if failures else "", file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps([figure.to_json() for figure in found], indent=2))
    return 1 if any(figure.failures for figure in found) else 0


def _run(options: argparse.Namespace, workdir: pathlib.Path) -> list[Figure]:
    # These import the libraries, which look at the environment when they are imported.
    from scripts.torturing import disk, flips, jobs, kills, meddling, repair, storage
    from scripts.torturing.ground import Ground

    ground = Ground(workdir)
    seed = options.seed
    sections = {
        "kills": lambda: kills.run(ground, kills=options.kills, seed=seed),
        "flips": lambda: flips.run(ground, seed=seed, positions=options.flips),
        "storage": lambda: storage.run(ground, operations=options.operations),
        "disk": lambda: disk.run(ground, sizes=options.sizes),
        "meddling": lambda: meddling.run(ground, times=options.changes, seed=seed),
        "jobs": lambda: jobs.run(ground, pairs=options.jobs, seed=seed),
        "repair": lambda: repair.run(ground, repairs=options.repairs, seed=seed),
    }
    found: list[Figure] = []
    for name in (section for section in SECTIONS if section in options.only):
        began = time.perf_counter()
        found += sections[name]()
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=_DESCRIPTION)
    counts: dict[str, tuple[int | None, str]] = {
        "kills": (200, "how often a build is killed"),
        "flips": (None, "so many bytes of a file; default: every one"),
        "operations": (None, "so many storage operations; default: every one"),
        "sizes": (8, "of disks that are too small"),
        "changes": (5, "of each kind, to source, caches and output"),
        "jobs": (20, "pairs of each kind"),
        "repairs": (20, "how often a dataset is damaged and repaired"),
    }
    for name, (default, text) in counts.items():
        shown = text if default is None else f"{text}; default {default}"
        parser.add_argument(f"--{name}", type=arguments.positive, default=default, metavar="N", help=shown)
    arguments.add_only(parser, SECTIONS)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default %(default)s")
    arguments.add_output(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
