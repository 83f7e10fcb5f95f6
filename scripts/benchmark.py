"""Run this project's benchmark: all comparisons in one run, on a synthetic corpus. Only `peers` downloads.

    python scripts/benchmark.py [--workdir DIR] [--quick] [--only NAME ...] [--runs N]

    build    `prep-tfrecords build` between 1 and 4 GB, against the tokenizer without a pipeline
    common   `prep-tfrecords build` against a typical hand-written script, including start-up
    peers    `prep-tfrecords build` against tokbin and datatrove, which pip installs in separate environments
    cores    `build` on all cores against one
    memory   the peak of `build`, all processes together, at 1 and 4 GB
    chat     conversations against plain text of the same tokens
    reader   examples per second of our reader against hand-written input functions
    mixtures CPU seconds before the first batch of many datasets, with one stage and three
    startup  `--help`; CPU seconds of a build of 400 rows, as a multiple of its imports

`python scripts/benchmark.py --runs 1` gives every figure in about an hour on two quiet cores, with 15 GB on disk.

Needs Linux, because /proc reports the memory of all processes. Exit status: 0; 1 if a command failed; 2 usage.
"""

import argparse
import pathlib
import sys

# `python scripts/benchmark.py` puts scripts/ on the path, but not the repository, which holds the packages.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from scripts.benchmarks import chat, machine, measure, mixtures, peers, preparing, preparing_tables, reading, startup

SECTIONS = (*preparing.SECTIONS, "peers", "chat", "reader", "mixtures", "startup")
_DESCRIPTION = (__doc__ or "").partition("\n")[0]


def main() -> int:
    """Run the requested sections and print their tables."""
    options = _options()
    settings = _settings(options)
    settings.workdir.mkdir(parents=True, exist_ok=True)
    print(f"{machine.line()}\n", flush=True)
    try:
        _run(settings, set(options.only))
    except measure.CommandFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _run(settings: preparing.Settings, sections: set[str]) -> None:
    if sections & set(preparing.SECTIONS):
        results = preparing.race(settings, sections=sections)
        print("\n\n".join(preparing_tables.report(settings, results, sections=sections)), end="\n\n", flush=True)
    for name, title, section in (
        ("peers", "Against other tools", peers),
        ("chat", "Chat", chat),
        ("reader", "Reader", reading),
        ("mixtures", "Mixtures", mixtures),
        ("startup", "Start-up", startup),
    ):
        if name in sections:
            print(f"## {title}\n\n{section.report(settings)}\n", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=_DESCRIPTION)
    parser.add_argument(
        "--workdir", type=pathlib.Path, default=pathlib.Path("out/benchmark"), help="default %(default)s"
    )
    parser.add_argument(
        "--quick", action="store_true", help="5, 20, 10 and 40 MB of text: shows that all works, measures little"
    )
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="NAME", help=", ".join(SECTIONS)
    )
    parser.add_argument(
        "--runs",
        type=int,
        help="of each thing, of our build three times as many; default 3, and 1 on the large corpus",
    )
    return parser.parse_args()


def _settings(options: argparse.Namespace) -> preparing.Settings:
    megabytes = (5, 20, 10, 40) if options.quick else (100, 400, 1000, 4000)
    sizes = dict(zip(("small", "large", "low", "high"), megabytes, strict=True))
    return preparing.Settings(
        workdir=options.workdir.resolve(),
        **{f"{name}_bytes": size * 1_000_000 for name, size in sizes.items()},
        small_runs=options.runs or 3,
        large_runs=options.runs or 1,
        reader_rounds=max(3, options.runs or 3),
        reader_seconds=3.0 if options.quick else 10.0,
    )


if __name__ == "__main__":
    sys.exit(main())
