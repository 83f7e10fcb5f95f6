"""Compare the tokenizer without a pipeline, our `build` and the common script, on the same rows.

    tiny             half a megabyte: warms up, and shows start-up
    small, large     100 and 400 MB: whole commands, compared with contenders that take minutes
    low, high        1 and 4 GB: the difference gives the steady state of `build` and the growth of its memory

The machine may be noisy, so contenders take turns: round 1 of all, then round 2. Before the first round, each makes a
tiny corpus untimed, so that libraries are in the page cache for all.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping

from scripts.benchmarks import corpus, measure, tokenizer_training
from scripts.benchmarks.measure import Run

MAX_LENGTH = 512
_TINY_BYTES = 500_000
# Kinds of tokenizers, and layouts.
_COMPARED = tuple(itertools.product(("wordpiece", "bpe"), ("pad", "concat")))
COMBINATIONS = (*_COMPARED, ("unigram", "concat"))


@dataclasses.dataclass(frozen=True)
class Trial:
    """Command to run: raw, build or common; a kind of tokenizer; pad or concat; a size; cores, 0 for all."""

    contender: str
    kind: str
    layout: str
    size: str
    cores: int = 0


def raw(kind: str) -> Trial:
    """Return the trial of the tokenizer without a pipeline. It has no layout and no start-up, so one size is enough."""
    return Trial("raw", kind, "tokens", "small")


# Contenders for `build`, except the tokenizer without a pipeline.
COMMON = (Trial("common", "bpe", "pad", "small"), *(Trial("common", *each, "large") for each in _COMPARED))
ONE_CORE = tuple(
    Trial("build", *each, size, 1)
    for each in (("bpe", "concat"), ("wordpiece", "pad"), ("unigram", "concat"))
    for size in ("low", "high")
)
_RAW = tuple(raw(kind) for kind in tokenizer_training.KINDS)
_BUILDS = tuple(Trial("build", *each, size) for each in COMBINATIONS for size in ("low", "high"))


def _beside(trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    return (*trials, *(dataclasses.replace(trial, contender="build", cores=0) for trial in trials))


_NEEDS: dict[str, Callable[[], tuple[Trial, ...]]] = {
    "build": lambda: (*_RAW, *_BUILDS),
    "common": lambda: _beside(COMMON),
    "cores": lambda: _beside(ONE_CORE),
    "memory": lambda: _BUILDS,
}
SECTIONS = tuple(_NEEDS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Work folder, amounts of text, and numbers of runs."""

    workdir: pathlib.Path
    small_bytes: int = 100_000_000
    large_bytes: int = 400_000_000
    low_bytes: int = 1_000_000_000
    high_bytes: int = 4_000_000_000
    tokenizer_bytes: int = 20_000_000
    small_runs: int = 3
    large_runs: int = 1
    builds_in_a_turn: int = 3
    reader_rounds: int = 3
    reader_seconds: float = 10.0

    def num_bytes(self, size: str) -> int:
        """Return the bytes of text of a size: tiny, small, large, low or high."""
        return _TINY_BYTES if size == "tiny" else int(getattr(self, f"{size}_bytes"))

    def rounds(self, size: str) -> int:
        """Return the number of runs at a size."""
        return self.small_runs if size in ("tiny", "small") else self.large_runs


Results = Mapping[Trial, list[Run]]
_SHORT = ("small", "large")


def race(settings: Settings, *, sections: set[str]) -> dict[Trial, list[Run]]:
    """Run all trials that the sections need, in turns."""
    needed = {trial for section in sections & set(SECTIONS) for trial in _NEEDS[section]()}
    results: dict[Trial, list[Run]] = {}
    for trial in sorted({dataclasses.replace(trial, size="tiny", cores=0) for trial in needed}, key=_order):
        run(settings, trial)
    for trial, turn in _turns(settings, needed):
        finished = run(settings, trial)
        results.setdefault(trial, []).append(finished)
        size = f"{settings.num_bytes(trial.size) / 1e6:,.0f} MB"
        text = f"{trial.contender} {trial.kind} {trial.layout} {size}{' on one core' * trial.cores}, run {turn + 1}"
        print(f"  {text}: {seconds_of(trial, finished):.1f} s", file=sys.stderr, flush=True)
    return results


