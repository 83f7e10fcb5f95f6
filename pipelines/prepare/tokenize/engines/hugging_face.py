"""The reference engines: the Rust tokenizer itself, and a tokenizer in Python."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize import library_failures
from pipelines.prepare.tokenize.ragged import RaggedTokens, exchanged, from_lists

__all__ = ["HuggingFaceEngine", "SlowEngine", "copy_backend"]


class HuggingFaceEngine:
    """Reference engine for fast tokenizers: the `tokenizers` library, on all cores and without the GIL."""

    name = "hf"
    concurrent = True

    def __init__(self, tokenizer: Any, *, dtype: np.dtype) -> None:
        self.version = metadata.version("tokenizers")
        self.backend = copy_backend(tokenizer)
        self._dtype = dtype

    @property
    def split_special_tokens(self) -> bool:
        """Whether special tokens in a text are split as any other text is."""
        return bool(self.backend.encode_special_tokens)

    @functools.cached_property
    def parts(self) -> Mapping[str, Any]:
        """Content of tokenizer.json, without truncation and padding."""
        parts: dict[str, Any] = json.loads(self.backend.to_str())
        return parts

    def forget_parts(self) -> None:
        """Free `parts` until they are asked for again: 17 MB for a vocabulary of 30,000."""
        self.__dict__.pop("parts", None)

    def encode(self, texts: pa.Array) -> RaggedTokens:
        """Return the tokens of each text; texts may be empty or of any length.

        Raises: TextsNotEncoded if the library fails on one of them.
        """
        strings = texts.to_pylist()
        try:
            encodings = self.backend.encode_batch_fast(strings, add_special_tokens=False)
        except BaseException as error:
            if not library_failures.is_of_library(error):
                raise
            raise library_failures.not_encoded(
                error, library=f"tokenizers {self.version}", num_texts=len(strings)
            ) from error
        return from_lists([encoding.ids for encoding in encodings], dtype=self._dtype)

    def put_into(self, ragged: RaggedTokens, texts: pa.Array, indices: np.ndarray) -> RaggedTokens:
        """Return `ragged`, the tokens of all `texts`, with those at `indices` replaced by this engine's."""
        return exchanged(ragged, indices, self.encode(texts.take(pa.array(indices))))


class SlowEngine:
    """Reference engine for tokenizers written in Python."""

    name = "slow"
    concurrent = False

    def __init__(self, tokenizer: Any, *, dtype: np.dtype) -> None:
        self.version = metadata.version("transformers")
        self._tokenizer = tokenizer
        self._dtype = dtype

    def encode(self, texts: pa.Array) -> RaggedTokens:
        """Return the tokens of each text.

        Raises: TextsNotEncoded if the tokenizer fails on one of them.
        """
        if not len(texts):
            return from_lists([], dtype=self._dtype)
        strings = texts.to_pylist()
        try:
            ids = self._tokenizer(strings, add_special_tokens=False, truncation=False, verbose=False)
        except BaseException as error:
            if not library_failures.is_of_library(error):
                raise
            raise library_failures.not_encoded(
                error, library=f"transformers {self.version}", num_texts=len(strings)
            ) from error
        return from_lists(ids["input_ids"], dtype=self._dtype)


def copy_backend(tokenizer: Any) -> Any:
    """Return a copy of the `tokenizers.Tokenizer`, set up as by `transformers` before each call without truncation.

    It is a copy, since `transformers` changes the settings of its own while other threads may be encoding.
    """
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend
