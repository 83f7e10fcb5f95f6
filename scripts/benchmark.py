"""Compare this project's speed and memory with other programs, on a synthetic corpus. Only `peers` downloads.

    python scripts/benchmark.py [--workdir DIR] [--quick] [--only NAME ...] [--runs N]

    build    `prep-tfrecords build` between 1 and 4 GB, against the tokenizer without a pipeline
    common   `prep-tfrecords build` against a typical hand-written script, including start-up
    cores    `build` on all cores against one
    memory   the peak of `build`, all processes together, at 1 and 4 GB
    chat     conversations against plain text of the same tokens
    reader   examples per second of our reader against hand-written input functions
    mixtures CPU seconds before the first batch of many datasets, with one stage and three
    startup  `--help`; CPU seconds of a build of 0.5 MB of text, as a multiple of its imports
    peers    `prep-tfrecords build` against tokbin and datatrove, which pip installs in separate environments

`python scripts/benchmark.py` gives every figure in about an hour on two quiet cores, with 15 GB on disk.

Needs Linux, because /proc reports the memory of all processes. Exit status: 0; 1 if a command failed; 2 usage.
"""

import argparse
import pathlib
import pkgutil
import sys

# `python scripts/benchmark.py` puts scripts/ on the path, but not the repository, which holds the packages.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from scripts.benchmarks import figures, measure, preparing

# By name, the title and the function, imported when it is needed.
SECTIONS = {
    "build": ("Steady state", "preparing:steady_states"),
    "common": ("Against the common script", "preparing:against_common"),
    "cores": ("All cores against one", "preparing:cores"),
    "memory": ("Memory", "preparing:memory"),
    "chat": ("Chat", "chat:report"),
    "reader": ("Reader", "reading:report"),
    "mixtures": ("Mixtures", "mixtures:report"),
    "startup": ("Start-up", "startup:report"),
    "peers": ("Against other tools", "peers:report"),
}


def main() -> int:
    """Run the sections named on the command line, print their tables, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workdir", type=pathlib.Path, default="out/benchmark", help="default %(default)s")
    parser.add_argument(
        "--quick", action="store_true", help="a twentieth of the text: shows that all works, measures little"
    )
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="NAME", help=", ".join(SECTIONS)
    )
    parser.add_argument("--runs", type=int, default=1, help="of each command, default %(default)s")
    options = parser.parse_args()
    full = {"small": 100_000_000, "large": 400_000_000, "low": 1_000_000_000, "high": 4_000_000_000}
    share = 20 if options.quick else 1
    settings = preparing.Settings(
        workdir=options.workdir.resolve(),
        num_bytes={"tiny": 500_000, **{size: num_bytes // share for size, num_bytes in full.items()}},
        runs=options.runs,
        reader_seconds=3.0 if options.quick else 10.0,
    )
    settings.workdir.mkdir(parents=True, exist_ok=True)
    print(f"{figures.machine()}\n", flush=True)
    try:
        for name, (title, place) in SECTIONS.items():
            if name in options.only:
                report = pkgutil.resolve_name(f"scripts.benchmarks.{place}")
                print(f"## {title}\n\n{report(settings)}\n", flush=True)
    except measure.CommandFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
