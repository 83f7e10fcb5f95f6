"""Errors of compiled tokenizer libraries: plain Exceptions, or pyo3's PanicException, which is only a BaseException."""

import contextlib
from collections.abc import Callable, Iterator

from tfrecord_io.errors import TokenizerError
from tfrecord_io.shown import first_line

REMEDY = "leave such rows out with --filter, or choose another tokenizer; this one fails on them in `transformers` too"


class TextsNotEncoded(TokenizerError):
    """Error for texts that the tokenizer's library cannot encode."""


def is_failure(error: BaseException) -> bool:
    """Return whether an error means that the tokenizer's library failed on a text, directly or in an engine."""
    return isinstance(error, TextsNotEncoded) or type(error) is Exception or _is_panic(error)


def is_of_library(error: BaseException) -> bool:
    """Return whether an error may come from a compiled library: a Rust panic, or any Exception except MemoryError."""
    return _is_panic(error) or (isinstance(error, Exception) and not isinstance(error, MemoryError))


def _is_panic(error: BaseException) -> bool:
    # By name, because each pyo3 library has its own class.
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def raised_as(make: Callable[[BaseException], Exception]) -> Iterator[None]:
    """Context manager: replace an error of a compiled library with the error that `make` returns for it."""
    try:
        yield
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise make(error) from error


@contextlib.contextmanager
def encoding(library: str, *, num_texts: int) -> Iterator[None]:
    """Context manager: replace an error of `library`, while it encodes `num_texts` texts, with TextsNotEncoded."""
    texts = "a text" if num_texts == 1 else f"one of {num_texts:,} texts"
    cause = f"the tokenizer ({library}) fails on {texts}"
    with raised_as(lambda error: TextsNotEncoded(f"{cause}: {first_line(error)}", remedy=REMEDY)):
        yield
