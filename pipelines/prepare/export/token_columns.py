"""Records without padding: values per token as ragged columns, and labels as Hugging Face trainers expect them.

Cross-entropy in PyTorch and `transformers` ignores the label -100.
"""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np

from pipelines.prepare.audit import invariants
from pipelines.prepare.audit.invariants import Columns
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import OF_TOKENS, ROLES, Schema

IGNORED = -100

_OF_DOCUMENTS = ("input_ids", "attention_mask", "labels")


@dataclasses.dataclass(frozen=True, eq=False)
class ExportedColumn:
    """Column of N rows: `values` [N, ...], or flat `values` with `counts`, int64 [N], values per row."""

    values: np.ndarray
    counts: np.ndarray | None = None


def _ragged(values: np.ndarray, chosen: np.ndarray, dtype: type[np.integer] = np.int32) -> ExportedColumn:
    flat = values.reshape(-1) if chosen.all() else values[chosen]
    return ExportedColumn(flat.astype(dtype), np.count_nonzero(chosen, axis=1))


def _segment_lengths(segment_ids: np.ndarray) -> ExportedColumn:
    tokens = segment_ids > 0
    begins = tokens.copy()
    begins[:, 1:] &= segment_ids[:, 1:] != segment_ids[:, :-1]
    edges = np.flatnonzero(begins.reshape(-1)[tokens.reshape(-1)])
    lengths = np.diff(edges, append=np.count_nonzero(tokens))
    return ExportedColumn(lengths.astype(np.int32), np.count_nonzero(begins, axis=1))


def unpadded(
    columns: Columns, manifest: Manifest, *, extra: tuple[str, ...], join_prompts: bool = False
) -> dict[str, ExportedColumn]:
    """Return the columns of records without padding. `extra`: columns to add even if other columns imply them.

    Preference pairs have chosen_ids, rejected_ids and, without `join_prompts`, prompt_ids. Other records have
    input_ids; labels, if some tokens are not learned or the record has a target; position_ids and seq_lengths, if rows
    are packed (as in TRL). All other features except constant ones keep their names.
    """
    schema = manifest.schema
    if schema.with_role("token_ids") is None:
        return _pairs(columns, manifest, join_prompts=join_prompts)
    tokens = ~invariants.padding(columns, manifest)
    ids = schema.values(columns, "token_ids")
    assert ids is not None, "the schema has token ids"
    inputs = _ragged(ids, tokens)
    exported = {"input_ids": inputs}
    if "attention_mask" in extra:
        exported["attention_mask"] = ExportedColumn(np.ones(len(inputs.values), np.int8), inputs.counts)
    if (labels := _labels(columns, schema, ids, tokens)) is not None:
        exported["labels"] = labels
    elif "labels" in extra:
        exported["labels"] = inputs
    if (segments := schema.values(columns, "segment_ids")) is not None:
        exported["seq_lengths"] = _segment_lengths(segments)
    for feature in schema.features:
        column = ROLES[feature.role].exported_as
        if column not in (None, "position_ids") or feature.constant is not None:
            continue
        values = columns[feature.name]
        if feature.role in ("start_position", "end_position"):
            values = np.where(values > 0, values - np.argmax(tokens, axis=1), 0)
        name = column or feature.name
        if name in exported:
            name = f"{name}_"
        exported[name] = _ragged(values, tokens) if feature.role in OF_TOKENS else ExportedColumn(values)
    return exported


def _pairs(columns: Columns, manifest: Manifest, *, join_prompts: bool) -> dict[str, ExportedColumn]:
    schema, exported = manifest.schema, dict[str, ExportedColumn]()
    prompts = []
    for feature in schema.token_features:
        spec, learned = ROLES[feature.role], schema.loss_mask_of(ROLES[feature.role].side)
        assert learned is not None, "the layout has a loss mask for each side"
        is_answer, tokens = columns[learned.name] == 1, ~invariants.padding(columns, manifest, side=spec.side)
        exported[str(spec.exported_as)] = _ragged(columns[feature.name], tokens if join_prompts else is_answer)
        prompts.append(_ragged(columns[feature.name], tokens & ~is_answer))
    chosen, rejected = prompts
    if not join_prompts:
        if not all(np.array_equal(*pair) for pair in zip(*map(dataclasses.astuple, (chosen, rejected)), strict=True)):
            raise ConfigError(
                "rows were cut on the left, so their two answers no longer have the same prompt",
                remedy="add --join-prompts, which writes each answer with its prompt; or build with a longer "
                "--max-length or --truncation-side right",
            )
        exported = {"prompt_ids": chosen, **exported}
    for feature in schema.features:
        if ROLES[feature.role].exported_as is None:
            exported[feature.name + "_" * (feature.name in exported)] = ExportedColumn(columns[feature.name])
    return exported


def documents(
    batches: Iterable[Columns], manifest: Manifest, *, extra: tuple[str, ...] = ()
) -> Iterator[dict[str, ExportedColumn]]:
    """Yield the columns of `unpadded`, with one row per document.

    A document is a record (`pad`), a segment of a record (`pack`), or the tokens up to the next EOS or the end of the
    shard (`concat`).
    """
    parts = (unpadded(columns, manifest, extra=extra) for columns in batches)
    if manifest.schema.with_role("num_tokens") is not None:
        if stream := _joined(list(parts)):
            ids, end = stream["input_ids"], manifest.tokenizer.end_id
            ends = np.flatnonzero(ids == (-1 if end is None else end)) + 1
            lengths = np.diff(np.unique(np.concatenate([[0], ends, [len(ids)]])))
            yield {name: ExportedColumn(values, lengths) for name, values in stream.items()}
        return
    for columns in parts:
        if "seq_lengths" in columns:
            lengths = columns["seq_lengths"].values
            yield {name: ExportedColumn(columns[name].values, lengths) for name in _OF_DOCUMENTS if name in columns}
        else:
            yield columns


def joined_documents(batches: Iterable[Columns], manifest: Manifest) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the columns of a shard's D documents as flat arrays, and the tokens in each document, int64 [D]."""
    parts = list(documents(batches, manifest))
    lengths = [part["input_ids"].counts for part in parts if part["input_ids"].counts is not None]
    empty: dict[str, np.ndarray] = {"input_ids": np.zeros(0, np.int32), "labels": np.zeros(0, np.int64)}
    return _joined(parts) or empty, np.concatenate([np.zeros(0, np.int64), *lengths])


def _joined(parts: list[dict[str, ExportedColumn]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name].values for part in parts]) for name in (parts[0] if parts else ())}


def _labels(columns: Columns, schema: Schema, ids: np.ndarray, tokens: np.ndarray) -> ExportedColumn | None:
    targets, target_mask = schema.values(columns, "target_ids"), schema.values(columns, "target_mask")
    if targets is not None and target_mask is not None:
        return _ragged(targets, target_mask == 1)
    learned, values = schema.values(columns, "loss_mask"), ids
    if learned is None:
        tags, learned = schema.values(columns, "token_labels"), schema.values(columns, "token_label_mask")
        if tags is None or learned is None:
            return None
        values = tags
    return _ragged(np.where(learned == 1, values, IGNORED), tokens, np.int64)
