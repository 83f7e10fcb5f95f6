"""The values of --engine. A new engine is a name here, a module in `tokenize.engines`, and a line in its `choice`."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["ENGINES", "EngineName"]

EngineName = Literal["auto", "hf", "wordpiece", "unigram", "fastokens", "gigatoken"]
ENGINES: tuple[str, ...] = get_args(EngineName)
