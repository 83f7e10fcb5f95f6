"""The interface of engines, which turn a batch of texts into ragged token ids without special tokens."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize.ragged import RaggedTokens

__all__ = ["BATTERY", "Engine", "is_reference", "utf8_of"]

# Texts that tokenizers have got wrong before: empty and blank ones, literal special tokens, scripts, marks, controls,
# long words.
BATTERY = (
    "",
    " ",
    "\t\r\n ",
    "Hello, world!  It's 3.14 o'clock, isn't it?",
    " leading and trailing ",
    "[CLS] a [SEP] b [MASK] <s> c </s> <pad> <unk> <|endoftext|>d",
    "naïve café, Ångström, ΣΊΣΥΦΟΣ, İstanbul, straße, ﬁne",
    "e\u0301 \u1100\u1161\u11a8 각 z\u0351\u036b\u0343",
    "中文字符和日本語のテキスト、한국어",
    "שלום עולם مرحبا بالعالم हिन्दी ไทย",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 ☃️",
    "a\x00b\x07c\u200bd\ufeffe\ufffdf\u00a0g\u3000h",
    "##ing Ġthe ▁of <0x41>",
    "x" * 300,
    "!?…—--###" * 20,
    "The quick brown fox jumps over the lazy dog. " * 30,
    "https://example.org/a_b?c=d&e=%20 foo@bar.baz $12,345.67",
)


# The last one is `transformers` itself, row by row (see `text_rows`).
_REFERENCES = ("hf", "slow", "reference")


class Engine(Protocol):
    """Turn texts into token ids.

    `name`, `version`: as in the manifest. `concurrent`: whether threads may encode at once, and gain from it.
    """

    name: str
    version: str
    concurrent: bool

    def encode(self, texts: pa.Array) -> RaggedTokens:
        """Return the tokens of each text, those of `tokenizer(text, add_special_tokens=False)`.

        Args:
            texts: strings or large strings, possibly sliced, without nulls, in valid UTF-8 (so without surrogates).
        """


def is_reference(engine: str) -> bool:
    """Return whether a name, with or without a version, is that of a reference engine."""
    return engine.partition(" ")[0] in _REFERENCES


def utf8_of(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return (data, edges) of N texts without copying: text i is data[edges[i]:edges[i + 1]].

    `data` is read-only uint8, `edges` int64 [N + 1]; the first edge need not be 0.
    """
    width = np.dtype(np.int64 if pa.types.is_large_string(texts.type) else np.int32)
    _, offsets, data = texts.buffers()
    if offsets is None or not len(texts):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    edges = np.frombuffer(offsets, width, len(texts) + 1, offset=texts.offset * width.itemsize).astype(np.int64)
    return (np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)), edges
