"""Two checkouts side by side: `prep-tfrecords build` of the same sources, alternately, in one run.

    python -m scripts.benchmarks.sources --base CHECKOUT [--head CHECKOUT] [--only CASE ...] [--runs N] [--scale F]

    startup   0.5 MB of text as Parquet: nearly all of it is start-up
    small     100 MB of text as Parquet
    large     1.6 GB of text as Parquet
    lines     400 MB of JSON lines in one file
    files     400 MB of JSON lines in 16 files
    ingest    JSON lines of `lines` on one core and on two, of the head only: with an empty folder for --keep-ingested
              less with a full one

CPU seconds, wall clock, peak memory and what was sent towards a disk, medians, and the head's share of the base's.
Every run has empty caches. Exit status: 0 also when a bar is missed; 1 if a command failed; 2 usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Sequence

from scripts import arguments
from scripts.benchmarks import corpus, figures, machine, measure, tokenizer_training
from scripts.benchmarks.figures import Figure, median, number, table
from scripts.benchmarks.measure import Run

__all__ = ["CASES", "Case", "Pair", "compare", "ingest_seconds", "pairs_table"]

_TOKENIZER_BYTES = 20_000_000
_PART_BYTES = 100_000_000
_INGEST_ROWS = 2_000
_MOST = 1.05
_MOST_OF_STARTUP = 0.75
_LEAST_SPEEDUP = 1.8

_QUANTITIES: dict[str, Callable[[Run], float]] = {
    "CPU, s": lambda run: run.cpu_seconds,
    "wall, s": lambda run: run.seconds,
    "peak memory, MB": lambda run: run.tree_bytes / 1e6,
    "to disk, MB": lambda run: run.stored_bytes / 1e6,
    "written, MB": lambda run: run.written_bytes / 1e6,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A source: bytes of text, as Parquet or as JSON lines in so many files."""

    name: str
    text_bytes: int
    num_line_files: int = 0

    def scaled(self, scale: float) -> Case:
        """The same with less text; start-up stays."""
        return self if self.name == "startup" else dataclasses.replace(self, text_bytes=round(self.text_bytes * scale))


CASES = (
    Case(name="startup", text_bytes=500_000),
    Case(name="small", text_bytes=100_000_000),
    Case(name="large", text_bytes=1_600_000_000),
    Case(name="lines", text_bytes=400_000_000, num_line_files=1),
    Case(name="files", text_bytes=400_000_000, num_line_files=16),
)
_INGEST = "ingest"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """The runs of one case, of the base and of the head."""

    case: Case
    base: Sequence[Run]
    head: Sequence[Run]

    def ratio(self, quantity: Callable[[Run], float]) -> float:
        """The head's median over the base's."""
        below = median(map(quantity, self.base))
        return median(map(quantity, self.head)) / below if below else float("nan")

    def figures(self) -> list[Figure]:
        """The bars of this case."""
        bar = _MOST_OF_STARTUP if self.case.name == "startup" else _MOST
        bars = {name: bar if name in ("CPU, s", "wall, s") else _MOST for name in _QUANTITIES if name != "written, MB"}
        return [
            Figure(
                name=f"{self.case.name}: {name}, of the base's", measured=self.ratio(_QUANTITIES[name]), at_most=most
            )
            for name, most in bars.items()
        ]


def compare(workdir: pathlib.Path, case: Case, *, base: pathlib.Path, head: pathlib.Path, runs: int) -> Pair:
    """Builds in turns, beginning with another one each time; a first build of each that isn't counted warms it up."""
    found: dict[pathlib.Path, list[Run]] = {base: [], head: []}
    for checkout in found:
        _build(workdir, CASES[0], checkout)
    for turn in range(runs):
        for checkout in (base, head) if turn % 2 == 0 else (head, base):
            run = _build(workdir, case, checkout)
            found[checkout].append(run)
            which = "base" if checkout == base else "head"
            print(f"  {case.name} {which} {turn + 1}: {run.seconds:.1f} s", file=sys.stderr, flush=True)
    return Pair(case=case, base=found[base], head=found[head])


def ingest_seconds(workdir: pathlib.Path, case: Case, checkout: pathlib.Path, *, cores: int, runs: int) -> float:
    """Seconds for ingest alone: the median of builds of a few rows that ingest all, less that of builds that find all
    rows ingested.
    """
    keep = workdir / "ingested"
    options = ("--keep-ingested", str(keep), "--limit", str(_INGEST_ROWS), "--workers", str(cores))
    fresh, kept = [], []
    for _ in range(runs):
        shutil.rmtree(keep, ignore_errors=True)
        fresh.append(_build(workdir, case, checkout, *options, cores=cores).seconds)
        kept.append(_build(workdir, case, checkout, *options, cores=cores).seconds)
    shutil.rmtree(keep, ignore_errors=True)
    return median(fresh) - median(kept)


