"""Interface of engines, the reference engines, and the base class of fast engines."""

import abc
import copy
import functools
import json
import re
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize import library_failures
from pipelines.prepare.tokenize.ragged import RaggedTokens, exchanged, from_lists

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HFTokenizer: TypeAlias = "PreTrainedTokenizerBase"

# Test texts on which some tokenizers or engines have failed.
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

MAX_ID = 2**28 - 2  # the largest id that a vocabulary trie can hold

_REFERENCES = ("hf", "slow", "reference")


class Tokenizing(Protocol):
    """Protocol of engines and row encoders. `concurrent`: whether several threads encode faster than one."""

    name: str
    version: str
    concurrent: bool


class Engine(Tokenizing, Protocol):
    """Turns texts into tokens, without special tokens."""

    def encode(self, texts: pa.Array) -> RaggedTokens:
        """Return the tokens that `tokenizer(text, add_special_tokens=False)` gives for each text.

        `texts`: Arrow strings or large strings, possibly a slice, without nulls, in valid UTF-8.
        Raises: TextsNotEncoded if the tokenizer's library fails.
        """


def is_reference(engine: str) -> bool:
    """Return whether a name, optionally with a version ("hf 0.23.1"), is that of a reference engine."""
    return engine.partition(" ")[0] in _REFERENCES


def utf8_of(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the UTF-8 bytes of N texts, read-only uint8 without a copy, and the texts' edges in them, int64 [N + 1].

    Text i is data[edges[i]:edges[i + 1]]; edges[0] may be above 0.
    """
    width = np.dtype(np.int64 if pa.types.is_large_string(texts.type) else np.int32)
    _, offsets, data = texts.buffers()
    if offsets is None or not len(texts):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    edges = np.frombuffer(offsets, width, len(texts) + 1, offset=texts.offset * width.itemsize).astype(np.int64)
    return (np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)), edges


class HuggingFaceEngine:
    """Reference engine for fast tokenizers: the Rust library `tokenizers`, which uses all cores."""

    name = "hf"
    concurrent = True

    def __init__(self, tokenizer: HFTokenizer, *, dtype: np.dtype) -> None:
        import tokenizers

        self.version = tokenizers.__version__
        self.backend = copy_backend(tokenizer)
        self._dtype = dtype

    def parts(self) -> dict[str, Any]:
        """Return the parsed tokenizer.json, without truncation and padding."""
        parts: dict[str, Any] = json.loads(self.backend.to_str())
        return parts

    def encode(self, texts: pa.Array) -> RaggedTokens:
        strings = texts.to_pylist()
        with library_failures.encoding(f"tokenizers {self.version}", num_texts=len(strings)):
            encodings = self.backend.encode_batch_fast(strings, add_special_tokens=False)
        return from_lists([encoding.ids for encoding in encodings], dtype=self._dtype)

    def put_into(self, ragged: RaggedTokens, texts: pa.Array, indices: np.ndarray) -> RaggedTokens:
        """Return a copy of `ragged`, the texts' tokens, with this engine's tokens for the texts at `indices`."""
        return exchanged(ragged, indices, self.encode(texts.take(pa.array(indices))))


class SlowEngine:
    """Reference engine for tokenizers written in Python."""

    name = "slow"
    concurrent = False

    def __init__(self, tokenizer: HFTokenizer, *, dtype: np.dtype) -> None:
        import transformers

        self.version = transformers.__version__
        self._tokenizer = tokenizer
        self._dtype = dtype

    def encode(self, texts: pa.Array) -> RaggedTokens:
        if not len(texts):
            return from_lists([], dtype=self._dtype)
        strings = texts.to_pylist()
        with library_failures.encoding(f"transformers {self.version}", num_texts=len(strings)):
            ids = self._tokenizer(strings, add_special_tokens=False, truncation=False, verbose=False)
        return from_lists(ids["input_ids"], dtype=self._dtype)


TOKENIZERS_TRIED = "0.23.*"


class NotQualified(Exception):
    """Error for a tokenizer that an engine does not support. The message is a clause without a full stop."""


class FastEngine(abc.ABC):
    """Base class of fast engines. Several threads may use one engine."""

    name: str
    version = "1"
    concurrent = True

    def __init__(self, reference: HuggingFaceEngine, *, dtype: np.dtype, parts: dict[str, Any] | None = None) -> None:
        """Open the engine for the tokenizer of `reference`, which encodes the texts that this engine cannot encode.

        `parts`: `reference.parts()`, if already known. Raises: NotQualified.
        """
        self._reference, self._dtype = reference, dtype
        require_release("tokenizers", tried=TOKENIZERS_TRIED)
        parts = reference.parts() if parts is None else parts
        if not _keeps_ids(parts["post_processor"]):
            raise NotQualified("its post-processor does more than add special tokens")
        vocabulary, added = parts["model"]["vocab"], parts["added_tokens"]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        largest = max([*ids, *(token["id"] for token in added)], default=0)
        if largest > min(np.iinfo(dtype).max, MAX_ID):
            raise NotQualified(f"its largest id, {largest}, is too large")
        self._open(parts)

    @abc.abstractmethod
    def _open(self, parts: dict[str, Any]) -> None:
        """Prepare the engine for a parsed tokenizer.json. Raises: NotQualified."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling does not compare engines again, which would need `transformers`.
        return functools.partial(type(self), dtype=self._dtype), (self._reference,)


def require_release(package: str, *, tried: str) -> str:
    """Return a package's version. Raises: NotQualified unless the release `tried`, such as "0.23.*", is installed."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise NotQualified(f"{package} is not installed; pip install {package}") from None
    if not _is_of(version, tried.removesuffix(".*")):
        raise NotQualified(
            f"{package} {version} is installed, but {tried} is qualified; pip install '{package}=={tried}'"
        )
    return version


def _is_of(version: str, release: str) -> bool:
    return re.fullmatch(rf"{re.escape(release)}(\.\d+)*", version) is not None


def _keeps_ids(post_processor: Mapping[str, Any] | None) -> bool:
    if post_processor is None or post_processor["type"] in ("BertProcessing", "RobertaProcessing", "ByteLevel"):
        return True
    if post_processor["type"] == "Sequence":
        return all(map(_keeps_ids, post_processor["processors"]))
    return post_processor["type"] == "TemplateProcessing" and [
        piece["Sequence"]["id"] for piece in post_processor["single"] if "Sequence" in piece
    ] == ["A"]


def copy_backend(tokenizer: HFTokenizer) -> Any:
    """Return a copy of the tokenizer's `tokenizers.Tokenizer`, without truncation and padding.

    `transformers` changes the original's settings, even while other threads encode with it.
    """
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend
