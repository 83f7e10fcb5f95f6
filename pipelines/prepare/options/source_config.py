"""Options that say which rows to read: dataset, splits, columns and the user's own functions."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from typing import Literal, NamedTuple, get_args

from pipelines.prepare.options.layout_traits import LAYOUT_COLUMNS
from pipelines.prepare.options.split_options import HoldOutOption, SplitOption
from tfrecord_io.errors import ConfigError

__all__ = ["READY", "SAMPLES", "SOURCE_OPTIONS", "CalledFunction", "FunctionKind", "FunctionOption", "SourceConfig"]

FunctionKind = Literal["map", "filter"]

# Options that say how `datasets` reads the files.
SOURCE_OPTIONS = ("format", "data_files", "source_options", "sample_by")

# What a row of a text file can be.
SAMPLES = ("line", "paragraph", "document")

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
        """Whether it is a function of `pipelines.filters`."""
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


def _value(text: str) -> str | float:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text.strip("'\"")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Which rows to read.

    `dataset` is a hub id, a path, a glob or a folder; `more_paths` are further files of the same dataset. `format` is
    the reader of `datasets`, `data_files` are patterns such as `test=*.csv`, `source_options` are KEY=VALUE for the
    reader, and `sample_by` is what a row of text files is: a line, a paragraph or a document. `object_splits`: the
    splits of an object whose parts are in the folder `dataset` (see `ingest.objects`). `splits` are those to make,
    empty for all of them. `label_classes`: each distinct number of the label column is a class.
    `hold_out` defines new splits with rows of another, such as `validation=1%` (see `split_options`); no row is in two
    of them, nor is a value of column `hold_out_by`. A column that only some layouts take is None for the layout's own
    default. `functions` are applied in this order. `dedup`: of rows with the same text the first stays; `decontaminate`
    are evaluation sets, DATASET[:COLUMN], whose runs of `decontaminate_words` words no row may have.
    """

    dataset: str
    more_paths: tuple[str, ...] = ()
    config: str | None = None
    revision: str | None = None
    format: str | None = None
    data_files: tuple[str, ...] = ()
    source_options: tuple[str, ...] = ()
    sample_by: str | None = None
    object_splits: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    text_columns: tuple[str, ...] = ("text",)
    label_column: str | None = None
    label_classes: bool = False
    keep_columns: tuple[str, ...] = ()
    limit: int | None = None
    hold_out: str | tuple[str, ...] = ()
    hold_out_by: str | None = None
    dedup: str | None = None
    dedup_across_splits: bool = False
    decontaminate: tuple[str, ...] = ()
    decontaminate_words: int = 13
    functions: tuple[FunctionOption, ...] = ()
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
        if self.label_classes and self.label_column is None:
            raise ConfigError("--label-classes without --label-column", remedy="name the column with --label-column")
        self._check_splits()
        if self.dedup not in (None, "exact", "verbatim"):
            raise ConfigError(f"--dedup {self.dedup!r}, expected exact or verbatim", remedy="choose one of them")
        if self.dedup_across_splits and self.dedup is None:
            raise ConfigError("--dedup-across-splits without --dedup", remedy="add --dedup exact")
        if self.decontaminate_words < 1:
            raise ConfigError(
                f"--decontaminate-words {self.decontaminate_words}, expected at least 1", remedy="leave it out for 13"
            )
        for text in self.source_options:
            if not re.match(r"[^\W\d]\w*=", text):
                raise ConfigError(
                    f"--source-option {text!r}, expected KEY=VALUE",
                    remedy="write for example --source-option delimiter=';'",
                )
        if self.sample_by not in (None, *SAMPLES):
            raise ConfigError(
                f"--sample-by {self.sample_by!r}, expected one of {', '.join(SAMPLES)}", remedy="choose one of them"
            )
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
        if self.hold_out_by is not None and not self.hold_out:
            raise ConfigError("--hold-out-by without --hold-out", remedy="add for example --hold-out validation=10%")
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
