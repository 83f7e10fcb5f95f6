"""Engines: a batch of texts in, ragged token ids without special tokens out.

An engine must give the very ids of `tokenizer(text, add_special_tokens=False)`:

    hf      the Rust tokenizer behind a fast tokenizer, called without the Python layer on top of it
    slow    a tokenizer that exists in Python only, or whose Python layer changes what the Rust one gives

`open_engine` compares the first with the tokenizer on a battery of texts before it is taken.
"""

from __future__ import annotations

import copy
import re
from typing import Any, Protocol

import numpy as np

from pipelines.prepare.runs import TokenRuns, from_lists
from tfrecord_io.errors import ColumnError

__all__ = ["BATTERY", "Engine", "HuggingFaceEngine", "SlowEngine", "open_engine", "require_unicode"]

# What has tripped tokenizers before: empty and blank texts, literal special tokens, scripts, marks, controls, long
# words.
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

_SURROGATE = re.compile("[\ud800-\udfff]")


class Engine(Protocol):
    """`concurrent` says whether several threads may encode at once, and gain from it."""

    name: str
    concurrent: bool

    def encode(self, texts: list[str]) -> TokenRuns:
        """The tokens of each text."""


class HuggingFaceEngine:
    """The `tokenizers` library on all cores; it does not hold the GIL while it works."""

    name = "hf"
    concurrent = True

    def __init__(self, tokenizer: Any, *, dtype: np.dtype) -> None:
        self.backend = copy_backend(tokenizer)
        self._dtype = dtype

    def encode(self, texts: list[str]) -> TokenRuns:
        """The tokens of each text. Empty texts and texts of any length are fine."""
        try:
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:  # all that the Rust library says of a string that is not valid Unicode
            require_unicode(texts)
            raise
        return from_lists([encoding.ids for encoding in encodings], dtype=self._dtype)


class SlowEngine:
    """The tokenizer itself, through Python."""

    name = "slow"
    concurrent = False

    def __init__(self, tokenizer: Any, *, dtype: np.dtype) -> None:
        self._tokenizer = tokenizer
        self._dtype = dtype

    def encode(self, texts: list[str]) -> TokenRuns:
        """The tokens of each text."""
        require_unicode(texts)
        if not texts:
            return from_lists([], dtype=self._dtype)
        ids = self._tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        return from_lists(ids, dtype=self._dtype)


def open_engine(tokenizer: Any, *, dtype: np.dtype) -> HuggingFaceEngine | SlowEngine:
    """The fastest engine that gives what the tokenizer gives."""
    slow = SlowEngine(tokenizer, dtype=dtype)
    if not tokenizer.is_fast:
        return slow
    fast = HuggingFaceEngine(tokenizer, dtype=dtype)
    texts = list(BATTERY)
    got, expected = fast.encode(texts), slow.encode(texts)
    same = np.array_equal(got.ids, expected.ids) and np.array_equal(got.offsets, expected.offsets)
    return fast if same else slow


def require_unicode(texts: list[str]) -> None:
    """Raises: ColumnError if a text holds half of a surrogate pair, which UTF-8, and so Arrow, cannot hold.

    Tokenizers differ in what they make of such a string: some fail, some give an id to the half.
    """
    for index, text in enumerate(texts):
        if half := _SURROGATE.search(text):
            raise ColumnError(
                f"text {index} of the batch: U+{ord(half.group()):04X} at position {half.start()} is half of a "
                "surrogate pair, expected text that UTF-8 can hold",
                remedy='repair it with text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")',
            )


def copy_backend(tokenizer: Any) -> Any:
    """A `tokenizers.Tokenizer` of our own, set up as `transformers` sets it up before each call without truncation.

    A copy, since `transformers` changes the settings of its own while another thread may be encoding with it.
    """
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend
