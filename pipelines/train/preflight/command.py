"""What `train-tpu --preflight` does: the preflight, its report, and an error if the step does not fit."""

from __future__ import annotations

import json
from typing import Any

from pipelines.terminal.console import say
from pipelines.train.config import TrainConfig
from pipelines.train.preflight import preflight, report

__all__ = ["run_preflight"]


def run_preflight(config: TrainConfig, *, as_json: bool, **asked: Any) -> None:
    """Compile the step, print a table on stderr, and JSON on stdout if asked for. Takes what `preflight.run_preflight`
    takes.

    Raises: as `preflight.run_preflight` and `preflight.require_fit`.
    """
    found = preflight.run_preflight(config, **asked, say=say)
    report.show(found)
    if as_json:
        print(json.dumps(report.as_json(found)), flush=True)
    preflight.require_fit(found)
