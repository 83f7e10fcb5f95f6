"""Log the stages of a command, for the terminal."""

import logging

STAGES = "pipelines.stages"


def begin(stage: str) -> None:
    logging.getLogger(STAGES).info("%s", stage)
