"""The prepare side: the tokenizer alone, our `build` and the common script, on the same rows of two sizes.

The machine may be noisy, so contenders take turns: round 1 of all of them, then round 2. Before the first round each
makes a tiny corpus untimed, so that none pays alone for cold libraries on disk.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator, Mapping

from scripts.benchmarks import corpus, measure, tokenizer_training
from scripts.benchmarks.measure import Run

__all__ = [
    "LAYOUTS",
    "SECTIONS",
    "Results",
    "Settings",
    "Trial",
    "build_large_pad",
    "built",
    "corpus_folder",
    "race",
    "seconds_of",
    "tiny_build_arguments",
    "tokenizer_folder",
]

LAYOUTS = {"pad": "wordpiece", "concat": "bpe"}
MAX_LENGTH = 512
_TINY_BYTES = 500_000
_NEEDS = {
    "raw": {("raw", "small"), ("raw", "large")},
    "build": {("raw", "small"), ("raw", "large"), ("build", "small"), ("build", "large")},
    "common": {("build", "large"), ("common", "large")},
    "memory": {("build", "small"), ("build", "large")},
}
SECTIONS = tuple(_NEEDS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Where to work, how much text, and how often each thing runs."""

    workdir: pathlib.Path
    small_bytes: int = 100_000_000
    large_bytes: int = 400_000_000
    tokenizer_bytes: int = 20_000_000
    small_runs: int = 3
    large_runs: int = 1
    reader_rounds: int = 3
    reader_seconds: float = 10.0

    def num_bytes(self, size: str) -> int:
        """Bytes of text of that size: tiny, small or large."""
        return {"tiny": _TINY_BYTES, "small": self.small_bytes, "large": self.large_bytes}[size]

    def rounds(self, size: str) -> int:
        """How often things of that size run."""
        return self.large_runs if size == "large" else self.small_runs


@dataclasses.dataclass(frozen=True)
class Trial:
    """One thing to run: raw, build or common; pad or concat; tiny, small or large."""

    contender: str
    layout: str
    size: str


Results = Mapping[Trial, list[Run]]


def race(settings: Settings, *, sections: set[str]) -> dict[Trial, list[Run]]:
    """Runs all that the sections need, in turns."""
    needed = sorted(set().union(*(_NEEDS[section] for section in sections & set(SECTIONS))))
    results: dict[Trial, list[Run]] = {}
    for layout in LAYOUTS:
        for contender in sorted({contender for contender, _ in needed}):
            _run(settings, Trial(contender, layout, "tiny"))
        for trial, turn in _turns(settings, needed, layout):
            finished = _run(settings, trial)
            results.setdefault(trial, []).append(finished)
            text = f"{trial.contender} {layout} {settings.num_bytes(trial.size) / 1e6:,.0f} MB, run {turn + 1}"
            print(f"  {text}: {seconds_of(trial, finished):.1f} s", file=sys.stderr, flush=True)
    return results


def _turns(settings: Settings, needed: list[tuple[str, str]], layout: str) -> Iterator[tuple[Trial, int]]:
    for turn in range(max(settings.small_runs, settings.large_runs)):
        # The contenders of one size directly after each other: what the machine does meanwhile, it does to both.
        for contender, size in sorted(needed, key=lambda need: need[1], reverse=True):
            if turn < settings.rounds(size):
                yield Trial(contender, layout, size), turn


def seconds_of(trial: Trial, run: Run) -> float:
    """What counts: of the tokenizer alone its loop, of the others the wall clock, start-up included."""
    return float(run.result["encode_seconds"]) if trial.contender == "raw" else run.seconds


def build_large_pad(settings: Settings) -> pathlib.Path:
    """The dataset that the reader section reads, made unless it is there from an earlier section or run."""
    output = built(settings, "pad", "large")
    if not (output / "manifest.json").exists():
        _run(settings, Trial("build", "pad", "large"))
    return output


def _run(settings: Settings, trial: Trial) -> Run:
    folder = corpus_folder(settings, trial.size)
    tokenizer = tokenizer_folder(settings, trial.layout)
    output = built(settings, trial.layout, trial.size, contender=trial.contender)
    shutil.rmtree(output, ignore_errors=True)
    measure.warm_pages(folder)
    os.sync()  # nobody pays for writing back what the one before left in the page cache
    with measure.fresh_caches(settings.workdir) as env:
        finished = measure.run(_command(trial, folder=folder, tokenizer=tokenizer, output=output), env=env)
    if trial.contender != "raw":
        finished = dataclasses.replace(finished, stdout=json.dumps({"examples": _num_examples(finished, output)}))
    if (trial.contender, trial.layout, trial.size) != ("build", "pad", "large"):  # which the reader section reads
        shutil.rmtree(output, ignore_errors=True)
    return finished


def _command(trial: Trial, *, folder: pathlib.Path, tokenizer: pathlib.Path, output: pathlib.Path) -> list[str]:
    if trial.contender == "raw":
        return [sys.executable, "-m", "scripts.benchmarks.raw", str(folder), str(tokenizer)]
    if trial.contender == "build":
        arguments = _build_arguments(trial.layout, folder=folder, tokenizer=tokenizer, output=output)
        return [sys.executable, "-m", "pipelines.cli", *arguments]
    command = [sys.executable, "-m", "scripts.benchmarks.common_script", f"{folder}/*.parquet", str(output)]
    return [*command, "--tokenizer", str(tokenizer), "--layout", trial.layout, "--max-length", str(MAX_LENGTH)]


def _build_arguments(layout: str, *, folder: pathlib.Path, tokenizer: pathlib.Path, output: pathlib.Path) -> list[str]:
    arguments = ["build", f"{folder}/*.parquet", "--output", str(output), "--tokenizer", str(tokenizer)]
    arguments += ["--text-column", "text", "--layout", layout, "--max-length", str(MAX_LENGTH)]
    # A row of `concat` holds several documents, so there is no label to keep.
    return [*arguments, *(["--label-column", "label"] if layout == "pad" else []), "--engine", "hf", "--overwrite"]


def tiny_build_arguments(settings: Settings) -> list[str]:
    """The command line, without the program, of a build that takes seconds."""
    output = built(settings, "pad", "tiny")
    folder, tokenizer = corpus_folder(settings, "tiny"), tokenizer_folder(settings, "pad")
    return _build_arguments("pad", folder=folder, tokenizer=tokenizer, output=output)


def built(settings: Settings, layout: str, size: str, *, contender: str = "build") -> pathlib.Path:
    """The folder that this trial writes to."""
    return settings.workdir / "built" / f"{contender}-{layout}-{settings.num_bytes(size)}"


def corpus_folder(settings: Settings, size: str) -> pathlib.Path:
    """The Parquet files of that size, made on the first call."""
    part_bytes = min(settings.num_bytes(size), settings.small_bytes)
    return corpus.parquet(settings.workdir, num_bytes=settings.num_bytes(size), part_bytes=part_bytes)


def tokenizer_folder(settings: Settings, layout: str) -> pathlib.Path:
    """The tokenizer that this layout is measured with, trained on the first call."""
    return tokenizer_training.trained(settings.workdir, LAYOUTS[layout], sample_bytes=settings.tokenizer_bytes)


def _num_examples(run: Run, output: pathlib.Path) -> int:
    manifest = output / "manifest.json"
    if manifest.exists():
        return sum(int(split["num_examples"]) for split in json.loads(manifest.read_text())["splits"].values())
    return int(run.result["examples"])
