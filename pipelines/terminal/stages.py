"""What a command is doing before there are rows to count: a line for each stage, for whoever looks on."""

from __future__ import annotations

import logging

__all__ = ["STAGES", "begin"]

# The name of the logger that hears of it; the console shows what it says on a terminal.
STAGES = "pipelines.terminal.stages"


def begin(stage: str) -> None:
    """Says what is begun."""
    logging.getLogger(STAGES).info("%s", stage)
