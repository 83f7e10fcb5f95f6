"""What is to be known for hiding tokens, whatever does it: the numbers, and the vocabulary's special ids."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest, TokenizerFacts

__all__ = ["Masking", "Vocabulary"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masking:
    """The numbers of masked LM. Raises: ReaderError if one is no probability, or the shares add up to more than 1."""

    probability: float
    mask_share: float
    random_share: float

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise ReaderError(f"probability is {self.probability!r}, expected more than 0 and at most 1")
        for name, share in (("mask_share", self.mask_share), ("random_share", self.random_share)):
            if not 0 <= share <= 1:
                raise ReaderError(f"{name} is {share!r}, expected 0 to 1")
        if self.mask_share + self.random_share > 1 + 1e-9:  # 0.7 + 0.3 may be a little more
            raise ReaderError(f"mask_share {self.mask_share} + random_share {self.random_share}, expected at most 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What masking has to know of the ids: which are special (bool [V]), all others, and the mask token."""

    special_V: np.ndarray
    ordinary_ids: np.ndarray
    mask_id: int

    @classmethod
    def of(cls, manifest: Manifest) -> Vocabulary:
        mask_id = manifest.tokenizer.mask_id
        if mask_id is None:
            raise ReaderError(
                f"dataset {manifest.name!r}: tokenizer {manifest.tokenizer.name!r} has no mask token, "
                "masked_lm expects one",
                remedy="build the dataset with a tokenizer that has one, or choose causal_lm",
            )
        special_V = _special(manifest.tokenizer)
        return cls(special_V=special_V, ordinary_ids=np.flatnonzero(~special_V).astype(np.int32), mask_id=mask_id)


def _special(tokenizer: TokenizerFacts) -> np.ndarray:
    """bool [V]: which ids are special."""
    size = max(tokenizer.vocab_size, *(special + 1 for special in tokenizer.special_ids), 1)
    special_V = np.zeros(size, np.bool_)
    special_V[list(tokenizer.special_ids)] = True
    return special_V