def _turns(settings: Settings, needed: set[Trial]) -> Iterator[tuple[Trial, int]]:
    for turn in range(max(settings.small_runs, settings.large_runs)):
        for trial in sorted(needed, key=_order):
            if turn < settings.rounds(trial.size):
                # Short runs vary more than long ones.
                times = settings.builds_in_a_turn if trial.contender == "build" and trial.size in _SHORT else 1
                yield from itertools.repeat((trial, turn), times)


def _order(trial: Trial) -> tuple[object, ...]:
    # Trials that are compared run close together, so that other load on the machine affects them equally.
    return trial.kind, trial.size, trial.layout == "tokens", trial.layout, trial.contender, trial.cores


def seconds_of(trial: Trial, run: Run) -> float:
    """Return the time to compare: the tokenizer's loop for raw, else the wall clock including start-up."""
    return float(run.result["encode_seconds"]) if trial.contender == "raw" else run.seconds


# The reader section reads the output of this build.
_READ = Trial("build", "wordpiece", "pad", "large")


def build_large_pad(settings: Settings) -> pathlib.Path:
    """Return the dataset for the reader section, made unless an earlier section or run has made it."""
    output = built(settings, _READ)
    if not (output / "manifest.json").exists():
        run(settings, _READ)
    return output


def run(settings: Settings, trial: Trial) -> Run:
    """Run one trial. Its result has `examples`."""
    folder = corpus_folder(settings, trial.size)
    tokenizer = tokenizer_folder(settings, trial.kind)
    output = built(settings, trial)
    shutil.rmtree(output, ignore_errors=True)
    measure.warm_pages(folder)
    os.sync()  # no trial pays for writing back the pages of the one before
    with measure.fresh_caches(settings.workdir) as env:
        command = _command(trial, folder=folder, tokenizer=tokenizer, output=output)
        finished = measure.run(command, env=env, cores=trial.cores)
    if trial.contender != "raw":
        result: dict[str, float] = {"examples": _num_examples(finished, output)}
        finished = dataclasses.replace(finished, stdout=json.dumps(result))
    if trial != _READ:
        shutil.rmtree(output, ignore_errors=True)
    return finished


def _command(trial: Trial, *, folder: pathlib.Path, tokenizer: pathlib.Path, output: pathlib.Path) -> list[str]:
    if trial.contender == "raw":
        return [sys.executable, "-m", "scripts.benchmarks.raw", str(folder), str(tokenizer)]
    if trial.contender == "build":
        arguments = build_arguments(trial.layout, folder=folder, tokenizer=tokenizer, output=output)
        return [*measure.PROGRAM, *arguments]
    command = [sys.executable, "-m", "scripts.benchmarks.common_script", f"{folder}/*.parquet", str(output)]
    return [*command, "--tokenizer", str(tokenizer), "--layout", trial.layout, "--max-length", str(MAX_LENGTH)]


def build_arguments(layout: str, *, folder: pathlib.Path, tokenizer: pathlib.Path, output: pathlib.Path) -> list[str]:
    """Return the command line of a build, without the program."""
    arguments = ["build", f"{folder}/*.parquet", "--output", str(output), "--tokenizer", str(tokenizer)]
    arguments += ["--text-column", "text", "--layout", layout, "--max-length", str(MAX_LENGTH)]
    # A row of `concat` holds several documents, so it can't keep a label.
    return [*arguments, *(["--label-column", "label"] if layout == "pad" else []), "--overwrite"]


def built(settings: Settings, trial: Trial) -> pathlib.Path:
    """Return the output folder of a trial."""
    name = f"{trial.contender}-{trial.kind}-{trial.layout}-{settings.num_bytes(trial.size)}"
    return settings.workdir / "built" / name


def corpus_folder(settings: Settings, size: str) -> pathlib.Path:
    """Return the folder of Parquet files of a size, made on the first call."""
    part_bytes = min(settings.num_bytes(size), settings.small_bytes)
    return corpus.parquet(settings.workdir, num_bytes=settings.num_bytes(size), part_bytes=part_bytes)


def tokenizer_folder(settings: Settings, kind: str) -> pathlib.Path:
    """Return the folder of a kind of tokenizer, trained on the first call."""
    return tokenizer_training.trained(settings.workdir, kind, sample_bytes=settings.tokenizer_bytes)


def _num_examples(run: Run, output: pathlib.Path) -> int:
    manifest = output / "manifest.json"
    if manifest.exists():
        return sum(int(split["num_examples"]) for split in json.loads(manifest.read_text())["splits"].values())
    return int(run.result["examples"])
