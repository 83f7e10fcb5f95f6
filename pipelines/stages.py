"""Log lines for a command's stages, shown on a terminal."""

import logging

STAGES = "pipelines.stages"


def begin(stage: str) -> None:
    logging.getLogger(STAGES).info("%s", stage)
