"""What follows from the times and the memory of the prepare side. Two sizes keep start-up and steady state apart:

steady state = (large - small) bytes / (large - small) seconds        start-up = seconds - bytes / steady state
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from scripts.benchmarks import figures
from scripts.benchmarks.figures import Figure, median, number, spread
from scripts.benchmarks.preparing import LAYOUTS, SECTIONS, Results, Settings, Trial, seconds_of

__all__ = ["report", "runs_json"]

_BARS = {"pad": 1.5, "concat": 2.3}  # ours over the common script


def report(settings: Settings, results: Results, *, sections: set[str]) -> tuple[list[str], list[Figure]]:
    """The tables of the sections, and their figures with a bar."""
    titles = {"raw": "Times", "build": "Steady state", "common": "Against the common script", "memory": "Memory"}
    parts = {"raw": _times, "build": _steady_states, "common": _against_common, "memory": _memory}
    tables, found = [], []
    for section in SECTIONS:
        if section in sections or (section == "raw" and results):
            text, section_figures = parts[section](settings, results)
            tables.append(f"## {titles[section]}\n\n{text}")
            found += section_figures
    return tables, found


def runs_json(results: Results) -> list[dict[str, Any]]:
    """Every single run, for those who want to compute something else from them."""
    return [
        {
            **dataclasses.asdict(trial),
            "seconds": seconds_of(trial, run),
            "process_seconds": run.seconds,
            "tree_bytes": run.tree_bytes,
            "process_bytes": run.process_bytes,
        }
        for trial, runs in results.items()
        for run in runs
    ]


def _times(settings: Settings, results: Results) -> tuple[str, list[Figure]]:
    rows = []
    for trial, runs in sorted(results.items(), key=lambda item: dataclasses.astuple(item[0])):
        seconds = [seconds_of(trial, run) for run in runs]
        megabytes = settings.num_bytes(trial.size) / 1e6
        counts = runs[-1].result
        texts = (f"{megabytes:,.0f} MB", f"{counts.get('examples', counts.get('rows')):,}", str(len(runs)))
        whole = number(median(run.seconds for run in runs))
        rows.append(
            [trial.layout, trial.contender, *texts, spread(seconds), whole, number(megabytes / median(seconds))]
        )
    headers = ["layout", "what", "text", "examples", "runs", "seconds", "whole process, s", "MB/s"]
    return figures.table(headers, sorted(rows)), []


def _steady_state(settings: Settings, results: Results, contender: str, layout: str) -> tuple[float, float]:
    """(MB/s without start-up, seconds of start-up); not a number where noise was larger than the difference."""
    small, large = (
        median(seconds_of(trial, run) for run in results[trial])
        for trial in (Trial(contender, layout, "small"), Trial(contender, layout, "large"))
    )
    if large <= small:
        return math.nan, math.nan
    rate = (settings.large_bytes - settings.small_bytes) / 1e6 / (large - small)
    return rate, small - settings.small_bytes / 1e6 / rate


def _steady_states(settings: Settings, results: Results) -> tuple[str, list[Figure]]:
    rows, found = [], []
    for layout in LAYOUTS:
        raw, _ = _steady_state(settings, results, "raw", layout)
        build, start_up = _steady_state(settings, results, "build", layout)
        rows.append([layout, LAYOUTS[layout], number(raw), number(build), number(build / raw), number(start_up)])
        name = f"`build --layout {layout}`, steady state, over the tokenizer alone"
        found.append(Figure(name=name, measured=build / raw, at_least=0.9, unit="x"))
    headers = ["layout", "tokenizer", "tokenizer alone, MB/s", "build, MB/s", "ratio", "start-up of build, s"]
    return figures.table(headers, rows), found


def _against_common(settings: Settings, results: Results) -> tuple[str, list[Figure]]:
    rows, found = [], []
    megabytes = settings.large_bytes / 1e6
    for layout in LAYOUTS:
        runs = {name: results[Trial(name, layout, "large")] for name in ("build", "common")}
        seconds = {name: [run.seconds for run in runs[name]] for name in runs}
        ratio = median(seconds["common"]) / median(seconds["build"])
        examples = [f"{runs[name][-1].result['examples']:,}" for name in ("build", "common")]
        rows.append([layout, spread(seconds["build"]), spread(seconds["common"]), number(ratio), *examples])
        name = f"`build --layout {layout}` against the common script, {megabytes:,.0f} MB, start-up included"
        found.append(Figure(name=name, measured=ratio, at_least=_BARS[layout], unit="x"))
    headers = ["layout", "build, s", "common script, s", "times as fast", "examples", "examples of the common script"]
    return figures.table(headers, rows), found


def _memory(settings: Settings, results: Results) -> tuple[str, list[Figure]]:
    rows, found = [], []
    for layout in LAYOUTS:
        small, large = (results[Trial("build", layout, size)] for size in ("small", "large"))
        trees = [max(run.tree_bytes for run in runs) for runs in (small, large)]
        processes = [max(run.process_bytes for run in runs) for runs in (small, large)]
        rows.append([layout, *(f"{size / 1e9:.2f} GB" for size in (*trees, *processes)), number(trees[1] / trees[0])])
        name = f"`build --layout {layout}`, peak memory"
        sizes = f"{settings.large_bytes / 1e6:,.0f} MB over {settings.small_bytes / 1e6:,.0f} MB"
        found.append(Figure(name=f"{name}, {sizes}", measured=trees[1] / trees[0], at_most=1.15, unit="x"))
        found.append(Figure(name=f"{name}, all processes", measured=max(trees) / 1e9, at_most=1.5, unit=" GB"))
    headers = ["layout", "all processes, small", "large", "largest process, small", "large", "ratio"]
    return figures.table(headers, rows), found
