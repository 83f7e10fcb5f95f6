"""Exceptions of the trainer. Errors of options and data: `tfrecord_io.errors`."""

import contextlib
from collections.abc import Iterator, Sequence

from tfrecord_io.errors import ConfigError, PrepError


@contextlib.contextmanager
def usual_remedies(command: str) -> Iterator[None]:
    """Add a general remedy to any PrepError without a remedy. `command`: such as train-tpu."""
    try:
        yield
    except PrepError as error:
        usual = "run the same command again with --verbose, which shows where the error occurred"
        if isinstance(error, ConfigError):
            usual = f"`{command} --help` explains the options"
        error.remedy = error.remedy or usual
        raise


def said(error: BaseException) -> str:
    """Return the type and message of a library's error, as one line of at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


@contextlib.contextmanager
def graph_errors(*, data: Sequence[str], options: str, remedy: str) -> Iterator[None]:
    """Convert TensorFlow's error for a failed graph to a PrepError about too little memory or damaged data.

    `data`: the datasets' folders. `options`: those that need memory. `remedy`: advice for too little memory.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        words = f"{type(error).__name__}: {str(error.message).partition(chr(10))[0][:300]}"
        # TensorFlow reports a full disk as ResourceExhausted, too.
        if isinstance(error, tf.errors.ResourceExhaustedError) and "No space left" not in words:
            raise PrepError(f"{options}: out of memory ({words})", remedy=remedy) from error
        advice = f"run `prep-tfrecords verify {data[0]}` to find damaged data; --verbose shows more of this error"
        raise PrepError(f"{' + '.join(data)}: {words}", remedy=advice) from error


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
