"""Tokenizers from files: opened as a build opens them, and the engine that serves each, or why none does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.prepare.options.config import TokenizerConfig
from pipelines.prepare.tokenize import library_failures, tokenization
from pipelines.prepare.tokenize.deterministic_tokenizers import require_deterministic
from pipelines.prepare.tokenize.engines import Choice, is_reference, open_reference
from pipelines.prepare.tokenize.engines.choice import decide
from tests.qualifying.comparing import INT32
from tfrecord_io.errors import TokenizerError
from tfrecord_io.shown import first_line

__all__ = ["choose", "is_erring", "open_tokenizer", "served_by"]

# How the reasons of `decide` begin against an engine that took itself for qualified.
_ERRING = ("it fails on this tokenizer", "it gives other tokens")


def open_tokenizer(path: Path) -> Any:
    """A folder, as a build opens it; or a tokenizer.json by itself, whatever the file's name.

    Raises: TokenizerError if it cannot be opened, or a build would refuse it.
    """
    if path.is_dir():
        return tokenization.resolve(TokenizerConfig(name=str(path)))[0]
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
    except BaseException as error:
        if not library_failures.is_of_library(error):
            raise
        raise TokenizerError(
            f"{path}: no tokenizer.json that can be opened: {first_line(error)}", remedy="name a tokenizer's folder"
        ) from error
    require_deterministic(tokenizer, str(path))
    return tokenizer


def choose(tokenizer: Any) -> Choice:
    """The engine that a build would use. Raises: TokenizerError if the tokenizer fails on ordinary texts."""
    return decide(tokenizer, open_reference(tokenizer, dtype=INT32), dtype=INT32)


def served_by(choice: Choice) -> str:
    """The engine's name; for the reference also why it is not a faster one, a reason for each."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in choice.reasons.items())
    return f"{choice.engine.name} ({reasons})" if is_reference(choice.engine.name) else choice.engine.name


def is_erring(choice: Choice) -> bool:
    """Whether an engine took itself for qualified, and then failed or gave other tokens for an ordinary text."""
    return any(reason.startswith(_ERRING) for reason in choice.reasons.values())
