"""Exceptions of the trainer, all subclasses of PrepError. Errors of options and data: `tfrecord_io.errors`."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tfrecord_io.errors import ConfigError, PrepError


@contextlib.contextmanager
def usual_remedies(command: str) -> Iterator[None]:
    """Add a general remedy to a PrepError without one. `command`: such as train-tpu."""
    try:
        yield
    except PrepError as error:
        usual = (
            f"`{command} --help` explains the options"
            if isinstance(error, ConfigError)
            else "run the same command again with --verbose, which shows where the error occurred"
        )
        error.remedy = error.remedy or usual
        raise


def said(error: BaseException) -> str:
    """Return a library's error and its type as one line of at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def graph_error(error: Any, *, data: Sequence[str], asked: str, remedy: str) -> PrepError:
    """Convert TensorFlow's error for a failed graph to one about too little memory or damaged data.

    `data`: the datasets' folders. `asked`: the options that need memory. `remedy`: advice for too little memory.
    """
    words = f"{type(error).__name__}: {str(error.message).partition(chr(10))[0][:300]}"
    # TensorFlow reports a full disk as ResourceExhausted, too.
    if type(error).__name__ == "ResourceExhaustedError" and "No space left" not in words:
        return PrepError(f"{asked}: out of memory ({words})", remedy=remedy)
    return PrepError(
        f"{' + '.join(data)}: {words}",
        remedy=f"run `prep-tfrecords verify {data[0]}` to find damaged data; --verbose shows more of this error",
    )


class DeviceError(PrepError):
    """The accelerator cannot be reached, or JAX found another kind of device than a TPU."""


class TrainingError(PrepError):
    """The training run cannot start or continue."""


class StoppedError(PrepError):
    """A signal stopped the training run. Its state is saved. `signal_number`: the signal."""

    signal_number = 0


class StepError(PrepError):
    """The training step cannot be compiled for a TPU. The message names the operation or the line of code."""


class UnfitError(PrepError):
    """The training step needs more memory than a replica has."""


class CompilerError(PrepError):
    """The TPU compiler failed. The step itself may be correct."""
