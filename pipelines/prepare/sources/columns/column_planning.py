"""Plan which columns to read and how to use them, from the schemas of all splits."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.suggestions import suggestion
from pipelines.prepare.sources.columns import chats, labels
from pipelines.prepare.sources.columns.chats import ColumnFinder
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Inputs, Purpose
from pipelines.prepare.sources.columns.labels import LabelPlan, is_text, list_lengths, type_name, with_names
from pipelines.prepare.sources.columns.messages import is_json
from pipelines.prepare.sources.parquet.stored_columns import is_list
from pipelines.prepare.sources.resolve.features import Columns
from pipelines.prepare.sources.rows.reading import Source, SplitSource
from tfrecord_io.errors import ColumnError
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import DType, Feature
from tfrecord_io.shown import some

Plan = TypeVar("Plan")

_RECORDS = "the file seems to be from to_json() of pandas: write it with orient='records', lines=True"
_NO_MEDIA = "images, audio and video are not prepared: write their texts, such as captions, into a column"
_SEPARATED = ("csv", "tsv")


def plan_types(
    config: SourceConfig, columns: Mapping[str, Columns], *, kind: str, inputs: Inputs | None = None
) -> ColumnPlan:
    """Plan which columns to read, from their types. `plan_columns` adds the classes and vector lengths in the rows.

    `columns`: by split. `inputs`: the columns that become tokens, by default those of --text-column. `kind`: see
    `Source.kind`. Raises: ColumnError.
    """
    inputs = inputs or Inputs(texts=config.text_columns)
    columns = {split: known.with_fields() for split, known in columns.items()}
    if inputs.finder is not None:
        inputs = _find_nested(inputs, inputs.finder, list(columns.values()))
    for split, known in columns.items():
        _require(config, known.arrow_schema, split=split, kind=kind, inputs=inputs)
    form = inputs.finder.describe(inputs.nested, next(iter(columns.values()))) if inputs.finder else ""
    plan_label = functools.partial(labels.plan_label, classes=config.label_classes)
    plan_tags = functools.partial(labels.plan_label, tags=True)
    return ColumnPlan(
        texts=inputs.texts,
        nested=inputs.nested,
        chats=form + ", joined as texts" * inputs.joins_pairs,
        joins_pairs=inputs.joins_pairs,
        label=_same(plan_label, config.label_column, columns) if config.label_column else None,
        tags=_same(plan_tags, inputs.nested["tags"], columns) if "tags" in inputs.nested else None,
        kept=tuple(_same(_kept_type, name, columns) for name in config.keep_columns),
    )


def _find_nested(inputs: Inputs, finder: ColumnFinder, splits: Sequence[Columns]) -> Inputs:
    nested = {**finder.find(splits, inputs.nested), **inputs.nested}
    required = nested.keys() - {*chats.OPTIONAL}
    joins_pairs = (
        inputs.joins_pairs
        and required <= {*finder.texts}
        and all(name in known for name in nested.values() for known in splits)  # otherwise `_require` raises
        and all(is_text(known[nested[purpose]].kind) for purpose in required for known in splits)
    )
    if joins_pairs and (unused := [purpose for purpose in inputs.nested if purpose not in finder.texts]):
        option = f"--{unused[0]}-column {inputs.nested[unused[0]]}"
        raise ColumnError(
            f"{option} with prompts and answers as texts, expected conversations",
            remedy="add --chat-template default, or the name or file of another chat template",
        )
    nested = {name: nested[name] for name in finder.texts if name in nested} if joins_pairs else nested
    return dataclasses.replace(inputs, nested=nested, joins_pairs=joins_pairs)


def plan_columns(
    config: SourceConfig, source: Source, *, inputs: Inputs | None = None, plan: ColumnPlan | None = None
) -> ColumnPlan:
    """Plan which columns to read, like `plan_types`, and read their classes and vector lengths from the rows."""
    if plan is None:
        columns = {name: source.columns_of(split) for name, split in source.splits.items()}
        plan = plan_types(config, columns, kind=source.kind, inputs=inputs)
    return dataclasses.replace(
        plan,
        label=plan.label and with_names(plan.label, source=source),
        tags=plan.tags and with_names(plan.tags, source=source),
        kept=tuple(_with_length(feature, source=source) for feature in plan.kept),
    )


def complete_from_manifest(plan: ColumnPlan, manifest: Manifest) -> ColumnPlan:
    """Return a `plan` of `plan_types` with the classes and vector lengths in a finished dataset's manifest."""

    def named(label: LabelPlan | None) -> LabelPlan | None:
        if label is None or not label.from_rows:
            return label
        if manifest.label_names is None:
            return dataclasses.replace(label, kind="hot", size=manifest.multi_hot_size)
        return dataclasses.replace(label, names=manifest.label_names)

    shapes = {feature.name: feature.shape for feature in manifest.schema.features}
    kept = tuple(dataclasses.replace(column, shape=shapes.get(column.name, column.shape)) for column in plan.kept)
    return dataclasses.replace(plan, label=named(plan.label), tags=named(plan.tags), kept=kept)


