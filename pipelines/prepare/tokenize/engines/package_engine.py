"""Engines of other packages: opened with the reference's own tokenizer.json; what they fail on is the reference's."""

from __future__ import annotations

import abc
import importlib
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize import library_failures
from pipelines.prepare.tokenize.engines.base import HuggingFaceEngine
from pipelines.prepare.tokenize.engines.qualified import NotQualified
from pipelines.prepare.tokenize.ragged import RaggedTokens, from_lists
from tfrecord_io.shown import first_line

__all__ = ["PackageEngine", "encoding_parts"]

_log = logging.getLogger(__name__)


def encoding_parts(reference: HuggingFaceEngine) -> dict[str, Any]:
    """Return the content of tokenizer.json without the parts that do not affect the ids of a text."""
    return {**reference.parts, "post_processor": None, "decoder": None, "truncation": None, "padding": None}


class PackageEngine(abc.ABC):
    """Base class of engines of other packages. Threads may share one. `name` is the package's, too."""

    name: str
    concurrent = True

    def __init__(
        self, reference: HuggingFaceEngine, parts: Mapping[str, Any], *, version: str, dtype: np.dtype
    ) -> None:
        """Open the package. `reference` encodes the texts on which it fails; `parts` is the content of tokenizer.json.

        Raises: NotQualified if the package cannot be imported or opened with the tokenizer.
        """
        self.version = version
        self._reference, self._dtype = reference, dtype
        try:
            self._backend = self._open(importlib.import_module(self.name), parts)
        except BaseException as error:
            if not library_failures.is_of_library(error):
                raise
            _log.debug("%s cannot open the tokenizer", self.name, exc_info=True)
            raise NotQualified(f"{self.name} cannot open it: {first_line(error)}") from error

    def encode(self, texts: pa.Array) -> RaggedTokens:
        """Return the tokens of each text."""
        if not len(texts):
            return from_lists([], dtype=self._dtype)
        try:
            return self._encode(texts)
        except BaseException as error:  # a limit of its regular expressions, or a panic
            if not library_failures.is_of_library(error):
                raise
            _log.debug("%s fails on one of %d texts, left to the reference", self.name, len(texts), exc_info=True)
            return self._reference.encode(texts)

    @abc.abstractmethod
    def _open(self, package: Any, parts: Mapping[str, Any]) -> Any:
        """Return the package's tokenizer."""

    @abc.abstractmethod
    def _encode(self, texts: pa.Array) -> RaggedTokens:
        """Return the package's tokens of at least one text."""
