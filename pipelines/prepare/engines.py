"""Engines: a batch of texts in, ragged token ids without special tokens out.

An engine must give the very ids of `tokenizer(text, add_special_tokens=False)`. The engines here are the reference
itself:

    hf      the Rust tokenizer behind a fast tokenizer, called without the Python layer on top of it
    slow    a tokenizer that exists in Python only
"""

from __future__ import annotations

import copy
from typing import Any, Protocol

import numpy as np

from pipelines.prepare.runs import TokenRuns, from_lists

__all__ = ["Engine", "HuggingFaceEngine", "SlowEngine", "open_engine"]


class Engine(Protocol):
    """`concurrent` says whether several threads may encode at once, and gain from it."""

    name: str
    concurrent: bool

    def encode(self, texts: list[str]) -> TokenRuns:
        """The tokens of each text."""


class HuggingFaceEngine:
    """The `tokenizers` library on all cores; it does not hold the GIL while it works."""

    name = "hf"
    concurrent = True

    def __init__(self, tokenizer: Any, *, dtype: np.dtype) -> None:
        self.backend = copy_backend(tokenizer)
        self._dtype = dtype

    def encode(self, texts: list[str]) -> TokenRuns:
        """The tokens of each text. Empty texts and texts of any length are fine."""
        encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return from_lists([encoding.ids for encoding in encodings], dtype=self._dtype)


class SlowEngine:
    """A tokenizer in Python, one text after another."""

    name = "slow"
    concurrent = False

    def __init__(self, tokenizer: Any, *, dtype: np.dtype) -> None:
        self._tokenizer = tokenizer
        self._dtype = dtype

    def encode(self, texts: list[str]) -> TokenRuns:
        """The tokens of each text."""
        ids = self._tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        return from_lists(ids, dtype=self._dtype)


def open_engine(tokenizer: Any, *, dtype: np.dtype) -> HuggingFaceEngine | SlowEngine:
    """The engine for a tokenizer."""
    if tokenizer.is_fast:
        return HuggingFaceEngine(tokenizer, dtype=dtype)
    return SlowEngine(tokenizer, dtype=dtype)


def copy_backend(tokenizer: Any) -> Any:
    """A `tokenizers.Tokenizer` of our own, set up as `transformers` sets it up before each call without truncation.

    A copy, since `transformers` changes the settings of its own while another thread may be encoding with it.
    """
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend
