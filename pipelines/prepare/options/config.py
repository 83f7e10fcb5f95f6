"""The whole request of a build as one object: frozen, keyword-only, and validated once, before anything is opened.

Each stage receives only the part that it needs; the parts are exported from here too.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any, Literal

from pipelines.prepare.options import paths
from pipelines.prepare.options.layout_config import (
    JOINING,
    VALUES_PER_TOKEN,
    LayoutConfig,
    LongDocuments,
    Remainder,
    SpecialTokens,
    Truncation,
    require_layout,
)
from pipelines.prepare.options.output_config import Compression, OutputConfig, default_name, parse_size
from pipelines.prepare.options.source_config import LAYOUT_COLUMNS, FunctionKind, FunctionOption, SourceConfig
from pipelines.terminal.option_fields import check, fingerprint_items, option
from tfrecord_io.errors import ConfigError

__all__ = [
    "Compression",
    "EngineName",
    "FunctionKind",
    "FunctionOption",
    "LayoutConfig",
    "LongDocuments",
    "OutputConfig",
    "PrepareConfig",
    "Remainder",
    "Side",
    "SourceConfig",
    "SpecialTokens",
    "TokenizerConfig",
    "Truncation",
    "default_name",
    "parse_size",
]

Side = Literal["left", "right"]
# A new engine is a name here, a module in `tokenize.engines`, and a line in its `choice`.
EngineName = Literal["auto", "hf", "wordpiece", "unigram", "fastokens", "gigatoken"]
MOST_WORKERS = 1024
_tokenizer, _shards, _run = (functools.partial(option, group=title) for title in ("Tokenizer", "Shards", "Run"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Which tokenizer. `chat_template` is the text of one to give to it."""

    name: str = _tokenizer(
        "Hub id or folder of the tokenizer.",
        flags="--tokenizer",
        metavar="NAME_OR_DIR",
        parse=paths.tokenizer_folder,
        key="tokenizer",
    )
    revision: str | None = _tokenizer(
        "Branch, tag or commit of a hub tokenizer.",
        None,
        flags="--tokenizer-revision",
        metavar="REV",
        key="tokenizer_revision",
    )
    truncation_side: Side | None = _tokenizer("Default: the tokenizer's.", None, fingerprint="always")
    padding_side: Side | None = _tokenizer("Default: the tokenizer's.", None, fingerprint="always")
    chat_template: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError(
                "the tokenizer's name is empty, expected a hub id or a folder", remedy="give --tokenizer NAME_OR_DIR"
            )
        check(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """The whole request of a build. `workers` None means every core; it never changes a byte of the output."""

    source: SourceConfig
    tokenizer: TokenizerConfig
    output: OutputConfig
    layout: LayoutConfig = dataclasses.field(default_factory=LayoutConfig)
    beam_args: tuple[str, ...] = ()
    engine: EngineName = _tokenizer(
        "Implementation of the tokenizer; all give the same tokens, auto chooses the fastest.", "auto"
    )
    seed: int = _shards("Seed of the shuffle.", 0, least=0, remedy="choose another seed", fingerprint="always")
    shuffle: bool = _shards(
        "Shuffle rows, or keep the source's order.", True, flags="--shuffle/--no-shuffle", fingerprint="always"
    )
    max_error_rate: float = _shards("Share of rows that may be rejected.", 0.0)
    workers: int | None = _run(
        "Processes; never changes a byte. Default: one a core.",
        None,
        flags="--workers --num-proc",
        metavar="N",
        least=1,
        most=MOST_WORKERS,
        remedy="leave --workers out",
    )
    overwrite: bool = _run(
        "Continue an interrupted build (default), or start over.",
        False,
        flags="--resume/--overwrite",
        parse=operator.not_,
        typed_default=True,
    )
    append: bool = _run("Add new rows of the same source to the finished dataset, as further shards.", False)

    def __post_init__(self) -> None:
        if not self.output.name:
            name = default_name(self.source.dataset, *self.source.more_paths)
            object.__setattr__(self, "output", dataclasses.replace(self.output, name=name))
        check(self)
        if not 0.0 <= self.max_error_rate <= 1.0:
            raise ConfigError(
                f"--max-error-rate {self.max_error_rate}, expected a fraction from 0 to 1",
                remedy="write 0.01 for one percent",
            )
        self._check_room()
        for field, layouts in LAYOUT_COLUMNS.items():
            if getattr(self.source, field) is not None:
                require_layout(self.layout.name, field, layouts)
        if self.layout.name in JOINING:
            self._check_joined()
        if self.layout.name == "chat":
            self._check_chat()
        elif self.tokenizer.chat_template is not None:
            require_layout(self.layout.name, "chat_template", ("chat",))
        if self.layout.stride is not None and self.layout.name == "pad":
            self._check_windows()
        if self.append and (self.source.dedup or self.source.decontaminate):
            raise ConfigError(
                "--append with --dedup or --decontaminate: rows of before are not compared again",
                remedy="build the dataset anew with --overwrite",
            )
        if self.layout.name == "tokens" and self.source.label_column:
            raise ConfigError(
                "--layout tokens with --label-column: its labels are the words' tags, and a dataset has one list of "
                "label names",
                remedy="leave --label-column out, or keep a column of integers with --keep-column",
            )

    def _check_room(self) -> None:
        """Raise ConfigError if a record cannot fit into a shard.

        Compressed padding takes almost no bytes, and few rows have the largest of several lengths.
        """
        length, shard_bytes = self.layout.max_length, self.output.shard_bytes
        if length is None or self.output.compression != "none" or self.layout.bucket_lengths:
            return
        least = VALUES_PER_TOKEN[self.layout.name] * length
        if least > shard_bytes:
            raise ConfigError(
                f"--max-length {length} with --shard-size {shard_bytes} bytes, but one record of that length takes at "
                f"least {least}",
                remedy="give a smaller --max-length or a larger --shard-size; the default is 100MB",
            )

    def _check_windows(self) -> None:
        conflicts = {
            "two text columns": len(self.source.text_columns) == 2,
            f"--truncation {self.layout.truncation}": self.layout.truncation != "longest_first",
            "--bucket-lengths": self.layout.bucket_lengths is not None,
        }
        for other, is_given in conflicts.items():
            if is_given:
                raise ConfigError(
                    f"--layout pad with --stride and {other}: --stride splits one text into windows of one length",
                    remedy="leave one of them out; for questions with contexts choose --layout qa",
                )

    def _check_chat(self) -> None:
        if self.source.text_columns != SourceConfig.text_columns:
            raise ConfigError(
                "--layout chat with --text-column, expected a column of messages",
                remedy="leave --text-column out; name the column with --messages-column unless it is `messages`",
            )
        if self.layout.pack_rows and (self.source.label_column or self.source.keep_columns):
            raise ConfigError(
                "--pack-rows with --label-column or --keep-column: a row holds several conversations",
                remedy="leave them out, or leave --pack-rows out",
            )

    def _check_joined(self) -> None:
        if len(self.source.text_columns) != 1:
            raise ConfigError(
                f"--layout {self.layout.name} with two text columns, expected one: documents are joined, not paired",
                remedy="give --text-column once, or choose --layout pad",
            )
        if self.source.label_column or self.source.keep_columns:
            raise ConfigError(
                f"--layout {self.layout.name} with --label-column or --keep-column: a row holds parts of many rows",
                remedy="leave them out, or choose --layout pad",
            )

    def fingerprint_options(self) -> dict[str, Any]:
        """Return the options that decide bytes of the output, as the fingerprint covers them."""
        parts = (self.source, self.tokenizer, self.layout, self.output, self)
        return {name: value for part in parts for name, value in fingerprint_items(part).items()}
