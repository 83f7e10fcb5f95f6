"""Extract texts, label ids and kept columns from record batches, and find rows that can't be used.

docs/format.md lists the reasons. They depend only on columns here, so rejected rows can be counted before tokenizing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.sources.columns import chats, labels, preferences
from pipelines.prepare.sources.columns.labels import LabelPlan, is_text, items_of, list_lengths, null_mask
from pipelines.prepare.sources.columns.messages import is_json
from pipelines.prepare.sources.parquet.stored_columns import is_list
from pipelines.prepare.sources.rows import unused_rows
from tfrecord_io.errors import SourceError
from tfrecord_io.schema import MOST_VALUE_BYTES, Feature

ChatPurpose = Literal["messages", "tools", "options", "prompt", "completion", "instruction", "input", "output"]
Purpose = Literal[ChatPurpose, "system", "history", "chosen", "rejected", "words", "tags", "answers", "target"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """Columns that become tokens: text columns, and nested columns by purpose, such as `messages`.

    `finder`: finds the columns that `nested` lacks, by their names.
    `joins_pairs`: prompts and answers that are texts are not converted to messages.
    """

    texts: tuple[str, ...] = ()
    nested: Mapping[Purpose, str] = dataclasses.field(default_factory=dict)
    finder: chats.ColumnFinder | None = None
    joins_pairs: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.texts, *self.nested.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnPlan:
    """Columns to read, by use.

    `nested`, `joins_pairs`: as in `Inputs`. `kept`: columns copied to the output. `tags`: labels of words. `chats`: the
    conversations' format and columns, such as `ShareGPT (conversations)`.
    """

    texts: tuple[str, ...]
    nested: Mapping[Purpose, str] = dataclasses.field(default_factory=dict)
    label: LabelPlan | None = None
    kept: tuple[Feature, ...] = ()
    tags: LabelPlan | None = None
    chats: str = ""
    joins_pairs: bool = False

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Class names of the labels or word tags, or None."""
        plan = self.label or self.tags
        return plan.names if plan else None

    @property
    def names(self) -> tuple[str, ...]:
        label = (self.label.column,) if self.label else ()
        return (*self.content, *label, *(feature.name for feature in self.kept))

    @property
    def content(self) -> tuple[str, ...]:
        return (*self.texts, *self.nested.values())

    @property
    def flags(self) -> str:
        """Options that name these columns, such as `--text-column, --label-column`."""
        uses = ["text"] if self.texts else []
        required = [purpose for purpose in self.nested if purpose not in chats.OPTIONAL]
        uses += ["messages" if purpose in ("instruction", "output") else purpose for purpose in required]
        return ", ".join(f"--{use}-column" for use in dict.fromkeys([*uses, *["label"] * bool(self.label)]))

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the columns that may be null, such as `tools`."""
        return tuple(name for purpose, name in self.nested.items() if purpose in chats.OPTIONAL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """N usable rows.

    `texts`: for each text column, N valid UTF-8 strings without nulls. `arrays`: labels and kept columns by feature
    name, each [N, ...]. `nested`: columns by purpose; only optional columns have null rows. `numbers`: row numbers,
    int64 [N].
    """

    texts: tuple[pa.Array, ...]
    arrays: dict[str, np.ndarray]
    nested: Mapping[Purpose, pa.Array] = dataclasses.field(default_factory=dict)
    numbers: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    split: str = ""

    def __len__(self) -> int:
        return len(next(iter((*self.texts, *self.nested.values()))))

    def take(self, which: np.ndarray) -> Rows:
        """Return the rows at the indices `which`, with empty `arrays`."""
        indices = pa.array(which)
        return dataclasses.replace(
            self,
            texts=tuple(column.take(indices) for column in self.texts),
            arrays={},
            nested={purpose: column.take(indices) for purpose, column in self.nested.items()},
            numbers=self.numbers[which] if len(self.numbers) else self.numbers,
        )


def validate(batch: pa.RecordBatch, plan: ColumnPlan) -> np.ndarray:
    """Return the reason why each of N rows is left out, str objects [N], '' for usable rows. Texts are not read."""
    reasons = np.full(batch.num_rows, "", dtype=object)
    for feature in reversed(plan.kept):
        _reject_kept(reasons, batch.column(feature.name), feature)
    if plan.label is not None:
        labels.reject_labels(reasons, batch.column(plan.label.column), plan.label)
    if plan.tags is not None:
        labels.reject_tags(reasons, batch.column(plan.nested["words"]), batch.column(plan.tags.column), plan.tags)
    for purpose, name in plan.nested.items():
        if name not in plan.optional:
            reasons[null_mask(batch.column(name))] = f"{purpose}_null"
    for name in plan.texts:
        reasons[null_mask(batch.column(name))] = "text_null"
    if (filtered := unused_rows.reasons_of(batch)) is not None:
        reasons = np.where(filtered == "", reasons, filtered)
    return reasons


def extract(
    batch: pa.RecordBatch, plan: ColumnPlan, *, numbers: np.ndarray | None = None, split: str = ""
) -> tuple[Rows, np.ndarray]:
    """Return the usable rows of a batch, and the result of `validate`.

    `numbers`: the row numbers in `split`, int64 [N], by default 0 to N - 1. Raises: SourceError if a text is not UTF-8.
    """
    reasons = validate(batch, plan)
    if reasons.any():
        batch = batch.filter(pa.array(reasons == ""))
    arrays: dict[str, np.ndarray] = {}
    if plan.label is not None:
        arrays["label"] = labels.label_values(batch.column(plan.label.column), plan.label)
    for feature in plan.kept:
        column = batch.column(feature.name)
        if feature.is_bytes:
            column = _utf8(column, feature.name)
        values = np.asarray(items_of(column)[0])
        arrays[feature.name] = values.astype(feature.array_dtype).reshape(len(column), *feature.shape)
    nested = {purpose: _utf8(batch.column(name), name) for purpose, name in plan.nested.items()}
    as_messages = preferences.as_pairs if "chosen" in nested else chats.as_messages
    rows = Rows(
        texts=tuple(_utf8(batch.column(name), name) for name in plan.texts),
        arrays=arrays,
        nested=nested if plan.joins_pairs else as_messages(nested),
        numbers=np.flatnonzero(reasons == "") if numbers is None else numbers[reasons == ""],
        split=split,
    )
    return rows, reasons


def text_bytes_of(batch: pa.RecordBatch, columns: Sequence[str]) -> np.ndarray:
    """Return the size of each row's texts in UTF-8 bytes, int64 [N], without reading the texts."""
    return sum((_text_bytes(batch.column(name)) for name in columns), np.zeros(batch.num_rows, np.int64))