def _require(config: SourceConfig, schema: pa.Schema, *, split: str, kind: str, inputs: Inputs) -> None:
    finder = inputs.finder
    wanted = (*inputs.names, *filter(None, (config.label_column, config.hold_out_by)), *config.keep_columns)
    missing = [name for name in wanted if name not in schema.names]
    if missing:
        raise ColumnError(
            f"split {split!r} has no column {', '.join(map(repr, missing))}",
            remedy=_missing_remedy(missing, schema=schema, kind=kind, of_texts=missing[0] in inputs.texts)
            + (f"; {finder.remedy}" if finder and not {*finder.candidates}.isdisjoint(missing) else ""),
        )
    choose_text = _choice("text", schema, is_text)
    for name in inputs.texts:
        stored, place = schema.field(name).type, f"split {split!r}: column {name!r}"
        if _is_within_media(schema, name):
            remedy = f"{_NO_MEDIA}; {choose_text}"
            raise ColumnError(f"{place} holds the names of images or sounds, expected text", remedy=remedy)
        if not is_text(stored):
            remedy = _RECORDS if _is_frame(stored) else choose_text
            raise ColumnError(f"{place} holds {type_name(stored)}, expected text", remedy=remedy)
    for purpose, name in inputs.nested.items():
        (fits, expected), stored = _NESTED[purpose], schema.field(name).type
        if not fits(stored):
            cause = f"split {split!r}: column {name!r} holds {type_name(stored)}, expected {expected}"
            remedy = "name a column of messages with --messages-column"
            if hasattr(config, f"{purpose}_column"):
                remedy = _choice(purpose, schema, fits)
            raise ColumnError(cause, remedy=remedy)


def repeated_in_header(columns: Iterable[Columns], *, kind: str) -> set[str]:
    """Return the names that occur several times in a CSV header. pandas renames the second `text` to `text.1`."""
    return {name for known in columns for name in known if kind in _SEPARATED and f"{name}.1" in known}


def _missing_remedy(missing: Sequence[str], *, schema: pa.Schema, kind: str, of_texts: bool) -> str:
    names = schema.names
    parts = [part.strip() for part in missing[0].split(",")]
    if len(parts) > 1 and set(parts) <= set(names):
        return f"name each column separately: {' '.join(f'--text-column {part}' for part in parts)}"
    if kind in _SEPARATED and len(names) == 1 and (match := re.search(r"[;\t|]", names[0])):
        sign = "\\t" if match[0] == "\t" else match[0]
        return f"add --source-option delimiter='{sign}': the header line has a single name, {names[0]!r}"
    for field in schema if kind == "json" else ():
        if _is_list_of(_is_struct_with(**dict.fromkeys(missing, lambda _: True)))(field.type):
            return f"add --source-option field={field.name}: the rows seem to be inside {field.name!r}"
    if kind == "json" and {"columns", "index", "data"} <= set(names):
        return _RECORDS
    if kind == "json" and "data" in names:
        inside = "if the rows are inside 'data', as in SQuAD's own files, add --source-option field=data"
        return f"choose among its columns: {', '.join(names)}; {inside}"
    listed = f"{suggestion(missing[0], names)}choose among its columns: {', '.join(names)}"
    if of_texts:
        texts = [field.name for field in schema if is_text(field.type) and not _is_within_media(schema, field.name)]
        if any(_is_media(schema, name) for name in names) and not texts:
            return _NO_MEDIA
        if advice := chats.layout_advice(names):
            return advice
        listed += f"; name its text with --text-column {texts[0] if len(texts) == 1 else 'NAME'}"
    if kind in _SEPARATED and any(re.fullmatch(r"-?[\d.]+", name) for name in names):
        return f'{listed}; if the file has no header line, add --source-option names=\'["text", "label"]\''
    return listed


def _same(plan_of: Callable[[str, Columns], Plan], column: str, columns: Mapping[str, Columns]) -> Plan:
    (first, plan), *others = ((split, plan_of(column, known)) for split, known in columns.items())
    for split, split_plan in others:
        if split_plan != plan:
            texts = [columns[name][column].text for name in (first, split)]
            raise ColumnError(
                f"column {column!r} is {texts[0]} in split {first!r}, but {texts[1]} in split {split!r}, expected the "
                "same in both",
                remedy="build each split with --split into a separate --output, or convert the column to one type",
            )
    return plan


