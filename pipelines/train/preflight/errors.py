"""What a preflight can find wrong.

PrepError (tfrecord_io.errors)
├── StepError        the training step cannot be traced, or the TPU compiler refuses it
├── UnfitError       it compiles, but needs more memory than the TPU has
└── CompilerError    the compiler itself failed: it crashed, or took longer than it may
"""

from __future__ import annotations

from tfrecord_io.errors import PrepError

__all__ = ["CompilerError", "StepError", "UnfitError"]


class StepError(PrepError):
    """The training step cannot be compiled for a TPU. The cause names the operation and its place in the code."""


class UnfitError(PrepError):
    """The training step needs more memory than a replica has."""


class CompilerError(PrepError):
    """The compiler ended without an answer; the step may be fine."""
