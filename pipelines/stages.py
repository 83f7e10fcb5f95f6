"""Log lines for the stages of a command before it has rows to count, shown on a terminal."""

import logging

# Name of the logger; the console shows its records on a terminal.
STAGES = "pipelines.stages"


def begin(stage: str) -> None:
    logging.getLogger(STAGES).info("%s", stage)
