"""Choose the fastest engine that gives the tokenizer's own ids."""

import contextlib
import hashlib
import importlib
import logging
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from pipelines.prepare.options.config import EngineName
from pipelines.prepare.tokenize import library_failures
from pipelines.prepare.tokenize.engines.base import (
    BATTERY,
    Engine,
    HFTokenizer,
    HuggingFaceEngine,
    NotQualified,
    SlowEngine,
)
from tfrecord_io.errors import ConfigError, TokenizerError
from tfrecord_io.shown import first_line

Reference: TypeAlias = HuggingFaceEngine | SlowEngine

FAST_ENGINES = {
    "wordpiece": ("pipelines.prepare.tokenize.engines.wordpiece.encoder", "WordPieceEngine"),
    "unigram": ("pipelines.prepare.tokenize.engines.unigram.encoder", "UnigramEngine"),
    "fastokens": ("pipelines.prepare.tokenize.engines.package_engines", "FastokensEngine"),
    "gigatoken": ("pipelines.prepare.tokenize.engines.package_engines", "GigatokenEngine"),
}

_log = logging.getLogger(__name__)


def open_reference(tokenizer: HFTokenizer, *, dtype: np.dtype) -> Reference:
    """Open the reference engine: the Rust tokenizer if it gives the tokenizer's own ids, else the tokenizer itself.

    Raises: TokenizerError if the tokenizer fails on `BATTERY`.
    """
    slow = SlowEngine(tokenizer, dtype=dtype)
    if not tokenizer.is_fast:
        return slow
    rust = HuggingFaceEngine(tokenizer, dtype=dtype)
    with _trying():
        return rust if _agree(rust, slow) else slow


def ids_digest(tokenizer: HFTokenizer, *, dtype: np.dtype) -> str:
    """Return a digest of the tokenizer's own ids for `BATTERY`. Raises: as `open_reference`."""
    with _trying():
        tokens = SlowEngine(tokenizer, dtype=dtype).encode(pa.array(BATTERY, pa.string()))
    return hashlib.sha256(tokens.ids.astype("<i8").tobytes() + tokens.offsets.astype("<i8").tobytes()).hexdigest()


@contextlib.contextmanager
def _trying() -> Iterator[None]:
    try:
        yield
    except library_failures.TextsNotEncoded as error:
        raise TokenizerError(
            f"{error.cause}; these are ordinary texts of many scripts that every tokenizer is tried on",
            remedy="repair the tokenizer: one without an unknown token, for example, knows no character but its own",
        ) from error


def decide(
    tokenizer: HFTokenizer, reference: Engine, *, dtype: np.dtype, wanted: EngineName = "auto"
) -> tuple[Engine, dict[str, str]]:
    """Choose an engine: the `wanted` one; for "auto", the first qualified one, else the reference.

    Returns: the engine; by name, the reasons against the engines tried before it.
    Raises: ConfigError if the wanted engine is not qualified.
    """
    reasons: dict[str, str] = {}
    if wanted == "hf":
        return reference, reasons
    parts = reference.parts() if isinstance(reference, HuggingFaceEngine) else {}
    for name in FAST_ENGINES if wanted == "auto" else (wanted,):
        found = _opened(name, tokenizer, reference, dtype=dtype, parts=parts)
        if not isinstance(found, str):
            return found, reasons
        reasons[name] = found
        _log.debug("engine %s is not used: %s", name, found)
    if wanted != "auto":
        raise ConfigError(
            f"--engine {wanted} does not serve this tokenizer: {reasons[wanted]}",
            remedy="leave --engine out: then the fastest engine that gives the tokenizer's own tokens is used",
        )
    return reference, reasons


def why_slow(tokenizer: HFTokenizer, *, dtype: np.dtype) -> str:
    """Return why a job uses transformers' own tokenizer unasked."""
    engine, reasons = decide(tokenizer, open_reference(tokenizer, dtype=dtype), dtype=dtype)
    if engine.name in FAST_ENGINES:
        return f"{engine.name} has its tokens, but not all that these rows need, such as offsets"
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def _opened(
    name: str, tokenizer: HFTokenizer, reference: Engine, *, dtype: np.dtype, parts: dict[str, Any]
) -> Engine | str:
    if not isinstance(reference, HuggingFaceEngine):
        return "the tokenizer's Python code decides its tokens, too"
    module, kind = FAST_ENGINES[name]
    try:
        engine: Engine = getattr(importlib.import_module(module), kind)(reference, dtype=dtype, parts=parts)
        agrees = _agree(engine, reference)
    except NotQualified as refused:
        return refused.reason
    except BaseException as error:
        if not library_failures.is_of_library(error):
            raise
        _log.debug("engine %s fails on the tokenizer", name, exc_info=True)
        return f"it fails on this tokenizer: {first_line(error)}"
    return engine if agrees else "it gives other tokens than the tokenizer for a text that engines are tried on"


def _agree(one: Engine, other: Engine) -> bool:
    texts = pa.array(BATTERY, pa.string())
    got, expected = one.encode(texts), other.encode(texts)
    return np.array_equal(got.ids, expected.ids) and np.array_equal(got.offsets, expected.offsets)