def _kept_type(name: str, columns: Columns) -> Feature:
    kind = columns[name].kind
    shape: tuple[int, ...] = ()
    # Length 1 is a placeholder until `_with_length` reads rows.
    if is_list(kind) and _dtype(kind.value_type) in ("int64", "float32"):
        kind, shape = kind.value_type, (kind.list_size if pa.types.is_fixed_size_list(kind) else 1,)
    if (dtype := _dtype(kind)) is None:
        raise ColumnError(
            f"column {name!r} holds {type_name(kind)}, expected numbers, strings, bytes, or vectors of numbers of one "
            "length",
            remedy=_choice("keep", columns.arrow_schema, _dtype),
        )
    return Feature(name=name, dtype=dtype, shape=shape, role="column", meaning="column of the source")


def _with_length(feature: Feature, *, source: Source) -> Feature:
    kinds = [source.columns_of(split)[feature.name].kind for split in source.splits.values()]
    if not any(map(is_list, kinds)) or pa.types.is_fixed_size_list(kinds[0]):
        return feature
    by_split = {name: _first_length(feature.name, split=split) for name, split in source.splits.items()}
    if len(lengths := set(by_split.values())) > 1:
        listed = ", ".join(f"of {some(length, 'value')} in split {name!r}" for name, length in by_split.items())
        raise ColumnError(
            f"column {feature.name!r} holds vectors {listed}, expected one length in all splits",
            remedy="build each split with --split into a separate --output, or make all vectors equally long",
        )
    return dataclasses.replace(feature, shape=(lengths.pop(),))


def _first_length(name: str, *, split: SplitSource) -> int:
    for _, batch in split.read(split.ranges, [name]):
        if len(filled := (lengths := list_lengths(batch.column(0)))[lengths > 0]):
            return int(filled[0])
    raise ColumnError(f"column {name!r} holds only empty vectors", remedy=f"leave --keep-column {name} out")


def _dtype(kind: pa.DataType) -> DType | None:
    if is_text(kind):
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "bytes"
    if pa.types.is_floating(kind):
        return "float32"
    return "int64" if pa.types.is_integer(kind) or pa.types.is_boolean(kind) else None


def _is_list_of(fits: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: is_list(kind) and not pa.types.is_fixed_size_list(kind) and fits(kind.value_type)


def _is_struct_with(**fields: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: bool(
        pa.types.is_struct(kind)
        and all(kind.get_field_index(name) >= 0 and fits(kind.field(name).type) for name, fits in fields.items())
    )


def _is_frame(kind: pa.DataType) -> bool:
    # By default, `DataFrame.to_json` writes each column as an object with one field per row.
    return bool(pa.types.is_struct(kind) and kind.num_fields and all(field.name.isdigit() for field in kind))


def _is_media(schema: pa.Schema, name: str) -> bool:
    if (index := schema.get_field_index(name)) < 0 or not pa.types.is_struct(kind := schema.field(index).type):
        return False
    return {field.name for field in kind} == {"bytes", "path"}


def _is_within_media(schema: pa.Schema, name: str) -> bool:
    return _is_media(schema, name.rpartition(".")[0])


def _is_message_list(kind: pa.DataType) -> bool:
    is_message = _is_list_of(lambda item: _is_struct_with(role=is_text)(item) or is_json(item))
    return is_message(kind) or chats.is_sharegpt(kind)


def _is_chat_part(kind: pa.DataType) -> bool:
    return is_text(kind) or _is_message_list(kind)


def _is_answer(kind: pa.DataType) -> bool:
    is_message = pa.types.is_struct(kind) and not {field.name for field in kind}.isdisjoint(("role", "from"))
    return _is_chat_part(kind) or is_message


_NESTED: dict[Purpose, tuple[Callable[[pa.DataType], bool], str]] = {
    "target": (is_text, "text"),
    "messages": (_is_message_list, "lists of messages with a role and a content, or with from and value"),
    "prompt": (_is_chat_part, "text, or lists of messages"),
    "completion": (_is_chat_part, "text, or lists of messages"),
    **dict.fromkeys(("chosen", "rejected"), (_is_answer, "text, a message, or lists of messages")),
    **dict.fromkeys(("instruction", "output"), (is_text, "text")),
    **dict.fromkeys(("tools", "options", "input", "system", "history"), (lambda kind: True, "anything")),
    "words": (_is_list_of(is_text), "lists of words"),
    "tags": (_is_list_of(lambda kind: is_text(kind) or pa.types.is_integer(kind)), "lists of class ids or strings"),
    "answers": (
        _is_struct_with(text=_is_list_of(is_text), answer_start=_is_list_of(pa.types.is_integer)),
        "answers with lists of text and answer_start",
    ),
}


def _choice(purpose: str, schema: pa.Schema, accepts: Callable[[pa.DataType], object]) -> str:
    fitting = [field.name for field in schema if accepts(field.type) and not _is_within_media(schema, field.name)]
    if not fitting:
        return f"no column of this dataset fits --{purpose}-column; convert one with a --map"
    return f"choose another --{purpose}-column: {', '.join(fitting)}"
