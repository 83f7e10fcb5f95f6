"""Failures of a tokenizer's compiled library: plain Exceptions and Rust panics.

A Rust panic reaches Python as pyo3's PanicException, a BaseException.
"""

import contextlib
from collections.abc import Callable, Iterator

from tfrecord_io.errors import TokenizerError
from tfrecord_io.shown import first_line

REMEDY = "leave such rows out with --filter, or fix the tokenizer; `transformers` itself fails on them too"


class TextsNotEncoded(TokenizerError):
    """Error for texts on which the tokenizer's own library fails."""


def is_failure(error: BaseException) -> bool:
    """Return whether a tokenizer's library failed on a text, alone or in an engine."""
    return isinstance(error, TextsNotEncoded) or type(error) is Exception or _is_panic(error)


def is_of_library(error: BaseException) -> bool:
    """Return whether an error may be a compiled library's: an Exception except MemoryError, or a panic."""
    return _is_panic(error) or (isinstance(error, Exception) and not isinstance(error, MemoryError))


def _is_panic(error: BaseException) -> bool:
    # Each library built with pyo3 has its own class.
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def raised_as(make: Callable[[BaseException], Exception]) -> Iterator[None]:
    """Convert errors of compiled libraries with `make`, and raise the result."""
    try:
        yield
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise make(error) from error


@contextlib.contextmanager
def named(library: str, *, num_texts: int) -> Iterator[None]:
    """Turn errors of `library` while it encodes `num_texts` texts into TextsNotEncoded."""
    texts = "a text" if num_texts == 1 else f"one of {num_texts:,} texts"
    said = f"the tokenizer ({library}) fails on {texts}"
    with raised_as(lambda error: TextsNotEncoded(f"{said}: {first_line(error)}", remedy=REMEDY)):
        yield
