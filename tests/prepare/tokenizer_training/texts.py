"""Texts to train on, and their words as `tokenizers` splits them."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tests.building import REVIEWS

__all__ = ["counted", "reviews"]


def reviews() -> list[str]:
    """The texts of the example's training split."""
    lines = (REVIEWS / "train.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def counted(texts: Iterable[str], backend: Any) -> tuple[pa.Array, np.ndarray]:
    """The distinct words of whole texts, in the order of their first use, and their counts."""
    words: collections.Counter[str] = collections.Counter()
    for text in texts:
        normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
        words.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal))
    return arrays(list(words), list(words.values()))


def arrays(words: Sequence[str], counts: Sequence[int]) -> tuple[pa.Array, np.ndarray]:
    """Words and counts as the trainers take them."""
    return pa.array(words, pa.large_string()), np.array(counts, np.int64)
