"""The options `--split` and `--hold-out`, parsed.

--split train                       a split of the source
--split 'train[:10%]+train[90%:]'   slices of one split
--split validation='train[:1%]'     a slice, under a name of its own
--hold-out validation=1%            about 1 % of the rows of `train`, or of the only split, chosen by their text
--hold-out validation=0.01          the same
--hold-out validation=1000          about 1,000 rows of it
--hold-out test=extra:1%            about 1 % of the rows of split `extra`
"""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction

from tfrecord_io.errors import ConfigError

__all__ = ["SPLIT_NAME", "HoldOutOption", "SplitOption"]

# Split names become parts of file names.
SPLIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]*\Z")

_AMOUNT = re.compile(r"(?:(?P<split>.+):)?(?P<number>[0-9_]*(?:\.[0-9]+)?)(?<=[0-9])(?P<percent>%)?\Z")
_HOLD_OUT_REMEDY = "write for example --hold-out validation=1%, validation=0.01, validation=1000 or validation=train:1%"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitOption:
    """One `--split`: `spec` is a split of the source or slices of one; `name` is its new name, None to keep the old."""

    name: str | None
    spec: str

    @classmethod
    def parse(cls, text: str) -> SplitOption:
        """Parse the value of `--split`. Raises: ConfigError if the name cannot be a file name, or no split follows."""
        name, has_name, spec = text.partition("=")
        if not has_name:
            return cls(name=None, spec=text.strip())
        name, spec = name.strip(), spec.strip()
        if not SPLIT_NAME.match(name) or not spec:
            raise ConfigError(
                f"--split {text!r}, expected NAME=SPLIT, with a NAME of letters, digits, '_', '-', '+' or '.'",
                remedy="write for example --split validation='train[:1%]'",
            )
        return cls(name=name, spec=spec)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldOutOption:
    """One `--hold-out`: the new split `name` gets rows of `split` (None: `train`, or the only split).

    Either `share` is the fraction of them, above 0 and below 1, or `rows` about how many; the other is None.
    """

    name: str
    split: str | None
    share: Fraction | None
    rows: int | None

    @property
    def amount(self) -> str:
        """The amount as on the command line."""
        return str(self.rows) if self.share is None else f"{float(100 * self.share):g}%"

    @property
    def text(self) -> str:
        """The option as on the command line."""
        return f"--hold-out {self.name}={f'{self.split}:' if self.split else ''}{self.amount}"

    @classmethod
    def parse(cls, text: str) -> HoldOutOption:
        """Parse the value of `--hold-out`. Raises: ConfigError unless it is a name and an amount of rows."""
        name, _, amount = text.partition("=")
        match = _AMOUNT.match(amount.strip())
        if not SPLIT_NAME.match(name.strip()) or match is None:
            raise ConfigError(
                f"--hold-out {text!r}, expected NAME=PERCENT%, NAME=SHARE or NAME=ROWS, where NAME is that of the new "
                "split",
                remedy=_HOLD_OUT_REMEDY,
            )
        number = Fraction(match["number"].replace("_", ""))
        whole = 100 if match["percent"] else 1 if "." in match["number"] else None
        if number <= 0 or (whole is not None and number >= whole):
            most = {100: " and less than 100 %", 1: " and less than 1", None: " rows"}[whole]
            raise ConfigError(f"--hold-out {text!r}, expected more than 0{most}", remedy=_HOLD_OUT_REMEDY)
        return cls(
            name=name.strip(),
            split=match["split"] and match["split"].strip(),
            share=None if whole is None else number / whole,
            rows=int(number) if whole is None else None,
        )
