"""The table of what was compared, and the same as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from importlib import metadata

from scripts.benchmarks.figures import table
from tests.qualifying.comparing import Trial

__all__ = ["as_json", "as_table"]

_PACKAGES = ("tokenizers", "transformers", "fastokens", "gigatoken")


def as_table(trials: Sequence[Trial]) -> str:
    """One line for each engine and kind, one for the sum of each engine; below, what differs and what was left out."""
    by_engine = {engine: [trial for trial in trials if trial.engine == engine] for engine in _engines(trials)}
    rows = [_row(trial.engine, trial.kind, [trial]) for trial in trials]
    rows += [_row(engine, "all", those) for engine, those in by_engine.items()]
    lines = [table(["engine", "kind", "texts", "rows", "MB", "differ", "s"], rows)]
    for trial in trials:
        lines += [f"{trial.engine}, {trial.kind}: {text!a}" for text in sorted(trial.examples, key=len)[:3]]
    lines += [f"{trial.engine}, {trial.kind}: without {trial.left_out}" for trial in trials if trial.left_out]
    return "\n".join(lines)


def _engines(trials: Sequence[Trial]) -> list[str]:
    return sorted({trial.engine for trial in trials})


def as_json(trials: Sequence[Trial]) -> str:
    """What the table has, and the versions."""
    document = {"versions": _versions(), "trials": [dataclasses.asdict(trial) for trial in trials]}
    return json.dumps(document, indent=2) + "\n"


def _row(engine: str, kind: str, trials: Sequence[Trial]) -> list[str]:
    counts = [sum(getattr(trial, name) for trial in trials) for name in ("strings", "rows")]
    megabytes, seconds = (sum(getattr(trial, name) for trial in trials) for name in ("megabytes", "seconds"))
    differ = sum(trial.differing for trial in trials)
    return [engine, kind, *(f"{count:,}" for count in counts), f"{megabytes:,.1f}", f"{differ:,}", f"{seconds:,.0f}"]


def _versions() -> dict[str, str | None]:
    return {name: _version(name) for name in _PACKAGES}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
