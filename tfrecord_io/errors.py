"""Errors that a user can cause, as one tree.

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
    """Root of all errors: `cause` (place, found, expected) and `remedy` (next action), without secrets."""

    def __init__(self, cause: str, *, remedy: str = "") -> None:
        self.cause = bounded(without_secrets(cause))
        self.remedy = bounded(without_secrets(remedy))
        super().__init__(self.cause, self.remedy)

    def __str__(self) -> str:
        return visible(f"{self.cause}; {self.remedy}" if self.remedy else self.cause, lines=True)

    def __reduce__(self) -> tuple[object, ...]:
        # Beam workers pickle errors, and pickle needs help with a keyword-only argument.
        return (functools.partial(type(self), remedy=self.remedy), (self.cause,))


class ConfigError(PrepError):
    """An option is wrong, or two options contradict each other."""


class SourceError(PrepError):
    """The dataset cannot be found, opened or read as asked."""


class SplitNotFoundError(SourceError):
    """The dataset does not have the split."""


class ColumnError(SourceError):
    """A column is missing, or holds values that do not fit its use."""


class TokenizerError(PrepError):
    """The tokenizer cannot be loaded, or lacks something that the layout needs."""


class RowsRejectedError(PrepError):
    """More rows were unusable than the configured error rate allows."""


class LedgerError(PrepError):
    """Rows in do not equal rows used, rejected and filtered. Always a bug in this library."""


class OutputError(PrepError):
    """The output folder cannot or must not be written."""


class FingerprintMismatchError(OutputError):
    """The output folder holds a dataset, or part of one, with other inputs or options."""


class FormatError(PrepError):
    """Files break the contract of docs/format.md."""


class SchemaError(FormatError):
    """A feature's name, dtype or shape is not allowed, or arrays do not fit the schema."""


class ManifestError(FormatError):
    """The manifest is missing, unreadable, or contradicts itself."""


class CorruptRecordError(FormatError):
    """A shard's bytes are damaged, or contradict the schema."""


class ReaderError(PrepError):
    """A reader cannot satisfy the request."""
