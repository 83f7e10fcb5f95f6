"""Errors of a training besides those of its options and its data.

PrepError (tfrecord_io.errors)
├── DeviceError       the TPU or GPU that was asked for cannot be reached, or is something else
├── TrainingError     the training cannot go on: the model does not fit its task, the loss is no number
├── StoppedError      a signal ended the training, after its state was saved
├── StepError         of a preflight: the training step cannot be traced, or the TPU compiler refuses it
├── UnfitError        it compiles, but needs more memory than the TPU has
└── CompilerError     the compiler itself failed: it crashed, or took longer than it may
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tfrecord_io.errors import ConfigError, PrepError

__all__ = [
    *("CompilerError", "DeviceError", "StepError", "StoppedError", "TrainingError", "UnfitError"),
    *("graph_error", "said", "usual_remedies"),
]


@contextlib.contextmanager
def usual_remedies(command: str) -> Iterator[None]:
    """Give a remedy to errors of a command that have none."""
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
    """Return an error of a library in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def graph_error(error: Any, *, data: Sequence[str], asked: str, remedy: str) -> PrepError:
    """Return what an error of TensorFlow's graph means: too little memory for what was `asked`, or damaged data."""
    words = f"{type(error).__name__}: {str(error.message).partition(chr(10))[0][:300]}"
    # A full disk is of this kind too.
    if type(error).__name__ == "ResourceExhaustedError" and "No space left" not in words:
        return PrepError(f"{asked}: out of memory ({words})", remedy=remedy)
    return PrepError(
        f"{' + '.join(data)}: {words}",
        remedy=f"run `prep-tfrecords verify {data[0]}`, which finds damaged data; --verbose shows more",
    )


class DeviceError(PrepError):
    """The accelerator that was asked for cannot be reached, or is something else."""


class TrainingError(PrepError):
    """The training cannot begin or go on."""


class StoppedError(PrepError):
    """A signal ended the training before its last step; its state is saved."""

    signal_number = 0


class StepError(PrepError):
    """The training step cannot be compiled for a TPU. The cause names the operation and its place in the code."""


class UnfitError(PrepError):
    """The training step needs more memory than a replica has."""


class CompilerError(PrepError):
    """The compiler ended without an answer; the step may be fine."""
