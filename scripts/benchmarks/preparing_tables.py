"""Compute the tables of the prepare side. Two sizes separate start-up from steady state:

steady state = (high - low) bytes / (high - low) seconds        start-up = seconds - bytes / steady state
"""

import dataclasses
import math
import os

from scripts.benchmarks import figures
from scripts.benchmarks.figures import median, number, spread
from scripts.benchmarks.preparing import (
    COMBINATIONS,
    COMMON,
    ONE_CORE,
    Results,
    Settings,
    Trial,
    raw,
    seconds_of,
)


def report(settings: Settings, results: Results, *, sections: set[str]) -> list[str]:
    """Return the tables of the sections."""
    parts = {
        "build": ("Steady state", _steady_states),
        "common": ("Against the common script", _against_common),
        "cores": ("All cores against one", _cores),
        "memory": ("Memory", _memory),
    }
    return [
        f"## {title}\n\n{part(settings, results)}" for section, (title, part) in parts.items() if section in sections
    ]


def _median_of(results: Results, trial: Trial, size: str, what: str) -> float:
    return median(getattr(run, what) for run in results[dataclasses.replace(trial, size=size)])


def _slope(settings: Settings, results: Results, trial: Trial, what: str = "seconds") -> float:
    """Return the seconds per 100 MB between the two sizes; NaN if noise exceeds the difference."""
    low, high = (_median_of(results, trial, size, what) for size in ("low", "high"))
    per_100 = (high - low) * 1e8 / (settings.high_bytes - settings.low_bytes)
    return per_100 if per_100 > 0 else math.nan


def _steady_states(settings: Settings, results: Results) -> str:
    rows = []
    for kind, layout in COMBINATIONS:
        alone = settings.small_bytes / 1e6 / median(seconds_of(raw(kind), run) for run in results[raw(kind)])
        trial = Trial("build", kind, layout, "low")
        build, cpu = 100 / _slope(settings, results, trial), _slope(settings, results, trial, "cpu_seconds")
        start_up = _median_of(results, trial, "low", "seconds") - settings.low_bytes / 1e6 / build
        rows.append([kind, layout, *map(number, (alone, build, build / alone, cpu, start_up))])
    headers = ["tokenizer", "layout", "tokenizer alone, MB/s", "build, MB/s", "ratio", "CPU s for 100 MB"]
    return figures.table([*headers, "start-up of build, s"], rows)


def _against_common(settings: Settings, results: Results) -> str:
    rows = []
    for other in COMMON:
        runs = [results[dataclasses.replace(other, contender="build")], results[other]]
        ours, theirs = ([run.seconds for run in each] for each in runs)
        ratio = median(theirs) / median(ours)
        size = f"{settings.num_bytes(other.size) / 1e6:,.0f} MB"
        examples = [f"{each[-1].result['examples']:,}" for each in runs]
        rows.append([other.kind, other.layout, size, spread(ours), spread(theirs), number(ratio), *examples])
    headers = ["tokenizer", "layout", "text", "build, s", "the common script, s", "times as fast"]
    return figures.table([*headers, "examples", "examples there"], rows)


def _cores(settings: Settings, results: Results) -> str:
    """Compare the slopes between the two sizes, and the whole times of the larger one, including start-up."""
    cores = len(os.sched_getaffinity(0))
    rows = []
    for one in ONE_CORE[::2]:
        both = (dataclasses.replace(one, cores=0), one)
        rates = [100 / _slope(settings, results, trial) for trial in both]
        whole = [_median_of(results, trial, "high", "seconds") for trial in both]
        ratios = (rates[0] / rates[1], whole[1] / whole[0])
        rows.append([one.kind, one.layout, str(cores), *map(number, rates), *map(number, ratios)])
    high = f"{settings.high_bytes / 1e9:g} GB"
    headers = [
        "tokenizer",
        "layout",
        "cores",
        "all cores, MB/s",
        "one core, MB/s",
        "ratio",
        f"whole time of {high}, ratio",
    ]
    return figures.table(headers, rows)


def _memory(settings: Settings, results: Results) -> str:
    rows = []
    low, high = (f"{size / 1e9:g} GB" for size in (settings.low_bytes, settings.high_bytes))
    for kind, layout in COMBINATIONS:
        runs = [results[Trial("build", kind, layout, size)] for size in ("low", "high")]
        trees = [max(run.tree_bytes for run in each) for each in runs]
        processes = [max(run.process_bytes for run in each) for each in runs]
        sizes_in_gb = [f"{size / 1e9:.2f} GB" for size in (*trees, *processes)]
        ratio = processes[1] / processes[0]  # a small build uses one process
        rows.append([kind, layout, *sizes_in_gb, number(ratio)])
    headers = ["tokenizer", "layout", f"all processes, {low}", high, f"largest process, {low}", high, "ratio"]
    return figures.table(headers, rows)
