"""When a tokenizer's compiled library fails on a text: an Exception without a kind of its own, or a panic.

A panic of Rust comes to Python as pyo3's PanicException, which is a BaseException: `except Exception` does not see it.
"""

from __future__ import annotations

from tfrecord_io.errors import TokenizerError
from tfrecord_io.shown import first_line

__all__ = ["REMEDY", "TextsNotEncoded", "is_failure", "is_of_library", "not_encoded"]

REMEDY = "leave such rows out with --filter, or mend the tokenizer; `transformers` itself fails on them too"


class TextsNotEncoded(TokenizerError):
    """The tokenizer's own library fails on one of the texts."""


def is_failure(error: BaseException) -> bool:
    """Whether a tokenizer's library failed on a text: as an engine says it, or raised by the library itself."""
    return isinstance(error, TextsNotEncoded) or type(error) is Exception or _is_panic(error)


def is_of_library(error: BaseException) -> bool:
    """Whether an error may come from a compiled library: any Exception, or a panic; no interrupt, no lack of memory."""
    return _is_panic(error) or (isinstance(error, Exception) and not isinstance(error, MemoryError))


def _is_panic(error: BaseException) -> bool:
    # The class has no public name to import: each library that is built with pyo3 has one of its own.
    return type(error).__name__ == "PanicException"


def not_encoded(error: BaseException, *, library: str, num_texts: int) -> TextsNotEncoded:
    """The error to raise for one that the library gave for some of so many texts. Its caller knows their rows."""
    texts = "a text" if num_texts == 1 else f"one of {num_texts:,} texts"
    return TextsNotEncoded(f"the tokenizer ({library}) fails on {texts}: {first_line(error)}", remedy=REMEDY)
