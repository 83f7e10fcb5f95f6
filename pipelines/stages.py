"""Log the stages of a command, so that the terminal can show them."""

import logging

STAGES = "pipelines.stages"


def begin(stage: str) -> None:
    logging.getLogger(STAGES).info("%s", stage)
