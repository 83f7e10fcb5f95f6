"""Fill-in-the-middle as a slow and plain program, and a tokenizer with sentinels."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.prepare.tokenize.row_draws import row_draws
from tests import building
from tests.support import tokenizers_zoo

SENTINELS = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")


@functools.cache
def tokenizer() -> Path:
    """Return the folder of a byte-level BPE with sentinels."""
    from transformers import AutoTokenizer

    folder = building.new_folder() / "infilling"
    tokenizers_zoo.KINDS["byte_bpe"](folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [*SENTINELS, "<|pad|>"], "pad_token": "<|pad|>"})
    tokenizer.save_pretrained(folder)
    return folder


def permuted(text: str, draws: Sequence[float], tokenizer: Any, *, rate: float, spm_rate: float = 0.5) -> list[int]:
    """Return the ids of Megatron-LM's `GPTFIMDataset._permute`, with `draws` in place of its random numbers."""
    decision, order, *places = draws
    if decision >= rate or not text:
        return tokenizer.encode(text, add_special_tokens=False)
    low, high = sorted(int(place * (len(text) + 1)) for place in places)
    prefix, middle, suffix = (
        tokenizer.encode(part, add_special_tokens=False) for part in (text[:low], text[low:high], text[high:])
    )
    p, s, m = tokenizer.convert_tokens_to_ids(list(SENTINELS))
    return [p, s, *suffix, m, *prefix, *middle] if order < spm_rate else [p, *prefix, s, *suffix, m, *middle]


def draws_of(numbers: Sequence[int], *, split: str = "train", seed: int = 0) -> np.ndarray:
    """Return the four numbers of each row."""
    return row_draws(seed, split=split, numbers=np.array(numbers, np.int64), count=4)
