"""Errors that a user can cause.

PrepError
├── ConfigError
├── SourceError
│   ├── SplitNotFoundError
│   └── ColumnError
├── TokenizerError
├── RowsRejectedError
├── LedgerError
├── OutputError
│   └── FingerprintMismatchError
├── FormatError
│   ├── SchemaError
│   ├── ManifestError
│   └── CorruptRecordError
└── ReaderError
"""

import functools

from tfrecord_io.shown import bounded, visible, without_secrets

__all__ = [
    "ColumnError",
    "ConfigError",
    "CorruptRecordError",
    "FingerprintMismatchError",
    "FormatError",
    "LedgerError",
    "ManifestError",
    "OutputError",
    "PrepError",
    "ReaderError",
    "RowsRejectedError",
    "SchemaError",
    "SourceError",
    "SplitNotFoundError",
    "TokenizerError",
]


class PrepError(Exception):
    """Base class of all errors.

    `cause` describes the problem, its place and the expected value; `remedy` says how to solve it. Secrets are removed.
    """

    def __init__(self, cause: str, *, remedy: str = "") -> None:
        self.cause = bounded(without_secrets(cause))
        self.remedy = bounded(without_secrets(remedy))
        super().__init__(self.cause, self.remedy)

    def __str__(self) -> str:
        return visible(f"{self.cause}; {self.remedy}" if self.remedy else self.cause, lines=True)

    def __reduce__(self) -> tuple[object, ...]:
        # Beam workers pickle errors, and pickle cannot pass a keyword-only argument.
        return (functools.partial(type(self), remedy=self.remedy), (self.cause,))


class ConfigError(PrepError):
    """An option is wrong, or two options contradict each other."""


class SourceError(PrepError):
    """The dataset cannot be found, opened or read."""


class SplitNotFoundError(SourceError):
    """The dataset does not have the split."""


class ColumnError(SourceError):
    """A column is missing, or has values that do not fit its use."""


class TokenizerError(PrepError):
    """The tokenizer cannot be loaded, or lacks a token that the layout needs."""


class RowsRejectedError(PrepError):
    """The share of unusable rows exceeds the allowed error rate."""


class LedgerError(PrepError):
    """Used, rejected and filtered rows do not add up to the input rows: a bug in this library."""


class OutputError(PrepError):
    """The output folder cannot be written, or must not be overwritten."""


class FingerprintMismatchError(OutputError):
    """The output folder contains a dataset, or part of one, made from different inputs or options."""


class FormatError(PrepError):
    """A file violates the on-disk format (docs/format.md)."""


class SchemaError(FormatError):
    """A feature has an invalid name, dtype or shape, or arrays do not fit the schema."""


class ManifestError(FormatError):
    """The manifest is missing or invalid, contradicts itself, or has a newer major format version."""


class CorruptRecordError(FormatError):
    """A shard is damaged, or does not fit the schema."""


class ReaderError(PrepError):
    """A dataset cannot be read as requested, or an argument of a reader is invalid."""
