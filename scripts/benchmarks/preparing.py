"""Compare the tokenizer without a pipeline, our `build` and the common script, on the same rows.

    tiny             half a megabyte: warms up, and shows start-up
    small, large     100 and 400 MB: whole commands, compared with contenders that take minutes
    low, high        1 and 4 GB: the difference gives the steady state of `build` and the growth of its memory

steady state = (high - low) bytes / (high - low) seconds        start-up = seconds - bytes / steady state

The machine may be noisy, so contenders take turns: round 1 of all, then round 2. Before the first round, each makes a
tiny corpus untimed, so that libraries are in the page cache for all.
"""

import dataclasses
import itertools
import math
import os
import pathlib
import shutil
import sys
from collections.abc import Collection, Mapping
from typing import NamedTuple

from scripts.benchmarks import corpus, figures, measure, tokenizer_training
from scripts.benchmarks.figures import median, number, spread
from scripts.benchmarks.measure import Run

MAX_LENGTH = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of all benchmarks. `num_bytes`: bytes of text by name of the size; `runs`: number for each command."""

    workdir: pathlib.Path
    num_bytes: Mapping[str, int]
    runs: int
    reader_seconds: float

    def corpus(self, size: str) -> pathlib.Path:
        """Return a folder of Parquet files of text, made on the first call. `size`: a key of `num_bytes`."""
        return corpus.parquet(self.workdir, num_bytes=self.num_bytes[size])

    def tokenizer(self, kind: str) -> pathlib.Path:
        """Return the folder of a tokenizer, trained on the first call. `kind`: a key of `tokenizer_training.KINDS`."""
        return tokenizer_training.trained(self.workdir, kind)


class Trial(NamedTuple):
    """A command to measure: a contender (build, common or raw), its tokenizer, corpus, layout, and cores; 0 for all.

    In natural order, compared trials are neighbours, so that other load on the machine affects them equally.
    """

    kind: str
    size: str
    layout: str
    contender: str = "build"
    cores: int = 0


_COMPARED = tuple(itertools.product(("wordpiece", "bpe"), ("pad", "concat")))
_BUILT = (*_COMPARED, ("unigram", "concat"))
_ON_ONE_CORE = (("bpe", "concat"), ("wordpiece", "pad"), ("unigram", "concat"))
_LONG = ("low", "high")
_BUILDS = [Trial(kind, size, layout) for kind, layout in _BUILT for size in _LONG]
_DONE: dict[Trial, list[Run]] = {}


def race(settings: Settings, trials: Collection[Trial]) -> dict[Trial, list[Run]]:
    """Run in turns the trials that have not run before; return the measured runs of all trials so far."""
    new = sorted(set(trials) - _DONE.keys())
    for trial in sorted({trial._replace(size="tiny", cores=0) for trial in new}):
        _run(settings, trial)
    for turn, trial in itertools.product(range(settings.runs), new):
        run = _run(settings, trial)
        _DONE.setdefault(trial, []).append(run)
        print(f"  {' '.join(map(str, trial))}, run {turn + 1}: {run.seconds:.1f} s", file=sys.stderr, flush=True)
    return _DONE


def _run(settings: Settings, trial: Trial) -> Run:
    folder, tokenizer = settings.corpus(trial.size), settings.tokenizer(trial.kind)
    output = settings.workdir / "built" / "trial"
    shutil.rmtree(output, ignore_errors=True)
    measure.warm_pages(folder)
    os.sync()  # no trial pays for writing back the pages of the one before
    module = [sys.executable, "-m", f"scripts.benchmarks.{trial.contender}"]
    commands = {
        "raw": [*module, str(folder), str(tokenizer)],
        "build": build_command(trial.layout, folder=folder, tokenizer=tokenizer, output=output),
        "common": [*module, str(folder), str(output), str(tokenizer), trial.layout, str(MAX_LENGTH)],
    }
    with measure.fresh_caches(settings.workdir) as env:
        return measure.run(commands[trial.contender], env=env, cores=trial.cores)


def build_command(layout: str, *, folder: pathlib.Path, tokenizer: pathlib.Path, output: pathlib.Path) -> list[str]:
    """Return the command line that builds a dataset from a folder of Parquet files."""
    command = [*measure.PROGRAM, "build", f"{folder}/*.parquet", "--output", str(output), "--tokenizer", str(tokenizer)]
    command += ["--text-column", "text", "--layout", layout, "--max-length", str(MAX_LENGTH)]
    # A row of `concat` holds several documents, so it can't keep a label.
    return [*command, *(["--label-column", "label"] if layout == "pad" else []), "--overwrite"]


def _median(trial: Trial, size: str, figure: str = "seconds") -> float:
    return median(getattr(run, figure) for run in _DONE[trial._replace(size=size)])


def _slope(settings: Settings, trial: Trial, figure: str = "seconds") -> float:
    """Return the seconds per 100 MB between sizes `low` and `high`; NaN if noise exceeds the difference."""
    low, high = (_median(trial, size, figure) for size in _LONG)
    per_100 = (high - low) * 1e8 / (settings.num_bytes["high"] - settings.num_bytes["low"])
    return per_100 if per_100 > 0 else math.nan


def steady_states(settings: Settings) -> str:
    """Measure builds of 1 and 4 GB and the tokenizer without a pipeline; return a Markdown table of MB per second."""
    # The tokenizer alone has no layout and no start-up, so one size is enough.
    alone = {kind: Trial(kind, "small", "tokens", "raw") for kind in tokenizer_training.KINDS}
    runs = race(settings, [*alone.values(), *_BUILDS])
    rows = []
    for kind, layout in _BUILT:
        rate = settings.num_bytes["small"] / 1e6 / median(float(run.stdout) for run in runs[alone[kind]])
        trial = Trial(kind, "low", layout)
        build, cpu = 100 / _slope(settings, trial), _slope(settings, trial, "cpu_seconds")
        start_up = _median(trial, "low") - settings.num_bytes["low"] / 1e6 / build
        rows.append([kind, layout, *map(number, (rate, build, build / rate, cpu, start_up))])
    headers = ["tokenizer", "layout", "tokenizer alone, MB/s", "build, MB/s", "ratio", "CPU s for 100 MB"]
    return figures.table([*headers, "start-up of build, s"], rows)


def against_common(settings: Settings) -> str:
    """Measure whole builds and the hand-written script `common`; return a Markdown table of their seconds."""
    trials = [Trial("bpe", "small", "pad"), *(Trial(kind, "large", layout) for kind, layout in _COMPARED)]
    runs = race(settings, [*trials, *(trial._replace(contender="common") for trial in trials)])
    rows = []
    for trial in trials:
        pair = (trial, trial._replace(contender="common"))
        ours, theirs = ([run.seconds for run in runs[contender]] for contender in pair)
        size = f"{settings.num_bytes[trial.size] / 1e6:,.0f} MB"
        times = number(median(theirs) / median(ours))
        rows.append([trial.kind, trial.layout, size, spread(ours), spread(theirs), times])
    headers = ["tokenizer", "layout", "text", "build, s", "the common script, s", "times as fast"]
    return figures.table(headers, rows)


def cores(settings: Settings) -> str:
    """Measure builds on all cores and on one; return a Markdown table of MB per second and their ratios."""
    trials = [Trial(kind, size, layout) for kind, layout in _ON_ONE_CORE for size in _LONG]
    race(settings, [*trials, *(trial._replace(cores=1) for trial in trials)])
    rows = []
    for trial in trials[::2]:
        pair = (trial, trial._replace(cores=1))
        rates = [100 / _slope(settings, member) for member in pair]
        whole = [_median(member, "high") for member in pair]
        ratios = (rates[0] / rates[1], whole[1] / whole[0])
        all_cores = str(len(os.sched_getaffinity(0)))
        rows.append([trial.kind, trial.layout, all_cores, *map(number, rates), *map(number, ratios)])
    headers = ["tokenizer", "layout", "cores", "all cores, MB/s", "one core, MB/s", "ratio"]
    return figures.table([*headers, f"whole time of {_gigabytes(settings, 'high')}, ratio"], rows)


def memory(settings: Settings) -> str:
    """Return a Markdown table of the peak memory of builds of 1 and 4 GB: of all processes, and of the largest."""
    runs = race(settings, _BUILDS)
    rows = []
    for kind, layout in _BUILT:
        pair = [runs[Trial(kind, size, layout)] for size in _LONG]
        trees = [max(run.tree_bytes for run in measured) for measured in pair]
        processes = [max(run.process_bytes for run in measured) for measured in pair]
        peaks = [f"{peak / 1e9:.2f} GB" for peak in (*trees, *processes)]
        rows.append([kind, layout, *peaks, number(processes[1] / processes[0])])  # a small build uses one process
    low, high = (_gigabytes(settings, size) for size in _LONG)
    headers = ["tokenizer", "layout", f"all processes, {low}", high, f"largest process, {low}", high, "ratio"]
    return figures.table(headers, rows)


def _gigabytes(settings: Settings, size: str) -> str:
    return f"{settings.num_bytes[size] / 1e9:g} GB"
