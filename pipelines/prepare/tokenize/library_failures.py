"""Failures of a tokenizer's compiled library on a text: a plain Exception, or a panic.

A panic of Rust reaches Python as pyo3's PanicException, a BaseException that `except Exception` does not catch.
"""

import contextlib
from collections.abc import Iterator

from tfrecord_io.errors import TokenizerError
from tfrecord_io.shown import first_line

REMEDY = "leave such rows out with --filter, or fix the tokenizer; `transformers` itself fails on them too"


class TextsNotEncoded(TokenizerError):
    """Raised if the tokenizer's own library fails on a text."""


def is_failure(error: BaseException) -> bool:
    """Return whether an error says that a tokenizer's library failed on a text, by itself or through an engine."""
    return isinstance(error, TextsNotEncoded) or type(error) is Exception or _is_panic(error)


def is_of_library(error: BaseException) -> bool:
    """Return whether an error may come from a compiled library: an Exception other than MemoryError, or a panic."""
    return _is_panic(error) or (isinstance(error, Exception) and not isinstance(error, MemoryError))


def _is_panic(error: BaseException) -> bool:
    # The class cannot be imported: each library that is built with pyo3 has its own.
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def named(library: str, *, num_texts: int) -> Iterator[None]:
    """Raise TextsNotEncoded for what the library raises for some of `num_texts` texts. Callers add the rows."""
    try:
        yield
    except BaseException as error:
        if not is_of_library(error):
            raise
        texts = "a text" if num_texts == 1 else f"one of {num_texts:,} texts"
        cause = f"the tokenizer ({library}) fails on {texts}: {first_line(error)}"
        raise TextsNotEncoded(cause, remedy=REMEDY) from error
