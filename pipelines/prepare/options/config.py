"""The whole request of a build as one object: frozen, keyword-only, and validated once, before anything is opened.

Each stage receives only the part that it needs; the parts are exported from here too.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from pipelines.prepare.options import limits
from pipelines.prepare.options.engine_names import EngineName
from pipelines.prepare.options.layout_config import (
    LayoutConfig,
    LongDocuments,
    Remainder,
    SpecialTokens,
    Truncation,
    require_layout,
)
from pipelines.prepare.options.layout_traits import LAYOUT_COLUMNS, LAYOUT_OPTIONS, LAYOUT_TRAITS
from pipelines.prepare.options.output_config import Compression, OutputConfig, default_name, parse_size
from pipelines.prepare.options.source_config import FunctionKind, FunctionOption, SourceConfig
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Which tokenizer; a side that is None is the tokenizer's own. `chat_template` is the text of one to give to it."""

    name: str
    revision: str | None = None
    truncation_side: Side | None = None
    padding_side: Side | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError(
                "the tokenizer's name is empty, expected a hub id or a folder", remedy="give --tokenizer NAME_OR_DIR"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """The whole request of a build.

    `workers` None means every core; it never changes a byte of the output. `keep_ingested` is a folder or an address
    where the ingested copy of the source is kept for the next build. `append` adds the source's new rows to the
    finished dataset in the output.
    """

    source: SourceConfig
    tokenizer: TokenizerConfig
    output: OutputConfig
    layout: LayoutConfig = dataclasses.field(default_factory=LayoutConfig)
    seed: int = 0
    shuffle: bool = True
    engine: EngineName = "auto"
    max_error_rate: float = 0.0
    overwrite: bool = False
    workers: int | None = None
    beam_args: tuple[str, ...] = ()
    keep_ingested: str | None = None
    append: bool = False

    def __post_init__(self) -> None:
        if not self.output.name:
            name = default_name(self.source.dataset, *self.source.more_paths)
            object.__setattr__(self, "output", dataclasses.replace(self.output, name=name))
        if self.seed < 0:
            raise ConfigError(f"--seed {self.seed}, expected 0 or more", remedy="choose another seed")
        if not 0.0 <= self.max_error_rate <= 1.0:
            raise ConfigError(
                f"--max-error-rate {self.max_error_rate}, expected a fraction from 0 to 1",
                remedy="write 0.01 for one percent",
            )
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers {self.workers}, expected at least 1", remedy="leave --workers out")
        limits.require_at_most("--workers", self.workers or 1, limits.MOST_WORKERS, remedy="leave --workers out")
        # Compressed padding takes almost no bytes, and few rows have the largest of several lengths.
        is_full_size = self.output.compression == "none" and not self.layout.bucket_lengths
        if self.layout.max_length is not None and is_full_size:
            limits.require_room_for_record(
                self.layout.name, length=self.layout.max_length, shard_bytes=self.output.shard_bytes
            )
        for column, layouts in LAYOUT_COLUMNS.items():
            if getattr(self.source, column) is not None:
                require_layout(self.layout.name, column, layouts)
        if LAYOUT_TRAITS[self.layout.name].joins_documents:
            self._check_joined()
        if self.layout.name == "chat":
            self._check_chat()
        elif self.tokenizer.chat_template is not None:
            require_layout(self.layout.name, "chat_template", LAYOUT_OPTIONS["chat_template"])
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

    def _check_windows(self) -> None:
        conflicts = {
            "two text columns": len(self.source.text_columns) == 2,
            f"--truncation {self.layout.truncation}": self.layout.truncation != "longest_first",
            "--bucket-lengths": self.layout.bucket_lengths is not None,
        }
        for option, is_given in conflicts.items():
            if is_given:
                raise ConfigError(
                    f"--layout pad with --stride and {option}: --stride splits one text into windows of one length",
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
        """The options that decide bytes of the output, as the fingerprint covers them, by command-line name."""
        return {
            "text_columns": list(self.source.text_columns),
            "label_column": self.source.label_column,
            "keep_columns": list(self.source.keep_columns),
            "layout": self.layout.name,
            "truncation": self.layout.truncation,
            "truncation_side": self.tokenizer.truncation_side,
            "padding_side": self.tokenizer.padding_side,
            "remainder": self.layout.remainder,
            "name": self.output.name,
            "shard_bytes": self.output.shard_bytes,
            "compression": self.output.compression,
            "seed": self.seed,
            "shuffle": self.shuffle,
            **({"label_classes": True} if self.source.label_classes else {}),
            **({"index": ["dali"]} if self.output.dali_index else {}),
            **({"dedup": self.source.dedup} if self.source.dedup else {}),
            **({"dedup_across_splits": True} if self.source.dedup_across_splits else {}),
            **self.layout.non_default_options(),
            **{name: value for name in LAYOUT_COLUMNS if (value := getattr(self.source, name)) is not None},
        }
