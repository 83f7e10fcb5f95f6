"""What `train-tpu --preflight` does: the preflight, its report, and an error if the step does not fit."""

from __future__ import annotations

import json

from pipelines.terminal.console import say
from pipelines.train.config import TrainConfig
from pipelines.train.preflight import preflight, report

__all__ = ["run_preflight"]


def run_preflight(config: TrainConfig, *, name: str, look_for_largest: bool, minutes: float, as_json: bool) -> None:
    """Compiles the step, prints a table on stderr, and JSON on stdout if asked for.

    Raises: as `preflight.run_preflight` and `preflight.require_fit`.
    """
    found = preflight.run_preflight(config, name, look_for_largest=look_for_largest, minutes=minutes, say=say)
    report.show(found)
    if as_json:
        print(json.dumps(report.as_json(found)), flush=True)
    preflight.require_fit(found)
