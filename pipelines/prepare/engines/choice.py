"""Which engine serves a tokenizer: the fastest that gives what the tokenizer gives."""

from __future__ import annotations

import importlib
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from pipelines.prepare.config import EngineName
from pipelines.prepare.engines.base import BATTERY, Engine
from pipelines.prepare.engines.hugging_face import HuggingFaceEngine, SlowEngine
from tfrecord_io.errors import ConfigError

__all__ = ["Reference", "choose", "open_reference"]

Reference: TypeAlias = HuggingFaceEngine | SlowEngine

# The function of each module that opens the engine, or says None where the tokenizer is not one for it.
_FAST = {
    "wordpiece": ("pipelines.prepare.engines.wordpiece", "open_wordpiece"),
    "unigram": ("pipelines.prepare.engines.unigram", "open_unigram"),
    "fastokens": ("pipelines.prepare.engines.fastokens_engine", "open_fastokens"),
    "gigatoken": ("pipelines.prepare.engines.gigatoken_engine", "open_gigatoken"),
}


def open_reference(tokenizer: Any, *, dtype: np.dtype) -> Reference:
    """The engine by which the others are measured: the Rust tokenizer, where it gives what the tokenizer gives."""
    slow = SlowEngine(tokenizer, dtype=dtype)
    if not tokenizer.is_fast:
        return slow
    rust = HuggingFaceEngine(tokenizer, dtype=dtype)
    return rust if _agree(rust, slow) else slow


def choose(tokenizer: Any, reference: Engine, *, dtype: np.dtype, wanted: EngineName = "auto") -> Engine:
    """The engine to use: `wanted`, or the first that is qualified, or the reference.

    Raises: ConfigError if an engine that was asked for by name is not qualified for the tokenizer.
    """
    if wanted == "hf":
        return reference
    # What the Python layer changes, no other engine knows of.
    names = () if isinstance(reference, SlowEngine) else tuple(_FAST) if wanted == "auto" else (wanted,)
    for name in names:
        module, function = _FAST[name]
        opener = getattr(importlib.import_module(module), function)
        engine: Engine | None = opener(tokenizer, dtype=dtype, reference=reference)
        if engine is not None and _agree(engine, reference):
            return engine
    if wanted != "auto":
        raise ConfigError(
            f"--engine {wanted} does not serve this tokenizer, a {type(tokenizer).__name__}",
            remedy="leave --engine out: the fastest engine that gives the tokenizer's own tokens is taken",
        )
    return reference


def _agree(one: Engine, other: Engine) -> bool:
    texts = pa.array(BATTERY, pa.string())
    got, expected = one.encode(texts), other.encode(texts)
    return np.array_equal(got.ids, expected.ids) and np.array_equal(got.offsets, expected.offsets)
