"""Options of the source: dataset, splits, columns and user functions (see docs/reference/sources.md)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal, NamedTuple, get_args

from pipelines.option_fields import check, declared, option
from tfrecord_io.errors import ConfigError

FunctionKind = Literal["map", "filter"]

# Options that determine how `datasets` reads the files.
SOURCE_OPTIONS = ("format", "data_files", "source_options", "sample_by")
# Units of a text file that can become a row.
SAMPLES = ("line", "paragraph", "document")
# Columns of each recognized format of conversations (see `columns.chats`).
CHATS: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "ShareGPT": ("conversations",),
    "prompt and completion": ("prompt", "completion"),
    "Alpaca": ("instruction", "output"),
}
# Split names become parts of file names.
SPLIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]*\Z")

_AMOUNT = re.compile(r"(?:(?P<split>.+):)?(?P<number>[0-9_]*(?:\.[0-9]+)?)(?<=[0-9])(?P<percent>%)?\Z")
_HOLD_OUT_REMEDY = "write for example --hold-out validation=1%, validation=0.01, validation=1000 or validation=train:1%"
_READY_MODULE = "pipelines.filters"
_READY: dict[FunctionKind, tuple[str, ...]] = {"map": ("fix_text", "mask_pii"), "filter": ("language", "length")}
_FUNCTION = re.compile(r"(?:(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):)?(?P<name>[^\W\d]\w*)(?:\((?P<arguments>.*)\))?\Z")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FunctionOption:
    """One --map or --filter. `spec`: `package.module:function`, or the name of a function in `pipelines.filters`.

    Arguments may follow the name, as in `language(en, at_least=0.8)`. `source`: the module's code, if it has no file.
    """

    kind: FunctionKind
    spec: str
    source: str | None = None

    def __post_init__(self) -> None:
        match = _FUNCTION.match(self.spec) if self.kind in get_args(FunctionKind) else None
        if match is None or not (match["module"] or match["name"] in _READY[self.kind]):
            ready = ", ".join(_READY.get(self.kind, ()))
            raise ConfigError(
                f"--{self.kind} {self.spec!r}, expected package.module:function, or one of {ready}",
                remedy=f"write for example --{self.kind} clean:{self.kind}_rows for a function in ./clean.py",
            )


class CalledFunction(NamedTuple):
    """Parsed `FunctionOption.spec`. `arguments`, `keywords`: passed to the function after the batch of rows."""

    module: str
    name: str
    arguments: tuple[str | float, ...]
    keywords: dict[str, str | float]

    @property
    def is_ready(self) -> bool:
        return self.module == _READY_MODULE

    @classmethod
    def of(cls, spec: str) -> CalledFunction:
        """Parse `FunctionOption.spec`. Arguments become numbers if possible, otherwise strings."""
        match = _FUNCTION.match(spec)
        assert match is not None, "FunctionOption checks the spec"
        arguments = [text.strip() for text in match["arguments"].split(",")] if match["arguments"] else []
        keywords = dict(text.split("=", 1) for text in arguments if "=" in text)
        return cls(
            match["module"] or _READY_MODULE,
            match["name"],
            tuple(_value(text) for text in arguments if "=" not in text),
            {name.strip(): _value(value.strip()) for name, value in keywords.items()},
        )


def _value(text: str) -> str | float:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text.strip("'\"")


def parse_split(text: str) -> tuple[str, str]:
    """Parse a value of --split such as `small=train[:1%]` into a new name ('' if it has none) and a source split.

    Slices stay in the source split. Raises: ConfigError if the name cannot be part of a file name, or no split follows.
    """
    name, has_name, spec = text.partition("=")
    if not has_name:
        return "", text.strip()
    name, spec = name.strip(), spec.strip()
    if not SPLIT_NAME.match(name) or not spec:
        raise ConfigError(
            f"--split {text!r}, expected NAME=SPLIT, where NAME has letters, digits, '_', '-', '+' or '.'",
            remedy="write for example --split validation='train[:1%]'",
        )
    return name, spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldOutOption:
    """One --hold-out: a new split `name` with random rows of the split `split`.

    `split` is None for `train`, or for the only split. `share` (a fraction between 0 and 1) or `rows` (an approximate
    number) says how many rows; the other is None. `amount`: the amount as typed, such as `1%`.
    """

    name: str
    split: str | None
    amount: str
    share: Fraction | None
    rows: int | None

    @property
    def text(self) -> str:
        """The option as written on the command line."""
        return f"--hold-out {self.name}={f'{self.split}:' if self.split else ''}{self.amount}"

    @classmethod
    def parse(cls, text: str) -> HoldOutOption:
        """Parse a value of --hold-out such as `test=1%`. Raises: ConfigError unless it has a name and an amount."""
        name, _, amount = text.partition("=")
        match = _AMOUNT.match(amount.strip())
        if not SPLIT_NAME.match(name.strip()) or match is None:
            raise ConfigError(
                f"--hold-out {text!r}, expected NAME=PERCENT%, NAME=SHARE or NAME=ROWS, with a NAME for the new split",
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
            amount=match["number"] + (match["percent"] or ""),
            share=None if whole is None else number / whole,
            rows=int(number) if whole is None else None,
        )


_source = functools.partial(option, group="Source")
_stored = functools.partial(_source, fingerprint="always")
_changed = functools.partial(_source, fingerprint="changed")


def _column(text: str, *layouts: str, brief: str = "") -> Any:
    group = f"Layout{'s' * (len(layouts) > 1)} {' and '.join(layouts)}"
    return option(text, None, brief=brief, group=group, metavar="NAME", taken_with=layouts, fingerprint="changed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Options of the source: which rows, columns and user functions a build uses.

    `dataset`: a Hub id, a path, a glob or a folder. `more_paths`: more files. `object_splits`: names of the splits of a
    Python object stored in the folder `dataset` (see `ingest.objects`). `functions`: applied in order. If a column that
    only some layouts use is None, the layout chooses it.
    """

    dataset: str
    more_paths: tuple[str, ...] = ()
    object_splits: tuple[str, ...] = ()
    functions: tuple[FunctionOption, ...] = ()
    config: str | None = _source("Configuration of a Hub dataset.", None, metavar="NAME")
    revision: str | None = _source("Branch, tag or commit of a Hub dataset.", None, metavar="REV")
    format: str | None = _source(
        "Reader of `datasets`, such as json, csv, text or webdataset. Default: by file names.",
        None,
        brief="json, csv, text, ... Default: by file names.",
        metavar="READER",
    )
    data_files: tuple[str, ...] = _source(
        "Files of the dataset to read, with their split (default: train). Repeatable.", (), metavar="[SPLIT=]PATTERN"
    )
    source_options: tuple[str, ...] = _source(
        "Option of the reader, such as delimiter=';' for csv or field=data for json. Repeatable.",
        (),
        flags="--source-option",
        metavar="KEY=VALUE",
    )
    sample_by: str | None = _source("Part of a text file that makes a row. Default: line.", None, choices=SAMPLES)
    splits: tuple[str, ...] = _source(
        "Split, or slice such as 'train[:1%]', optionally with a new name. Repeatable. Default: all.",
        (),
        brief="Split or slice, such as 'train[:1%]'.",
        flags="--split",
        metavar="[NAME=]SPLIT",
    )
    hold_out: str | tuple[str, ...] = _source(
        "Make a new split of random rows; also NAME=0.01, NAME=ROWS or NAME=SPLIT:1%. Repeatable.",
        (),
        brief="Make a new split of random rows.",
        metavar="NAME=1%",
    )
    hold_out_by: str | None = _source(
        "Keep rows with the same value of this column, such as a user or a document, in one split.",
        None,
        metavar="COLUMN",
    )
    dedup: str | None = _changed(
        "Keep only the first of several rows with the same text, per split. exact: ignore case, white space and "
        "Unicode forms (NFKC), except in lists of messages.",
        None,
        choices=("exact", "verbatim"),
    )
    dedup_across_splits: bool = _changed("Also leave out rows of train that another split has.", False)
    decontaminate: tuple[str, ...] = _source(
        "Leave out rows that share a run of words with this evaluation set. Repeatable.", (), metavar="DATASET[:COLUMN]"
    )
    decontaminate_words: int = _source("Words in a run for --decontaminate.", 13, least=1)
    text_columns: tuple[str, ...] = _stored(
        "Column of texts, or a field such as translation.en; twice for pairs. Default: text.",
        ("text",),
        brief="Column of texts; twice for pairs.",
        flags="--text-column",
        metavar="NAME",
    )
    label_column: str | None = _stored(
        "Column of labels: classes, strings, integers, floats, or lists of classes.",
        None,
        brief="Column of labels.",
        metavar="NAME",
    )
    label_classes: bool = _changed("Make each distinct number of --label-column a class.", False)
    keep_columns: tuple[str, ...] = _stored(
        "Column of numbers, vectors, strings or bytes to store with each row. Repeatable.",
        (),
        brief="Column to store with each row.",
        flags="--keep-column",
        metavar="NAME",
    )
    limit: int | None = _source(
        "Use only the first ROWS rows of each split.",
        None,
        brief="Use only the first ROWS rows.",
        metavar="ROWS",
        least=1,
    )
    messages_column: str | None = _column("Column of conversations. Default: messages or conversations.", "chat")
    tools_column: str | None = _column("Column of tools for the chat template. Default: tools.", "chat", "preference")
    system_column: str | None = _column("Column of system messages. Default: system.", "chat", "preference")
    prompt_column: str | None = _column("Column of prompts. Default: prompt or instruction.", "chat", "preference")
    completion_column: str | None = _column("Column of answers to the prompts. Default: completion.", "chat")
    chosen_column: str | None = _column("Column of preferred answers. Default: chosen.", "preference")
    rejected_column: str | None = _column("Column of rejected answers. Default: rejected.", "preference")
    target_column: str | None = _column("Column of texts to generate.", "seq2seq", brief="Column of texts to generate.")
    words_column: str | None = _column("Column of lists of words. Default: tokens.", "tokens")
    tags_column: str | None = _column("Column of the words' tags. Default: tags.", "tokens")
    answers_column: str | None = _column("Column of answers, with --layout qa. Default: answers.", "qa")

    def __post_init__(self) -> None:
        if not self.dataset:
            raise ConfigError("DATASET is empty, expected a Hub id, a path or a glob", remedy="name the dataset")
        if not 1 <= len(self.text_columns) <= 2:
            raise ConfigError(
                f"{len(self.text_columns)} text columns, expected one, or two for pairs",
                remedy="give --text-column once or twice",
            )
        check(self)
        for text in self.source_options:
            if not re.match(r"[^\W\d]\w*=", text):
                raise ConfigError(
                    f"--source-option {text!r}, expected KEY=VALUE",
                    remedy="write for example --source-option delimiter=';'",
                )
        needs = {
            "label_classes": ("label_column", "name the column with --label-column"),
            "hold_out_by": ("hold_out", "add for example --hold-out validation=10%"),
            "dedup_across_splits": ("dedup", "add --dedup exact"),
        }
        for name, (needed, remedy) in needs.items():
            if getattr(self, name) and not getattr(self, needed):
                flag, missing = (f"--{field.replace('_', '-')}" for field in (name, needed))
                raise ConfigError(f"{flag} without {missing}", remedy=remedy)
        if isinstance(self.hold_out, str):
            object.__setattr__(self, "hold_out", (self.hold_out,))
        for text in self.splits:
            parse_split(text)
        if repeated := _repeated([option.name for option in self.hold_outs]):
            raise ConfigError(
                f"--hold-out names the new split {repeated[0]!r} twice, expected each new split once",
                remedy="give it one share of the rows, or choose another name",
            )
        if repeated := _repeated(self.named_columns):
            raise ConfigError(
                f"column {repeated[0]!r} is used more than once, expected each column in one option",
                remedy="name each column once",
            )

    @property
    def named_columns(self) -> list[str]:
        single = [self.label_column, *(getattr(self, name) for name in LAYOUT_COLUMNS)]
        # Layouts with these columns read no text column, so these may have its default name.
        replacing = ("messages", "prompt", "completion", "chosen", "rejected", "words")
        texts = () if any(getattr(self, f"{name}_column") for name in replacing) else self.text_columns
        return [*texts, *filter(None, single), *self.keep_columns]

    @property
    def hold_outs(self) -> tuple[HoldOutOption, ...]:
        return tuple(map(HoldOutOption.parse, self.hold_out))


LAYOUT_COLUMNS = tuple(option.field for option in declared(SourceConfig) if option.taken_with)


def _repeated(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})
