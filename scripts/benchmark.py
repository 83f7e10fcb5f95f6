"""The benchmark of this project: everything side by side in one run, on a synthetic corpus. Nothing is downloaded.

    python scripts/benchmark.py [--workdir DIR] [--quick] [--only NAME ...] [--runs N] [--large-runs N] [--json FILE]

    corpus   makes the text and trains the tokenizers; kept in the work folder for the next time
    raw      the tokenizer alone, on all cores
    build    `prep-tfrecords build`, steady state against the tokenizer alone: between 1 and 4 GB
    common   `prep-tfrecords build` against the script that people write by hand, start-up included
    cores    `build` on all cores against one
    memory   the peak of `build`, all processes together, at 1 and 4 GB
    chat     conversations against plain text of the same tokens
    reader   examples per second of our reader against hand-written input functions
    startup  `--help`; CPU seconds of a build of 400 rows over those of its imports; that preparing needs no TensorFlow

`python scripts/benchmark.py --runs 1` gives every figure in about an hour on two quiet cores, with 15 GB on disk.

Needs Linux, whose /proc says what memory a tree of processes holds. Exit status: 0; 1 if a command failed; 2 usage.
"""

import argparse
import json
import pathlib
import sys
import time
from typing import Any

# `python scripts/benchmark.py` puts scripts/ on the path, not the repository that holds the packages.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from scripts import arguments
from scripts.benchmarks import (
    chat,
    corpus,
    figures,
    machine,
    measure,
    preparing,
    preparing_tables,
    reading,
    startup,
    tokenizer_training,
    words,
)

SECTIONS = ("corpus", *preparing.SECTIONS, "chat", "reader", "startup")
_DESCRIPTION = (__doc__ or "").partition("\n")[0]


def main() -> int:
    """Runs the sections that were asked for and prints their tables."""
    options = _options()
    settings = _settings(options)
    settings.workdir.mkdir(parents=True, exist_ok=True)
    where = machine.line()
    print(f"{where}\n", flush=True)
    try:
        runs = _run(settings, set(options.only))
    except measure.CommandFailedError as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(_json(where, settings, runs))
    return 0


def _run(settings: preparing.Settings, sections: set[str]) -> list[dict[str, Any]]:
    """Prints the tables of the sections. Returns: the single runs of the prepare side."""
    runs: list[dict[str, Any]] = []
    if "corpus" in sections:
        print(f"## Corpus\n\n{_corpus_table(settings)}\n", flush=True)
    if sections & set(preparing.SECTIONS):
        results = preparing.race(settings, sections=sections)
        print("\n\n".join(preparing_tables.report(settings, results, sections=sections)), end="\n\n", flush=True)
        runs = preparing_tables.runs_json(results)
    for name, title, section in (
        ("chat", "Chat", chat),
        ("reader", "Reader", reading),
        ("startup", "Start-up", startup),
    ):
        if name in sections:
            print(f"## {title}\n\n{section.report(settings)}\n", flush=True)
    return runs


def _corpus_table(settings: preparing.Settings) -> str:
    rows = []
    for size in ("small", "large", "low", "high"):
        started = time.perf_counter()
        folder = preparing.corpus_folder(settings, size)
        rows.append([f"corpus, {settings.num_bytes(size) / 1e6:,.0f} MB", folder.name, _seconds(started)])
    for kind in tokenizer_training.KINDS:
        started = time.perf_counter()
        folder = preparing.tokenizer_folder(settings, kind)
        rows.append([f"tokenizer {kind}", folder.name, _seconds(started)])
    words_and_documents = (
        f"{words.NUM_WORDS:,} word forms, documents of {corpus.MEAN_DOCUMENT_BYTES:,} bytes on average"
    )
    rows.append(["text", words_and_documents, ""])
    return figures.table(["what", "folder", "made in, s"], rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=_DESCRIPTION)
    parser.add_argument(
        "--workdir", type=pathlib.Path, default=pathlib.Path("out/benchmark"), help="default %(default)s"
    )
    parser.add_argument(
        "--quick", action="store_true", help="5, 20, 10 and 40 MB of text: shows that all works, measures little"
    )
    arguments.add_only(parser, SECTIONS)
    parser.add_argument(
        "--runs",
        type=arguments.positive,
        help="of each thing, of our build three times as many; default 3, and 1 on the large corpus",
    )
    parser.add_argument("--large-runs", type=arguments.positive, help="on the large corpus, if not as many as --runs")
    parser.add_argument("--small-mb", type=arguments.positive, help="text of the small corpus; default 100")
    parser.add_argument("--large-mb", type=arguments.positive, help="text of the large corpus; default 400")
    parser.add_argument(
        "--low-mb", type=arguments.positive, help="text of the steady state's smaller corpus; default 1000"
    )
    parser.add_argument("--high-mb", type=arguments.positive, help="and of its larger one; default 4000")
    parser.add_argument("--json", type=pathlib.Path, help="writes the figures to this file as well")
    return parser.parse_args()


def _settings(options: argparse.Namespace) -> preparing.Settings:
    small, large, low, high = (5, 20, 10, 40) if options.quick else (100, 400, 1000, 4000)
    return preparing.Settings(
        workdir=options.workdir.resolve(),
        small_bytes=(options.small_mb or small) * 1_000_000,
        large_bytes=(options.large_mb or large) * 1_000_000,
        low_bytes=(options.low_mb or low) * 1_000_000,
        high_bytes=(options.high_mb or high) * 1_000_000,
        small_runs=options.runs or 3,
        large_runs=options.large_runs or options.runs or 1,
        reader_rounds=max(3, options.runs or 3),
        reader_seconds=3.0 if options.quick else 10.0,
    )


def _seconds(started: float) -> str:
    return figures.number(time.perf_counter() - started)


def _json(where: str, settings: preparing.Settings, runs: list[dict[str, Any]]) -> str:
    document = {
        "machine": where,
        "small_bytes": settings.small_bytes,
        "large_bytes": settings.large_bytes,
        "low_bytes": settings.low_bytes,
        "high_bytes": settings.high_bytes,
        "runs": runs,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
