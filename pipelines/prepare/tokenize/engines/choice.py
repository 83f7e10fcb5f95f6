"""Choose the fastest engine that gives the tokenizer's own ids."""

import contextlib
import hashlib
import importlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.options.config import EngineName
from pipelines.prepare.tokenize import library_failures
from pipelines.prepare.tokenize.engines import base
from tfrecord_io.errors import ConfigError, TokenizerError
from tfrecord_io.shown import first_line

FAST_ENGINES = {
    "wordpiece": ("pipelines.prepare.tokenize.engines.wordpiece.encoder", "WordPieceEngine"),
    "unigram": ("pipelines.prepare.tokenize.engines.unigram.encoder", "UnigramEngine"),
    "fastokens": ("pipelines.prepare.tokenize.engines.package_engines", "FastokensEngine"),
    "gigatoken": ("pipelines.prepare.tokenize.engines.package_engines", "GigatokenEngine"),
}

_log = logging.getLogger(__name__)


def open_reference(tokenizer: base.HFTokenizer, *, dtype: np.dtype) -> base.HuggingFaceEngine | base.SlowEngine:
    """Open the reference engine: the Rust tokenizer if it gives the tokenizer's own ids, else the tokenizer itself.

    Raises: TokenizerError if the tokenizer fails on a test text.
    """
    slow = base.SlowEngine(tokenizer, dtype=dtype)
    if not tokenizer.is_fast:
        return slow
    rust = base.HuggingFaceEngine(tokenizer, dtype=dtype)
    with _trying():
        return rust if _agree(rust, slow) else slow


def ids_digest(tokenizer: base.HFTokenizer, *, dtype: np.dtype) -> str:
    """Return a digest of the tokenizer's ids for a list of test texts. Raises: TokenizerError."""
    with _trying():
        tokens = base.SlowEngine(tokenizer, dtype=dtype).encode(pa.array(base.BATTERY, pa.string()))
    return hashlib.sha256(tokens.ids.astype("<i8").tobytes() + tokens.offsets.astype("<i8").tobytes()).hexdigest()


@contextlib.contextmanager
def _trying() -> Iterator[None]:
    try:
        yield
    except library_failures.TextsNotEncoded as error:
        raise TokenizerError(
            f"{error.cause}; this happened with test texts in many scripts, which every tokenizer must encode",
            remedy="set unk_token in its tokenizer.json, because without an unknown token, a tokenizer may fail on "
            "characters that are not in its vocabulary; or choose another tokenizer",
        ) from error


def decide(
    tokenizer: base.HFTokenizer, reference: base.Engine, *, dtype: np.dtype, wanted: EngineName = "auto"
) -> tuple[base.Engine, dict[str, str]]:
    """Choose an engine: the `wanted` one, or for "auto" the first that supports the tokenizer, else `reference`.

    Returns: the engine, and the reasons against engines that do not support the tokenizer, by name. Raises:
    ConfigError.
    """
    reasons: dict[str, str] = {}
    if wanted == "hf":
        return reference, reasons
    parts = reference.parts() if isinstance(reference, base.HuggingFaceEngine) else {}
    for name in FAST_ENGINES if wanted == "auto" else (wanted,):
        engine_or_reason = _opened(name, tokenizer, reference, dtype=dtype, parts=parts)
        if not isinstance(engine_or_reason, str):
            return engine_or_reason, reasons
        reasons[name] = engine_or_reason
        _log.debug("engine %s is not used: %s", name, engine_or_reason)
    if wanted != "auto":
        raise ConfigError(
            f"--engine {wanted} does not support this tokenizer: {reasons[wanted]}",
            remedy="leave --engine out, to use the fastest engine that gives the tokenizer's own tokens",
        )
    return reference, reasons


def why_slow(tokenizer: base.HFTokenizer, *, dtype: np.dtype) -> str:
    """Return the reasons, for users, why a job with --engine auto uses the reference engine."""
    engine, reasons = decide(tokenizer, open_reference(tokenizer, dtype=dtype), dtype=dtype)
    if engine.name in FAST_ENGINES:
        return (
            f"{engine.name} gives the tokens, but not their places in the text, or other values that this layout needs"
        )
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def _opened(
    name: str, tokenizer: base.HFTokenizer, reference: base.Engine, *, dtype: np.dtype, parts: dict[str, Any]
) -> base.Engine | str:
    if not isinstance(reference, base.HuggingFaceEngine):
        return "the tokenizer also uses Python code to make its tokens"
    module, kind = FAST_ENGINES[name]
    try:
        engine: base.Engine = getattr(importlib.import_module(module), kind)(reference, dtype=dtype, parts=parts)
        agrees = _agree(engine, reference)
    except base.NotQualified as error:
        return str(error)
    except BaseException as error:
        if not library_failures.is_of_library(error):
            raise
        _log.debug("engine %s fails on the tokenizer", name, exc_info=True)
        return f"it fails on this tokenizer: {first_line(error)}"
    return engine if agrees else "it gives other tokens than the tokenizer for a test text"


def _agree(engine: base.Engine, reference: base.Engine) -> bool:
    texts = pa.array(base.BATTERY, pa.string())
    ours, expected = engine.encode(texts), reference.encode(texts)
    return np.array_equal(ours.ids, expected.ids) and np.array_equal(ours.offsets, expected.offsets)
