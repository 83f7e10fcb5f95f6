"""What follows from the times and the memory of the prepare side. Two sizes keep start-up and steady state apart:

steady state = (large - small) bytes / (large - small) seconds        start-up = seconds - bytes / steady state
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from scripts.benchmarks import figures
from scripts.benchmarks.figures import Figure, median, number, spread
from scripts.benchmarks.preparing import (
    COMBINATIONS,
    COMMON,
    ONE_CORE,
    PEER,
    SECTIONS,
    Results,
    Settings,
    Trial,
    raw,
    seconds_of,
)

__all__ = ["report", "runs_json"]

# Ours over the tokenizer alone, and over the common script.
_STEADY_BARS = {"bpe": 10, "wordpiece": 6}
_COMMON_BARS = {
    ("bpe", "pad", "small"): 4,
    ("bpe", "pad", "large"): 8,
    ("bpe", "concat", "large"): 13,
    ("wordpiece", "pad", "large"): 6,
    ("wordpiece", "concat", "large"): 10,
}


def report(settings: Settings, results: Results, *, sections: set[str]) -> tuple[list[str], list[Figure]]:
    """The tables of the sections, and their figures with a bar."""
    titles = {
        "raw": "Times",
        "build": "Steady state",
        "common": "Against the common script",
        "peer": "Against datatrove, tokens only",
        "cores": "Two cores against one",
        "memory": "Memory",
    }
    parts = {
        "raw": _times,
        "build": _steady_states,
        "common": _against_common,
        "peer": _against_peer,
        "cores": _cores,
        "memory": _memory,
    }
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
            [
                trial.kind,
                trial.layout,
                _name_of(trial),
                *texts,
                spread(seconds),
                whole,
                number(megabytes / median(seconds)),
            ]
        )
    headers = ["tokenizer", "layout", "what", "text", "examples", "runs", "seconds", "whole process, s", "MB/s"]
    return figures.table(headers, sorted(rows)), []


def _name_of(trial: Trial) -> str:
    return f"{trial.contender}, one core" if trial.cores else trial.contender


def _steady_state(settings: Settings, results: Results, trial: Trial) -> tuple[float, float]:
    """(MB/s without start-up, seconds of start-up); not a number where noise was larger than the difference."""
    small, large = (
        median(seconds_of(each, run) for run in results[each])
        for each in (dataclasses.replace(trial, size=size) for size in ("small", "large"))
    )
    if large <= small:
        return math.nan, math.nan
    rate = (settings.large_bytes - settings.small_bytes) / 1e6 / (large - small)
    return rate, small - settings.small_bytes / 1e6 / rate


def _steady_states(settings: Settings, results: Results) -> tuple[str, list[Figure]]:
    rows, found = [], []
    for kind, layout in COMBINATIONS:
        alone, _ = _steady_state(settings, results, raw(kind, "small"))
        build, start_up = _steady_state(settings, results, Trial("build", kind, layout, "small"))
        rows.append([kind, layout, number(alone), number(build), number(build / alone), number(start_up)])
        name = f"`build --layout {layout}`, {kind}, steady state, over the tokenizer alone"
        found.append(Figure(name=name, measured=build / alone, at_least=_STEADY_BARS[kind], unit="x"))
    headers = ["tokenizer", "layout", "tokenizer alone, MB/s", "build, MB/s", "ratio", "start-up of build, s"]
    return figures.table(headers, rows), found


def _against_common(settings: Settings, results: Results) -> tuple[str, list[Figure]]:
    return _against(settings, results, COMMON, name="the common script", bars=_COMMON_BARS)


def _against_peer(settings: Settings, results: Results) -> tuple[str, list[Figure]]:
    if PEER not in results:
        return "datatrove is not installed.", []
    return _against(settings, results, (PEER,), name="datatrove", bars={("bpe", "concat", "small"): 2.5})


def _against(
    settings: Settings,
    results: Results,
    others: tuple[Trial, ...],
    *,
    name: str,
    bars: Mapping[tuple[str, str, str], float],
) -> tuple[str, list[Figure]]:
    rows, found = [], []
    for other in others:
        runs = [results[dataclasses.replace(other, contender="build")], results[other]]
        ours, theirs = ([run.seconds for run in each] for each in runs)
        ratio = median(theirs) / median(ours)
        size = f"{settings.num_bytes(other.size) / 1e6:,.0f} MB"
        examples = [f"{each[-1].result['examples']:,}" for each in runs]
        rows.append([other.kind, other.layout, size, spread(ours), spread(theirs), number(ratio), *examples])
        title = f"`build --layout {other.layout}`, {other.kind}, against {name}, {size}, start-up included"
        bar = bars[other.kind, other.layout, other.size]
        found.append(Figure(name=title, measured=ratio, at_least=bar, unit="x"))
    headers = ["tokenizer", "layout", "text", "build, s", f"{name}, s", "times as fast", "examples", "examples there"]
    return figures.table(headers, rows), found


def _cores(settings: Settings, results: Results) -> tuple[str, list[Figure]]:
    one = ONE_CORE[0]
    rates = [_steady_state(settings, results, trial)[0] for trial in (dataclasses.replace(one, cores=0), one)]
    rows = [[one.kind, one.layout, *map(number, rates), number(rates[0] / rates[1])]]
    name = f"`build --layout {one.layout}`, {one.kind}, steady state, all cores against one"
    headers = ["tokenizer", "layout", "all cores, MB/s", "one core, MB/s", "ratio"]
    return figures.table(headers, rows), [Figure(name=name, measured=rates[0] / rates[1], at_least=1.8, unit="x")]


def _memory(settings: Settings, results: Results) -> tuple[str, list[Figure]]:
    rows, found = [], []
    for kind, layout in COMBINATIONS:
        small, large = (results[Trial("build", kind, layout, size)] for size in ("small", "large"))
        trees = [max(run.tree_bytes for run in runs) for runs in (small, large)]
        processes = [max(run.process_bytes for run in runs) for runs in (small, large)]
        sizes_in_gb = [f"{size / 1e9:.2f} GB" for size in (*trees, *processes)]
        rows.append([kind, layout, *sizes_in_gb, number(trees[1] / trees[0])])
        name = f"`build --layout {layout}`, {kind}, peak memory"
        sizes = f"{settings.large_bytes / 1e6:,.0f} MB over {settings.small_bytes / 1e6:,.0f} MB"
        found.append(Figure(name=f"{name}, {sizes}", measured=trees[1] / trees[0], at_most=1.15, unit="x"))
        found.append(Figure(name=f"{name}, all processes", measured=max(trees) / 1e9, at_most=1.5, unit=" GB"))
    headers = ["tokenizer", "layout", "all processes, small", "large", "largest process, small", "large", "ratio"]
    return figures.table(headers, rows), found
