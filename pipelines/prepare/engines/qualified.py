"""What engines of other packages are qualified for: versions, and what a tokenizer.json may hold.

docs/engines.md has the table, and how scripts/qualify_engines.py fills it. Nothing is guessed here: a version, a
pattern or a setting that was not tried is not qualified.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np

from pipelines.prepare.engines.hugging_face import HuggingFaceEngine

__all__ = ["adds_nothing", "encoding_parts", "has_merges_only", "installed", "is_reference_known", "largest_id"]

# The releases of `tokenizers` that other engines were compared with.
_REFERENCE = ((0, 23, 0), (0, 23, 999))


def installed(package: str, *, tried: tuple[tuple[int, ...], tuple[int, ...]], any_version: bool) -> str | None:
    """The version of an installed package; None if it or the reference is not one of those tried, first to last."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
    return version if any_version or (_within(version, tried) and is_reference_known()) else None


def is_reference_known() -> bool:
    """Whether the release of `tokenizers` is one of those that other engines were compared with."""
    return _within(metadata.version("tokenizers"), _REFERENCE)


def encoding_parts(reference: HuggingFaceEngine) -> dict[str, Any]:
    """The tokenizer.json, but for what does not decide the ids of a text."""
    return {**reference.parts, "post_processor": None, "decoder": None, "truncation": None, "padding": None}


def has_merges_only(parts: Mapping[str, Any], *, byte_fallback: bool, dtype: np.dtype) -> bool:
    """Whether the model is a BPE that is nothing but its merges, and `dtype` holds its ids."""
    model = parts["model"]
    return (
        model["type"] == "BPE"
        and not model["dropout"]
        and not model["continuing_subword_prefix"]
        and not model["end_of_word_suffix"]
        and model["byte_fallback"] is byte_fallback
        and largest_id(parts) <= np.iinfo(dtype).max
        and all(token["content"] for token in parts["added_tokens"])
    )


def adds_nothing(post_processor: Mapping[str, Any] | None) -> bool:
    """Whether the ids of one text stay as they are, but for special tokens."""
    if post_processor is None or post_processor["type"] in ("BertProcessing", "RobertaProcessing"):
        return True
    return post_processor["type"] == "TemplateProcessing" and [
        piece["Sequence"]["id"] for piece in post_processor["single"] if "Sequence" in piece
    ] == ["A"]


def largest_id(parts: Mapping[str, Any]) -> int:
    """The largest id of vocabulary and added tokens."""
    return max([*parts["model"]["vocab"].values(), *(token["id"] for token in parts["added_tokens"])], default=0)


def _within(version: str, tried: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
    try:
        numbers = tuple(map(int, version.split(".")))
    except ValueError:  # a release candidate, or a local build
        return False
    return tried[0] <= numbers <= tried[1]
