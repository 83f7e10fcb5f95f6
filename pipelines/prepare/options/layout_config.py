"""Options that say how texts become rows of tokens."""

from __future__ import annotations

import dataclasses
import datetime
import re
from typing import Any, Literal

from pipelines.prepare.options import bucket_lengths, limits
from pipelines.prepare.options.layout_traits import LAYOUT_OPTIONS, LAYOUT_TRAITS
from tfrecord_io.errors import ConfigError

__all__ = [
    "LayoutConfig",
    "LongDocuments",
    "Remainder",
    "SpecialTokens",
    "Truncation",
    "require_layout",
]

Truncation = Literal["longest_first", "only_first", "only_second", "do_not_truncate"]
Remainder = Literal["pad", "drop"]
LongDocuments = Literal["split", "drop"]
SpecialTokens = Literal["eos", "bos-eos", "tokenizer", "none"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutConfig:
    """How texts become rows of `max_length` tokens; None is the tokenizer's own limit, at most 512.

    `bucket_lengths` are several row lengths, ascending, as numbers or as on the command line; the largest becomes
    `max_length`. `auto:K` stays a string until the launcher has chosen K lengths.
    """

    name: str = "pad"
    max_length: int | None = None
    truncation: Truncation = "longest_first"
    remainder: Remainder = "pad"
    special_tokens: SpecialTokens = "eos"
    long_documents: LongDocuments = "split"
    pack_rows: bool = False
    chat_date: str | None = None
    chat_template: str | None = None
    target_length: int | None = None
    input_prefix: str = ""
    label_all_tokens: bool = False
    stride: int | None = None
    bucket_lengths: str | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.name not in LAYOUT_TRAITS:
            raise ConfigError(f"layout {self.name!r}, expected one of {tuple(LAYOUT_TRAITS)}")
        for option, layouts in LAYOUT_OPTIONS.items():
            if getattr(self, option) != getattr(LayoutConfig, option):
                require_layout(self.name, option, layouts)
        if self.stride is not None and self.stride < 0:
            raise ConfigError(
                f"--stride {self.stride}, expected at least 0", remedy="give the number of tokens that windows share"
            )
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(
                f"--max-length {self.max_length}, expected at least 1", remedy="give the tokens of one row, such as 128"
            )
        for option, tokens in (("--max-length", self.max_length), ("--target-length", self.target_length)):
            limits.require_at_most(option, tokens or 0, limits.MOST_TOKENS, remedy="give fewer tokens, such as 512")
        if self.stride is not None and self.max_length is not None and self.stride >= self.max_length:
            raise ConfigError(
                f"--stride {self.stride} with --max-length {self.max_length}, expected less: each window "
                "must begin after the one before",
                remedy="give for example a quarter of --max-length",
            )
        if self.chat_date is not None and not _is_date(self.chat_date):
            raise ConfigError(
                f"--chat-date {self.chat_date!r}, expected a date such as 2024-07-26", remedy="write it as YYYY-MM-DD"
            )
        if self.target_length is not None and self.target_length < 1:
            raise ConfigError(
                f"--target-length {self.target_length}, expected at least 1",
                remedy="give the tokens of one target, such as 64",
            )
        if self.bucket_lengths is not None:
            self._parse_buckets(self.bucket_lengths)

    def _parse_buckets(self, option: str | tuple[int, ...]) -> None:
        lengths = bucket_lengths.parse(option, max_length=self.max_length)
        object.__setattr__(self, "bucket_lengths", lengths)
        if not isinstance(lengths, str):
            object.__setattr__(self, "max_length", lengths[-1])

    @property
    def buckets(self) -> tuple[int, ...]:
        """The row lengths if there are several; empty until `auto:K` has been resolved."""
        return self.bucket_lengths if isinstance(self.bucket_lengths, tuple) else ()

    def non_default_options(self) -> dict[str, Any]:
        """The options of this layout that differ from their defaults, as the manifest and the fingerprint list them."""
        return {
            option: list(value) if isinstance(value := getattr(self, option), tuple) else value
            for option, layouts in LAYOUT_OPTIONS.items()
            if self.name in layouts and getattr(self, option) != getattr(LayoutConfig, option)
        }


def _is_date(text: str) -> bool:
    # fromisoformat accepts more forms from Python 3.11 on.
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII):
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def require_layout(name: str, option: str, layouts: tuple[str, ...]) -> None:
    """Raise ConfigError if `option` is given with a layout that does not take it."""
    if name not in layouts:
        flag = f"--{option.replace('_', '-')}"
        raise ConfigError(
            f"{flag} was given with --layout {name}, expected it with --layout {' or '.join(layouts)} only",
            remedy=f"leave it out, or choose --layout {layouts[0]}",
        )
