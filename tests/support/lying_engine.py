"""An engine that gives wrong tokens for some texts once it is switched on."""

import copy

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize.engines import HuggingFaceEngine
from pipelines.prepare.tokenize.ragged import RaggedTokens

# Texts with wrong tokens.
LIES: set[str] = set()


class LyingEngine(HuggingFaceEngine):
    """The Rust tokenizer under another name, with one id changed in each text of `LIES`."""

    name = "wordpiece"

    def encode(self, texts: pa.Array) -> RaggedTokens:
        ragged = super().encode(texts)
        for index, text in enumerate(texts.to_pylist()):
            if text in LIES:
                ragged.ids[ragged.offsets[index]] += 1
        return ragged


def open_lying(reference: HuggingFaceEngine, *, dtype: np.dtype, parts: object = None) -> LyingEngine:
    """Qualified for everything, by its own account."""
    engine = copy.copy(reference)
    engine.__class__ = LyingEngine
    assert isinstance(engine, LyingEngine)
    return engine
