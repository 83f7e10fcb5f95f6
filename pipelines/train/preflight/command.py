"""What `train-tpu --preflight` does: a flight, its report, and an error if the step does not fit."""

from __future__ import annotations

import json

from pipelines.terminal.console import say
from pipelines.train.config import TrainConfig
from pipelines.train.preflight import flight, report

__all__ = ["fly"]


def fly(config: TrainConfig, *, name: str, look_for_largest: bool, minutes: float, as_json: bool) -> None:
    """The table on stderr, and JSON on stdout if asked for. Raises: as `flight.fly` and `flight.require_fit`."""
    found = flight.fly(config, name, look_for_largest=look_for_largest, minutes=minutes, say=say)
    report.show(found)
    if as_json:
        print(json.dumps(report.as_json(found)), flush=True)
    flight.require_fit(found)
