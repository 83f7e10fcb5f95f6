"""Evaluation of a trained tokenizer on texts: tokens for each word, the share that is unknown, and its engine."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize import engines
from pipelines.prepare.tokenize.ragged import id_dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """`words` are what stands between white space; shares are of tokens. `engine` is the one that `build` takes for the
    tokenizer, `reasons` what speaks against faster ones.
    """

    texts: int
    words: int
    tokens: int
    unknown: int
    held_out: bool
    engine: str
    reasons: dict[str, str]

    @property
    def tokens_per_word(self) -> float:
        """Mean number of tokens of a word."""
        return self.tokens / max(1, self.words)

    @property
    def unknown_share(self) -> float:
        """Share of the tokens that stand for something unknown."""
        return self.unknown / max(1, self.tokens)


def evaluate(tokenizer: Any, texts: pa.Array, *, held_out: bool) -> Evaluation:
    """Encode texts, large_string, with the engine that `build` takes for a tokenizer of transformers.

    `held_out`: whether the texts were kept out of the training.
    """
    dtype = id_dtype(len(tokenizer))
    choice = engines.decide(tokenizer, engines.open_reference(tokenizer, dtype=dtype), dtype=dtype)
    tokens = choice.engine.encode(texts)
    return Evaluation(
        texts=len(texts),
        words=sum(len(text.split()) for text in texts.to_pylist()),
        tokens=len(tokens.ids),
        unknown=int(np.count_nonzero(tokens.ids == tokenizer.unk_token_id))
        if tokenizer.unk_token_id is not None
        else 0,
        held_out=held_out,
        engine=choice.engine.name,
        reasons=dict(choice.reasons),
    )
