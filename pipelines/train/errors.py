"""Exceptions of the trainer, except those for options and data; all are PrepErrors."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tfrecord_io.errors import ConfigError, PrepError


@contextlib.contextmanager
def usual_remedies(command: str) -> Iterator[None]:
    """Add a general remedy to errors of a command that have none."""
    try:
        yield
    except PrepError as error:
        usual = (
            f"`{command} --help` says what each option takes"
            if isinstance(error, ConfigError)
            else "--verbose shows where it comes from"
        )
        error.remedy = error.remedy or usual
        raise


def said(error: BaseException) -> str:
    """Return a library's error as one line of at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def graph_error(error: Any, *, data: Sequence[str], asked: str, remedy: str) -> PrepError:
    """Return the error for a failed TensorFlow graph: out of memory while doing `asked`, or damaged data."""
    words = f"{type(error).__name__}: {str(error.message).partition(chr(10))[0][:300]}"
    # TensorFlow reports a full disk as ResourceExhausted too.
    if type(error).__name__ == "ResourceExhaustedError" and "No space left" not in words:
        return PrepError(f"{asked}: out of memory ({words})", remedy=remedy)
    return PrepError(
        f"{' + '.join(data)}: {words}",
        remedy=f"run `prep-tfrecords verify {data[0]}`, which finds damaged data; --verbose shows more",
    )


class DeviceError(PrepError):
    """The requested accelerator cannot be reached, or is of another kind."""


class TrainingError(PrepError):
    """The training cannot begin or go on."""


class StoppedError(PrepError):
    """A signal ended the training before its last step; its state is saved."""

    signal_number = 0


class StepError(PrepError):
    """The training step cannot be compiled for a TPU. The cause names the operation and its line."""


class UnfitError(PrepError):
    """The training step needs more memory than a replica has."""


class CompilerError(PrepError):
    """The TPU compiler ended without a result; the step itself may be fine."""
