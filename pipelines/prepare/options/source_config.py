"""Options that say which rows to read: dataset, splits, columns and the user's own functions."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from typing import Any, Literal, NamedTuple, get_args

from pipelines.prepare.options.split_options import HoldOutOption, SplitOption
from pipelines.terminal.option_fields import check, layouts_by_field, option
from tfrecord_io.errors import ConfigError

__all__ = [
    "LAYOUT_COLUMNS",
    "READY",
    "SAMPLES",
    "SOURCE_OPTIONS",
    "CalledFunction",
    "FunctionKind",
    "FunctionOption",
    "SourceConfig",
]

FunctionKind = Literal["map", "filter"]

# Options that say how `datasets` reads the files.
SOURCE_OPTIONS = ("format", "data_files", "source_options", "sample_by")

# What a row of a text file can be.
SAMPLES = ("line", "paragraph", "document")

_source = functools.partial(option, group="Source")

# Functions that need no name of a module.
_READY_MODULE = "pipelines.filters"
READY: dict[FunctionKind, tuple[str, ...]] = {
    "map": ("fix_text", "mask_pii"),
    "filter": ("c4_quality", "gopher_quality", "gopher_repetition", "language", "length"),
}
_FUNCTION = re.compile(r"(?:(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):)?(?P<name>[^\W\d]\w*)(?:\((?P<given>.*)\))?\Z")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FunctionOption:
    """One `--map` or `--filter`: a function of the user's, named by `spec` as `package.module:function`, or a ready one
    by its name. Arguments may follow, as in `language(en, at_least=0.8)`.

    `source` is the text of a module with it, None if the module is a file.
    """

    kind: FunctionKind
    spec: str
    source: str | None = None

    def __post_init__(self) -> None:
        found = _FUNCTION.match(self.spec) if self.kind in get_args(FunctionKind) else None
        if found is None or not (found["module"] or found["name"] in READY[self.kind]):
            ready = ", ".join(READY.get(self.kind, ()))
            raise ConfigError(
                f"--{self.kind} {self.spec!r}, expected package.module:function, or one of {ready}",
                remedy=f"write for example --{self.kind} clean:{self.kind}_rows for a function in ./clean.py",
            )


class CalledFunction(NamedTuple):
    """What a spec says: module and name of a function, and the arguments that it gets after the table."""

    module: str
    name: str
    arguments: tuple[str | float, ...]
    keywords: dict[str, str | float]

    @property
    def is_ready(self) -> bool:
        """Return whether it is a function of `pipelines.filters`."""
        return self.module == _READY_MODULE

    @classmethod
    def of(cls, spec: str) -> CalledFunction:
        """Parse the spec of a FunctionOption. An argument is a number if it looks like one, and else text."""
        found = _FUNCTION.match(spec)
        assert found is not None, "FunctionOption checks it"
        given = [each.strip() for each in found["given"].split(",")] if found["given"] else []
        named = dict(each.split("=", 1) for each in given if "=" in each)
        return cls(
            found["module"] or _READY_MODULE,
            found["name"],
            tuple(_value(each) for each in given if "=" not in each),
            {name.strip(): _value(value.strip()) for name, value in named.items()},
        )


def _column(text: str, *, layout: str) -> Any:
    """Declare the option for a column that only one layout takes."""
    return option(
        text, default=None, group=f"Layout {layout}", metavar="NAME", layouts=(layout,), fingerprint="changed"
    )


def _value(text: str) -> str | float:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text.strip("'\"")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Which rows to read.

    `dataset` is a hub id, a path, a glob or a folder; `more_paths` are further files of the same dataset.
    `object_splits`: the splits of an object whose parts are in the folder `dataset` (see `ingest.objects`). `functions`
    are applied in this order. A column that only some layouts take is None for the layout's own default. `hold_out` is
    explained in `split_options`; no row is in two splits, nor is a value of column `hold_out_by`.
    """

    dataset: str
    more_paths: tuple[str, ...] = ()
    object_splits: tuple[str, ...] = ()
    functions: tuple[FunctionOption, ...] = ()
    config: str | None = _source("Configuration of a hub dataset.", None, metavar="NAME")
    revision: str | None = _source("Branch, tag or commit of a hub dataset; pinned once.", None, metavar="REV")
    format: str | None = _source(
        "Reader of `datasets`, such as json, csv, text or webdataset. Default: by the names of the files.",
        None,
        metavar="READER",
    )
    data_files: tuple[str, ...] = _source(
        "Files of the dataset to read, and their split; train by default. Repeatable.", (), metavar="[SPLIT=]PATTERN"
    )
    source_options: tuple[str, ...] = _source(
        "Option of the reader, such as delimiter=';' of csv or field=data of json. Repeatable.",
        (),
        flags="--source-option",
        metavar="KEY=VALUE",
    )
    sample_by: str | None = _source("What a row of text files is. Default: line.", None, choices=SAMPLES)
    splits: tuple[str, ...] = _source(
        "Split, or slice such as 'train[:1%]', with a new name if you like. Repeatable. Default: all.",
        (),
        flags="--split",
        metavar="[NAME=]SPLIT",
    )
    hold_out: str | tuple[str, ...] = _source(
        "Make a new split of random rows, also as NAME=0.01, NAME=ROWS or NAME=SPLIT:1%. Repeatable.",
        (),
        metavar="NAME=1%",
    )
    hold_out_by: str | None = _source(
        "Keep rows with the same value of this column, such as a user or a document, in one split.",
        None,
        metavar="COLUMN",
    )
    dedup: str | None = _source(
        "Of rows with the same text in a split keep the first. exact: in NFKC, whatever case and white space.",
        None,
        choices=("exact", "verbatim"),
        fingerprint="changed",
    )
    dedup_across_splits: bool = _source("Rows of other splits leave train, too.", False, fingerprint="changed")
    decontaminate: tuple[str, ...] = _source(
        "Leave out rows that share a run of words with this evaluation set. Repeatable.", (), metavar="DATASET[:COLUMN]"
    )
    decontaminate_words: int = _source("Length of such a run.", 13, metavar="N", least=1, remedy="leave it out for 13")
    text_columns: tuple[str, ...] = _source(
        "Column of texts, or a field such as translation.en; two for pairs. Default: text.",
        ("text",),
        flags="--text-column",
        metavar="NAME",
        fingerprint="always",
    )
    label_column: str | None = _source(
        "Column of class labels, strings, integers, or floats, or of lists of classes.",
        None,
        metavar="NAME",
        fingerprint="always",
    )
    label_classes: bool = _source("Make each distinct number of --label-column a class.", False, fingerprint="changed")
    keep_columns: tuple[str, ...] = _source(
        "Column of numbers, vectors, strings or bytes to store with each row. Repeatable.",
        (),
        flags="--keep-column",
        metavar="NAME",
        fingerprint="always",
    )
    limit: int | None = _source(
        "Use only the first ROWS rows of each split.",
        None,
        metavar="ROWS",
        least=1,
        remedy="leave --limit out to use every row",
    )
    messages_column: str | None = _column("Column of conversations. Default: the usual names.", layout="chat")
    tools_column: str | None = _column("Column of tools for the chat template.", layout="chat")
    target_column: str | None = _column("Column of texts to generate.", layout="seq2seq")
    words_column: str | None = _column("Column of lists of words. Default: tokens.", layout="tokens")
    tags_column: str | None = _column("Column of the words' tags. Default: tags.", layout="tokens")
    answers_column: str | None = _column("Column of answers, with --layout qa. Default: answers.", layout="qa")

    def __post_init__(self) -> None:
        if not self.dataset:
            raise ConfigError("DATASET is empty, expected a hub id, a path or a glob", remedy="name the dataset")
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
                flag, missing = (f"--{each.replace('_', '-')}" for each in (name, needed))
                raise ConfigError(f"{flag} without {missing}", remedy=remedy)
        self._check_splits()
        self._check_columns()

    def _check_columns(self) -> None:
        single = [self.label_column, *(getattr(self, name) for name in LAYOUT_COLUMNS)]
        # Layouts with these columns read no text column, so they may use the name that is its default.
        texts = () if self.messages_column or self.words_column else self.text_columns
        used = [*texts, *filter(None, single), *self.keep_columns]
        if repeated := sorted({name for name in used if used.count(name) > 1}):
            raise ConfigError(
                f"columns {repeated} are used more than once, expected each column in one option",
                remedy="name each column once",
            )

    def _check_splits(self) -> None:
        if isinstance(self.hold_out, str):
            object.__setattr__(self, "hold_out", (self.hold_out,))
        for text in self.splits:
            SplitOption.parse(text)
        names = [option.name for option in self.hold_outs]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"--hold-out names the new split {repeated[0]!r} twice, expected each new split once",
                remedy="give it one share of the rows, or choose another name",
            )

    @property
    def hold_outs(self) -> tuple[HoldOutOption, ...]:
        """The parsed `hold_out` options."""
        return tuple(map(HoldOutOption.parse, self.hold_out))


# The layouts that take each column that not all of them take.
LAYOUT_COLUMNS = layouts_by_field(SourceConfig)
