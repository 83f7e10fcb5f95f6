"""What the user asked for: frozen, keyword-only, and checked once, before anything is opened.

`PrepareConfig` is the whole request; each stage receives only its own piece of it.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from typing import Any, Literal, get_args

from pipelines.prepare.options import bucket_lengths, limits, paths
from pipelines.prepare.options.split_options import HoldOutOption, SplitOption
from tfrecord_io.errors import ConfigError
from tfrecord_io.shown import without_access

__all__ = [
    "LAYOUT_COLUMNS",
    "LAYOUT_OPTIONS",
    "Compression",
    "EngineName",
    "LayoutConfig",
    "LayoutName",
    "LongDocuments",
    "OutputConfig",
    "PrepareConfig",
    "Remainder",
    "Side",
    "SourceConfig",
    "StepConfig",
    "StepKind",
    "TokenizerConfig",
    "Truncation",
    "default_name",
    "parse_size",
]

LayoutName = Literal["pad", "concat", "pack", "chat", "seq2seq", "tokens", "qa"]
Truncation = Literal["longest_first", "only_first", "only_second", "do_not_truncate"]
Remainder = Literal["pad", "drop"]
LongDocuments = Literal["split", "drop"]
Side = Literal["left", "right"]
EngineName = Literal["auto", "hf", "wordpiece", "unigram", "fastokens", "gigatoken"]
Compression = Literal["none", "gzip"]
StepKind = Literal["map", "filter"]

DEFAULT_SHARD_BYTES = 10**8

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]*\Z")
_STEP = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*\Z")


def parse_size(text: str) -> int:
    """Bytes in a size such as `100MB` (10^8), `64MiB` (2^26) or `5000`.

    Raises: ConfigError if it is not a positive number with a known unit.
    """
    match = _SIZE.match(text)
    unit = _UNITS.get(match.group(2).upper()) if match else None
    if match is None or unit is None or float(match.group(1)) <= 0:
        raise ConfigError(
            f"size {text!r}, expected a positive number with one of the units B, KB, MB, GB, KiB, MiB, GiB",
            remedy="write for example --shard-size 100MB",
        )
    # A number of hundreds of digits is infinite here, and has no whole number of bytes.
    return max(1, round(min(float(match.group(1)) * unit, 10.0**18)))


# The options that only some layouts take, by field of SourceConfig and LayoutConfig.
LAYOUT_COLUMNS: dict[str, tuple[LayoutName, ...]] = {
    "target_column": ("seq2seq",),
    "messages_column": ("chat",),
    "tools_column": ("chat",),
    "words_column": ("tokens",),
    "tags_column": ("tokens",),
    "answers_column": ("qa",),
}
LAYOUT_OPTIONS: dict[str, tuple[LayoutName, ...]] = {
    "truncation": ("pad", "seq2seq", "tokens"),
    "remainder": ("concat",),
    "add_bos": ("concat", "pack"),
    "long_documents": ("pack",),
    "pack_rows": ("chat",),
    "chat_date": ("chat",),
    "chat_template": ("chat",),
    "target_length": ("seq2seq",),
    "input_prefix": ("seq2seq",),
    "label_all_tokens": ("tokens",),
    "stride": ("pad", "qa"),
    "bucket_lengths": ("pad",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepConfig:
    """A function of the user's that changes rows or leaves some out: `spec` is `package.module:function`."""

    kind: StepKind
    spec: str

    def __post_init__(self) -> None:
        if self.kind not in get_args(StepKind) or not _STEP.match(self.spec):
            raise ConfigError(
                f"--{self.kind} {self.spec!r}, expected package.module:function",
                remedy=f"write for example --{self.kind} clean:{self.kind}_rows for a function in ./clean.py",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Which rows: `dataset` is a hub id, a path, a glob, or a folder, and `more` are further paths of the same dataset;
    `splits` empty means every split. `hold_out` are splits that are to be, with a share of the rows of another, such as
    `validation=1%` (see `split_options`): one, or several that share no row. The columns that only some layouts take
    are None where the layout's own default holds.
    """

    dataset: str
    more: tuple[str, ...] = ()
    config: str | None = None
    revision: str | None = None
    splits: tuple[str, ...] = ()
    text_columns: tuple[str, ...] = ("text",)
    label_column: str | None = None
    keep_columns: tuple[str, ...] = ()
    limit: int | None = None
    hold_out: str | tuple[str, ...] = ()
    steps: tuple[StepConfig, ...] = ()
    target_column: str | None = None
    messages_column: str | None = None
    tools_column: str | None = None
    words_column: str | None = None
    tags_column: str | None = None
    answers_column: str | None = None

    def __post_init__(self) -> None:
        if not self.dataset:
            raise ConfigError("DATASET is empty, expected a hub id, a path or a glob", remedy="name the dataset")
        if not 1 <= len(self.text_columns) <= 2:
            raise ConfigError(
                f"{len(self.text_columns)} text columns, expected one, or two for pairs",
                remedy="give --text-column once or twice",
            )
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"--limit {self.limit}, expected at least 1", remedy="leave --limit out to use every row")
        self._settle_splits()
        single = [self.label_column, *(getattr(self, name) for name in LAYOUT_COLUMNS)]
        # Layouts that take these columns read no text, and one of them may have the name that texts have by default.
        texts = () if self.messages_column or self.words_column else self.text_columns
        used = [*texts, *filter(None, single), *self.keep_columns]
        if repeated := sorted({name for name in used if used.count(name) > 1}):
            raise ConfigError(
                f"columns {repeated} are used more than once, expected each column in one place",
                remedy="leave the repetition out",
            )

    def _settle_splits(self) -> None:
        if isinstance(self.hold_out, str):
            object.__setattr__(self, "hold_out", (self.hold_out,))
        for text in self.splits:
            SplitOption.parse(text)
        names = [option.name for option in self.hold_outs]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"--hold-out is given twice for split {repeated[0]!r}, expected each split once",
                remedy="give one share of all its rows, or another name",
            )

    @property
    def hold_outs(self) -> tuple[HoldOutOption, ...]:
        """What `hold_out` asks for."""
        return tuple(map(HoldOutOption.parse, self.hold_out))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Which tokenizer; the sides are the tokenizer's own unless given."""

    name: str
    revision: str | None = None
    truncation_side: Side | None = None
    padding_side: Side | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError(
                "the tokenizer's name is empty, expected a hub id or a folder", remedy="give --tokenizer NAME_OR_DIR"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutConfig:
    """How texts become rows of `max_length` tokens; None means the tokenizer's own limit, at most 512.

    `bucket_lengths` are several lengths of rows, ascending up to `max_length`, which need not be given then: numbers,
    or as on the command line. `auto:K` stays as it is until `resolve` has chosen K of them.
    """

    name: LayoutName = "pad"
    max_length: int | None = None
    truncation: Truncation = "longest_first"
    remainder: Remainder = "pad"
    add_bos: bool = False
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
        if self.name not in get_args(LayoutName):
            raise ConfigError(f"layout {self.name!r}, expected one of {get_args(LayoutName)}")
        for option, layouts in LAYOUT_OPTIONS.items():
            if getattr(self, option) != _default(LayoutConfig, option):
                _require_layout(self.name, option, layouts)
        if self.stride is not None and self.stride < 0:
            raise ConfigError(f"--stride {self.stride}, expected at least 0", remedy="give the tokens of overlap")
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(
                f"--max-length {self.max_length}, expected at least 1", remedy="give the tokens of one row, such as 128"
            )
        for option, tokens in (("--max-length", self.max_length), ("--target-length", self.target_length)):
            limits.require_at_most(option, tokens or 0, limits.MOST_TOKENS, remedy="give fewer tokens, such as 512")
        if self.stride is not None and self.max_length is not None and self.stride >= self.max_length:
            raise ConfigError(
                f"--stride {self.stride} with --max-length {self.max_length}, expected less: windows that share all of "
                "their tokens get nowhere",
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
            self._settle_buckets(self.bucket_lengths)

    def _settle_buckets(self, given: str | tuple[int, ...]) -> None:
        found = bucket_lengths.parse(given, max_length=self.max_length)
        object.__setattr__(self, "bucket_lengths", found)
        if not isinstance(found, str):
            object.__setattr__(self, "max_length", found[-1])

    @property
    def buckets(self) -> tuple[int, ...]:
        """The lengths of rows, if there are several, and they are known."""
        return self.bucket_lengths if isinstance(self.bucket_lengths, tuple) else ()

    def given(self) -> dict[str, Any]:
        """The options of this layout that are not as they are by default: what manifest and fingerprint say of it."""
        return {
            option: list(value) if isinstance(value := getattr(self, option), tuple) else value
            for option, layouts in LAYOUT_OPTIONS.items()
            if self.name in layouts and getattr(self, option) != _default(LayoutConfig, option)
        }


def _is_date(text: str) -> bool:
    # Python 3.11 reads more forms than 3.10 does.
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII):
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _default(config: type, option: str) -> Any:
    return config.__dataclass_fields__[option].default  # type: ignore[attr-defined]


def _require_layout(name: LayoutName, option: str, layouts: tuple[LayoutName, ...]) -> None:
    if name not in layouts:
        flag = f"--{option.replace('_', '-')}"
        raise ConfigError(
            f"{flag} was given with --layout {name}, expected it with --layout {' or '.join(layouts)} only",
            remedy=f"leave it out, or choose --layout {layouts[0]}",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """Where to, and in which files. Without a `name`, PrepareConfig gives it one from the dataset (`default_name`)."""

    root: str
    name: str = ""
    shard_bytes: int = DEFAULT_SHARD_BYTES
    compression: Compression = "none"

    def __post_init__(self) -> None:
        if not self.root:
            raise ConfigError("--output is empty, expected a folder or a gs:// address", remedy="give --output OUT")
        if self.name and not _NAME.match(self.name):
            raise ConfigError(
                f"--name {self.name!r}, expected letters, digits, '_', '-', '+' or '.', not beginning with a dot",
                remedy="choose another --name",
            )
        if self.shard_bytes < 1:
            raise ConfigError(
                f"--shard-size {self.shard_bytes}, expected at least 1 byte",
                remedy="give for example --shard-size 100MB",
            )
        limits.require_at_most(
            "--shard-size",
            self.shard_bytes,
            limits.MOST_SHARD_BYTES,
            remedy="give for example --shard-size 100MB: a shard is made in memory",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """One whole request. `workers` None means every core; it never changes a byte of the output. `keep_ingested` is a
    folder or an address where the ingested copy of a source stays for the next build.
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

    def __post_init__(self) -> None:
        if not self.output.name:
            name = default_name(self.source.dataset, *self.source.more)
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
        # Padding takes next to nothing in compressed shards, and of several lengths the largest is for few rows.
        plain = self.output.compression == "none" and not self.layout.bucket_lengths
        if self.layout.max_length is not None and plain:
            limits.require_room_for_record(
                self.layout.name, length=self.layout.max_length, shard_bytes=self.output.shard_bytes
            )
        for column, layouts in LAYOUT_COLUMNS.items():
            if getattr(self.source, column) is not None:
                _require_layout(self.layout.name, column, layouts)
        if self.layout.name in ("concat", "pack"):
            self._check_joined()
        if self.layout.name == "chat":
            self._check_chat()
        if self.layout.stride is not None and self.layout.name == "pad":
            self._check_windows()
        if self.layout.name == "tokens" and self.source.label_column:
            raise ConfigError(
                "--layout tokens with --label-column: its labels are the tags of words, and a dataset has one list of "
                "label names",
                remedy="leave --label-column out, or keep a column of integers with --keep-column",
            )

    def _check_windows(self) -> None:
        given = {
            "two text columns": len(self.source.text_columns) == 2,
            f"--truncation {self.layout.truncation}": self.layout.truncation != "longest_first",
            "--bucket-lengths": self.layout.bucket_lengths is not None,
        }
        for what, is_given in given.items():
            if is_given:
                raise ConfigError(
                    f"--layout pad with --stride and {what}, expected one text in windows of one length, none cut",
                    remedy="leave one of them out; questions with their contexts are for --layout qa",
                )

    def _check_chat(self) -> None:
        if self.source.text_columns != _default(SourceConfig, "text_columns"):
            raise ConfigError(
                "--layout chat with --text-column, expected conversations, which are in one column of messages",
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

    def deciding(self) -> dict[str, Any]:
        """The options that decide bytes of the output, by command-line name: what the fingerprint covers."""
        return {
            "text_columns": list(self.source.text_columns),
            "label_column": self.source.label_column,
            "keep_columns": list(self.source.keep_columns),
            "layout": self.layout.name,
            "truncation": self.layout.truncation,
            "truncation_side": self.tokenizer.truncation_side,
            "padding_side": self.tokenizer.padding_side,
            "remainder": self.layout.remainder,
            "add_bos": self.layout.add_bos,
            "name": self.output.name,
            "shard_bytes": self.output.shard_bytes,
            "compression": self.output.compression,
            "seed": self.seed,
            "shuffle": self.shuffle,
            **self.layout.given(),
            **{name: value for name in LAYOUT_COLUMNS if (value := getattr(self.source, name)) is not None},
        }


def default_name(dataset: str, *more: str) -> str:
    """A name for the shards, from the last part of the dataset's path or id that is not a glob; of several paths, from
    the folder that they share.
    """
    if more:
        dataset = paths.common_folder((dataset, *more))
    parts = [part for part in re.split(r"[/\\]", without_access(dataset)) if part and not re.search(r"[*?\[]", part)]
    stem = parts[-1].partition(".")[0] if parts else ""
    return re.sub(r"[^A-Za-z0-9_+\-]", "_", stem) or "dataset"