def pairs_table(pairs: Sequence[Pair]) -> str:
    """Medians of base and head and their ratio, a line a quantity."""
    rows = []
    for pair in pairs:
        for name, quantity in _QUANTITIES.items():
            medians = [number(median(map(quantity, runs))) for runs in (pair.base, pair.head)]
            rows.append([pair.case.name, name, *medians, f"{pair.ratio(quantity):.2f}"])
    return table(["case", "quantity", "base", "head", "ratio"], rows)


def _build(workdir: pathlib.Path, case: Case, checkout: pathlib.Path, *options: str, cores: int = 0) -> Run:
    pattern = _source(workdir, case)
    tokenizer = tokenizer_training.trained(workdir, "wordpiece", sample_bytes=_TOKENIZER_BYTES)
    output = workdir / "built"
    shutil.rmtree(output, ignore_errors=True)
    measure.warm_pages(pathlib.Path(pattern).parent)
    os.sync()  # nobody pays for writing back what the one before left in the page cache
    words = ["build", pattern, "--output", str(output), "--tokenizer", str(tokenizer), "--layout", "concat"]
    words += ["--max-length", "512", "--name", "compared", *options]
    with measure.fresh_caches(workdir) as env:
        run = measure.run([sys.executable, "-m", "pipelines.cli", *words], env=env, cores=cores, checkout=checkout)
    shutil.rmtree(output)
    return run


def _source(workdir: pathlib.Path, case: Case) -> str:
    """The pattern of the case's files, made on the first call."""
    folder = corpus.parquet(workdir, num_bytes=case.text_bytes, part_bytes=min(case.text_bytes, _PART_BYTES))
    return f"{_lines(folder, case)}/*.jsonl" if case.num_line_files else f"{folder}/*.parquet"


def _lines(parquet: pathlib.Path, case: Case) -> pathlib.Path:
    """The same text as JSON lines."""
    folder = parquet.with_name(f"{parquet.name}-lines-{case.num_line_files}")
    if folder.exists():
        return folder
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    given = 0
    for table_ in corpus.documents(num_bytes=case.text_bytes):
        part = min(given * case.num_line_files // case.text_bytes, case.num_line_files - 1)
        with (partial / f"part-{part:05d}.jsonl").open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in table_.to_pylist())
        given += corpus.text_bytes(table_["text"])
    partial.rename(folder)
    return folder


def _ingest_report(options: argparse.Namespace, workdir: pathlib.Path) -> tuple[str, list[Figure]]:
    (case,) = (each.scaled(options.scale) for each in CASES if each.name == "lines")
    seconds = [ingest_seconds(workdir, case, options.head, cores=cores, runs=options.runs) for cores in (1, 2)]
    rows = [[str(cores), number(each)] for cores, each in zip((1, 2), seconds, strict=True)]
    bar = Figure(
        name="ingest: one core's time over two cores'", measured=seconds[0] / seconds[1], at_least=_LEAST_SPEEDUP
    )
    return table(["cores", "ingest of 400 MB of JSON lines, s"], rows), [bar]


def main() -> int:
    """Compares in the cases that were asked for, and prints their tables."""
    options = _options()
    workdir = options.workdir.resolve()
    workdir.mkdir(parents=True, exist_ok=True)
    print(f"{machine.line()}\n", flush=True)
    found: list[Figure] = []
    try:
        for case in CASES:
            if case.name in options.only:
                scaled = case.scaled(options.scale)
                pair = compare(workdir, scaled, base=options.base, head=options.head, runs=options.runs)
                print(f"{pairs_table([pair])}\n", flush=True)
                found += pair.figures()
        if _INGEST in options.only:
            text, bars = _ingest_report(options, workdir)
            print(f"{text}\n", flush=True)
            found += bars
    except measure.CommandFailedError as error:
        print(error, file=sys.stderr)
        return 1
    print(figures.bars_table(found))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    place = pathlib.Path
    parser.add_argument("--base", type=place, required=True, metavar="CHECKOUT", help="what is compared with")
    parser.add_argument("--head", type=place, default=measure.REPOSITORY, metavar="CHECKOUT", help="default: this one")
    parser.add_argument(
        "--workdir", type=place, default=place("out/sources"), metavar="DIR", help="default %(default)s"
    )
    parser.add_argument("--runs", type=arguments.positive, default=3, metavar="N", help="of each; default %(default)s")
    parser.add_argument("--scale", type=float, default=1.0, metavar="F", help="share of the text, but for start-up")
    arguments.add_only(parser, [*(case.name for case in CASES), _INGEST])
    options = parser.parse_args()
    options.base, options.head = options.base.resolve(), options.head.resolve()
    return options


if __name__ == "__main__":
    sys.exit(main())