def _text_bytes(column: pa.Array) -> np.ndarray:
    if is_text(column.type):
        return np.asarray(pc.binary_length(column).fill_null(0))
    if pa.types.is_struct(column.type):
        parts = [_text_bytes(column.field(index)) for index in range(column.type.num_fields)]
        return np.sum([np.zeros(len(column), np.int64), *parts], axis=0) * ~null_mask(column)
    if is_list(column.type):
        lengths = list_lengths(column)
        ends = np.cumsum(lengths)
        along = np.concatenate([[0], np.cumsum(_text_bytes(column.flatten()))])
        return np.asarray(along[ends] - along[ends - lengths])
    if is_json(column.type):
        return _text_bytes(column.storage)
    return np.zeros(len(column), np.int64)


def _utf8(column: pa.Array, name: str) -> pa.Array:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            labels.decode_texts(column, name)  # raises an error that names the text
        raise SourceError(
            f"column {name!r} holds damaged values ({error})",
            remedy="check that the source is complete, and run the same command again",
        ) from error
    return column


def _reject_kept(reasons: np.ndarray, column: pa.Array, feature: Feature) -> None:
    values, owners = items_of(column)
    if feature.is_bytes:
        reasons[np.asarray(pc.binary_length(column).fill_null(0)) > MOST_VALUE_BYTES] = "column_too_long"
    if feature.shape:
        reasons[list_lengths(column) != feature.shape[0]] = "column_length"
    if feature.dtype == "int64" and not pa.types.is_boolean(values.type):
        reasons[owners[labels.outside_range(values, *labels.INT32)]] = "int_out_of_range"
    elif feature.dtype == "float32":
        reasons[owners[labels.overflows_float32(values)]] = "float_out_of_range"
    reasons[owners[np.asarray(values.is_null())]] = "column_null"
    reasons[np.asarray(column.is_null())] = "column_null"
