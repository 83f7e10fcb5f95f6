"""Checks that an engine is qualified for a release and for a tokenizer.json.

docs/explanation/engines.md argues for each part of each engine that it is right. A release, a pattern or a setting that
no argument covers is not qualified, and a sentence gives the reason.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np

from pipelines.prepare.tokenize.engines.base import HuggingFaceEngine

__all__ = [
    "FastEngine",
    "NotQualified",
    "largest_id",
    "require_ids_kept",
    "require_merges_only",
    "require_reference",
    "require_release",
]

# The releases of `tokenizers` that other engines were compared with.
_REFERENCE = "0.23"
# fastokens merges each entry in a time that grows with its length squared. Vocabularies in use are far below this.
_MAX_SQUARED_LENGTHS = 1 << 28


class NotQualified(Exception):
    """Raised if an engine cannot serve a tokenizer; `reason` is a sentence without a full stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FastEngine(abc.ABC):
    """Base class of engines that serve some tokenizers only. Threads may share one."""

    name: str
    version = "1"
    concurrent = True

    def __init__(self, reference: HuggingFaceEngine, *, dtype: np.dtype) -> None:
        """Open an engine for the reference's tokenizer; docs/explanation/engines.md argues why its ids are the same.

        `reference` encodes the texts that are left to it.
        Raises: NotQualified unless the tokenizer is one for which the engine is qualified.
        """
        self._reference, self._dtype = reference, dtype

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (type(self), self._reference, self._dtype)


def _reopened(kind: type[FastEngine], reference: HuggingFaceEngine, dtype: np.dtype) -> FastEngine:
    """Open an engine that another process has compared and chosen: no comparison here, and no `transformers`."""
    try:
        return kind(reference, dtype=dtype)
    finally:
        reference.forget_parts()


def require_release(package: str, *, tried: str) -> str:
    """Return the version of an installed package.

    Raises: NotQualified if it is not installed, or if it or the reference is not a release that was tried.
    """
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise NotQualified(f"{package} is not installed; pip install {package}") from None
    if not _is_of(version, tried):
        raise NotQualified(
            f"{package} {version} is installed, but {tried} is qualified; pip install '{package}=={tried}'"
        )
    require_reference()
    return version


def require_reference() -> None:
    """Raise NotQualified if the engines were not compared with this release of `tokenizers`."""
    version = metadata.version("tokenizers")
    if not _is_of(version, _REFERENCE):
        raise NotQualified(
            f"tokenizers {version} is installed, but the engines are qualified beside {_REFERENCE}; "
            f"pip install 'tokenizers=={_REFERENCE}.*'"
        )


def _is_of(version: str, release: str) -> bool:
    """Return whether a version is that release, or one of its patches; no release candidate, and no local build."""
    return re.fullmatch(rf"{re.escape(release)}(\.\d+)*", version) is not None


def require_merges_only(parts: Mapping[str, Any], *, byte_fallback: bool, dtype: np.dtype) -> None:
    """Raise NotQualified unless the model is a BPE that consists only of merges, and `dtype` can hold its ids."""
    model = parts["model"]
    if model["type"] != "BPE":
        raise NotQualified(f"its model is {model['type']}, not BPE")
    if bool(model["byte_fallback"]) is not byte_fallback:
        raise NotQualified("its BPE has byte fallback" if model["byte_fallback"] else "its BPE has no byte fallback")
    for setting in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model[setting]:
            raise NotQualified(f"its BPE has a {setting}")
    largest = largest_id(parts)
    if largest > np.iinfo(dtype).max:
        raise NotQualified(f"its largest id is {largest}")
    if sum(len(entry) ** 2 for entry in model["vocab"]) > _MAX_SQUARED_LENGTHS:
        raise NotQualified("the entries of its vocabulary are very long")


def require_ids_kept(post_processor: Mapping[str, Any] | None) -> None:
    """Raise NotQualified unless the post-processor only adds special tokens to the ids of a text."""
    if not _keeps_ids(post_processor):
        raise NotQualified("its post-processor does more than to add special tokens")


def _keeps_ids(post_processor: Mapping[str, Any] | None) -> bool:
    if post_processor is None or post_processor["type"] in ("BertProcessing", "RobertaProcessing", "ByteLevel"):
        return True
    if post_processor["type"] == "Sequence":
        return all(map(_keeps_ids, post_processor["processors"]))
    return post_processor["type"] == "TemplateProcessing" and [
        piece["Sequence"]["id"] for piece in post_processor["single"] if "Sequence" in piece
    ] == ["A"]


def largest_id(parts: Mapping[str, Any]) -> int:
    """Return the largest id of the vocabulary and the added tokens."""
    return max([*parts["model"]["vocab"].values(), *(token["id"] for token in parts["added_tokens"])], default=0)
