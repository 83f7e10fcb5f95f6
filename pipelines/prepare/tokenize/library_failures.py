"""Failures of the compiled libraries of tokenizers.

They raise plain Exceptions. A Rust panic becomes pyo3's PanicException, which is only a BaseException.
"""

import contextlib
from collections.abc import Callable, Iterator

from tfrecord_io.errors import TokenizerError
from tfrecord_io.shown import first_line

REMEDY = "leave such rows out with --filter, or choose another tokenizer; this one fails on them in `transformers` too"


class TextsNotEncoded(TokenizerError):
    """Error for texts that the tokenizer's library cannot encode."""


def is_failure(error: BaseException) -> bool:
    """Return whether the tokenizer's library failed on a text, directly or in an engine."""
    return isinstance(error, TextsNotEncoded) or type(error) is Exception or _is_panic(error)


def is_of_library(error: BaseException) -> bool:
    """Return whether the error may come from a compiled library: a Rust panic, or any Exception except MemoryError."""
    return _is_panic(error) or (isinstance(error, Exception) and not isinstance(error, MemoryError))


def _is_panic(error: BaseException) -> bool:
    # By name, because each pyo3 library has its own class.
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def raised_as(make: Callable[[BaseException], Exception]) -> Iterator[None]:
    """Within the context, replace errors of compiled libraries with the errors that `make` returns."""
    try:
        yield
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise make(error) from error


@contextlib.contextmanager
def named(library: str, *, num_texts: int) -> Iterator[None]:
    """Within the context, replace errors of `library` with TextsNotEncoded. `num_texts`: for the error message."""
    texts = "a text" if num_texts == 1 else f"one of {num_texts:,} texts"
    cause = f"the tokenizer ({library}) fails on {texts}"
    with raised_as(lambda error: TextsNotEncoded(f"{cause}: {first_line(error)}", remedy=REMEDY)):
        yield
