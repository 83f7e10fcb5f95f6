"""Errors that a user can cause, as one tree.

PrepError                       cause (what was got, where, what was expected) and remedy (what to do)
├── ConfigError                 an option is wrong or two options contradict each other
├── SourceError                 the dataset cannot be found, opened or read as asked
│   ├── SplitNotFoundError      a split that the dataset does not have
│   └── ColumnError             a column is missing or holds something else than text, labels or numbers
├── TokenizerError              the tokenizer cannot be loaded or cannot do what the layout needs
├── RowsRejectedError           more rows were unusable than --max-error-rate allows
├── LedgerError                 rows in do not equal rows used, rejected and filtered: a bug, never data
├── OutputError                 the output cannot be written: permission, full disk, occupied folder
│   └── FingerprintMismatchError   the folder holds (part of) a dataset made from something else
├── FormatError                 what is on disk breaks the on-disk contract (docs/format.md)
│   ├── SchemaError             a feature's name, dtype or shape is not allowed, or arrays do not fit it
│   ├── ManifestError           manifest.json is missing, unreadable or contradicts itself
│   └── CorruptRecordError      a shard's bytes are damaged: framing, crc, digest or contents
└── ReaderError                 a reader was asked for something that it cannot give (split, batch size, host)
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
    """Root of all errors: `cause` (what was got and expected, and where) and `remedy` (what to do), without secrets."""

    def __init__(self, cause: str, *, remedy: str = "") -> None:
        self.cause = bounded(without_secrets(cause))
        self.remedy = bounded(without_secrets(remedy))
        super().__init__(self.cause, self.remedy)

    def __str__(self) -> str:
        return visible(f"{self.cause}; {self.remedy}" if self.remedy else self.cause, lines=True)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (Beam workers); a keyword-only argument needs its own way to pickle.
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
    """The tokenizer cannot be loaded, or cannot do what the layout needs."""


class RowsRejectedError(PrepError):
    """More rows were unusable than the configured error rate allows."""


class LedgerError(PrepError):
    """Rows in do not equal rows used, rejected and filtered. Always a bug of this library."""


class OutputError(PrepError):
    """The output folder cannot be written, or must not be."""


class FingerprintMismatchError(OutputError):
    """The output folder holds a dataset, or part of one, that was made from something else."""


class FormatError(PrepError):
    """What is on disk breaks the contract of docs/format.md."""


class SchemaError(FormatError):
    """A feature's name, dtype or shape is not allowed, or arrays do not fit the schema."""


class ManifestError(FormatError):
    """The manifest is missing, unreadable, or contradicts itself."""


class CorruptRecordError(FormatError):
    """A shard's bytes are damaged, or hold something else than the schema says."""


class ReaderError(PrepError):
    """A reader was asked for something that it cannot give."""
