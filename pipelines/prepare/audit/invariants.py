"""Invariants of decoded records: rules for ids, masks, padding, segments, targets, tags, answers and labels."""

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from tfrecord_io.errors import CorruptRecordError, ManifestError
from tfrecord_io.manifest import REMAKE, Manifest
from tfrecord_io.schema import ROLES, UNLABELLED, Schema, Side

REPAIR = "run `prep-tfrecords verify --repair` on the dataset, which remakes the damaged files"

Columns = Mapping[str, np.ndarray]
# (whether the invariant holds, bool [N, ...]; description of a violation)
Invariant = tuple[np.ndarray, str]


def check_columns(columns: Columns, manifest: Manifest, *, path: str, first: int) -> None:
    """Check decoded records. `path`, `first`: their shard, and the first one's number. Raises: CorruptRecordError."""

    def expect(valid: np.ndarray, violation: str) -> None:
        rows = np.flatnonzero(~valid.reshape(len(valid), -1).all(axis=1))
        if len(rows):
            raise CorruptRecordError(f"{path}, record {first + int(rows[0])}: {violation}", remedy=REPAIR)

    facts, schema = manifest.tokenizer, manifest.schema
    for feature in schema.features:
        name, values, role = feature.name, columns[feature.name], ROLES[feature.role]
        if feature.constant is not None:
            expect(values == feature.constant, f"a {name} other than {feature.constant}")
        if role.values == "ids":
            expect((values >= 0) & (values < facts.vocab_size), f"{name} outside 0 to {facts.vocab_size - 1}")
        elif role.values == "mask":
            expect(values >> 1 == 0, f"{name} with values other than 0 and 1")
        elif role.values == "from 0":
            expect(values >= 0, f"{name} below 0")
    sides = [ROLES[feature.role].side for feature in schema.token_features]
    padded_of = {side: padding(columns, manifest, side=side) for side in sides}
    padded = padded_of.get("input")
    of_tokens = () if padded is None else _of_tokens(columns, manifest, padded)
    of_sides = (_of_other_side(columns, schema, side) for side in sides if side != "input")
    for valid, violation in itertools.chain(of_tokens, *of_sides):
        expect(valid, violation)
    for feature in schema.features:
        role = ROLES[feature.role]
        where, blank = padded_of.get(role.side), facts.pad_id if role.padding == "pad" else role.padding
        if where is not None and blank is not None and not role.marks_tokens:
            expect((columns[feature.name] == blank) | ~where, f"{feature.name} other than {blank} in the padding")
    for valid, violation in () if padded is None else _of_annotations(columns, manifest, padded):
        expect(valid, violation)
    label = schema.with_role("label")
    if label is not None and manifest.multi_hot_size:
        expect((columns[label.name] >> 1 == 0).all(axis=1), f"a {label.name} with values other than 0 and 1")
    elif label is not None and manifest.label_names is not None:
        names = len(manifest.label_names)
        unlabelled = any(split.num_unlabelled for split in manifest.splits.values())
        known = (columns[label.name] >= (UNLABELLED if unlabelled else 0)) & (columns[label.name] < names)
        none = f" that is not {UNLABELLED} (no label)" if unlabelled else ""
        expect(known, f"a label outside 0 to {names - 1}{none}")


def padding(columns: Columns, manifest: Manifest, *, side: Side = "input") -> np.ndarray:
    """Return a mask of the padding in the token sequence `side`: bool [N, positions], or [positions] for one record."""
    schema, length = manifest.schema, manifest.row_length
    if side != "input":
        stored = schema.mask_of(side)
        if stored is None:
            raise ManifestError(f"no feature shows which tokens of the {side} are padding", remedy=REMAKE)
        return np.asarray(columns[stored.name] == 0)
    if (segments := schema.values(columns, "segment_ids")) is not None:
        return np.asarray(segments == 0)
    position = np.arange(length)
    if (num_tokens := schema.values(columns, "num_tokens")) is not None:
        return np.asarray(position >= num_tokens[..., None])
    if (mask := schema.values(columns, "attention_mask")) is None:
        raise ManifestError("no feature shows which tokens are padding", remedy=REMAKE)
    count = mask.sum(axis=-1)[..., None]
    is_left = manifest.tokenizer.padding_side == "left"
    return np.asarray(position < length - count if is_left else position >= count)


def _of_tokens(columns: Columns, manifest: Manifest, padded: np.ndarray) -> Iterator[Invariant]:
    schema, length, side = manifest.schema, manifest.row_length, manifest.tokenizer.padding_side
    if (mask := schema.values(columns, "attention_mask")) is not None:
        yield mask == ~padded, f"an attention mask that is not one run of 1 with padding on the {side}"
    if (num_tokens := schema.values(columns, "num_tokens")) is not None:
        yield (num_tokens >= 1) & (num_tokens <= length), f"num_tokens outside 1 to {length}"
    if (segments := schema.values(columns, "segment_ids")) is None:
        return
    begins, tokens = np.diff(segments, axis=1, prepend=0), ~padded
    after_tokens = np.concatenate([np.ones((len(tokens), 1), bool), tokens[:, :-1]], axis=1)
    ascends = np.where(tokens, after_tokens & ((begins == 0) | (begins == 1)), True) & tokens[:, :1]
    yield ascends, "segment_ids that do not ascend by one from 1 before padding"
    if (positions := schema.values(columns, "positions")) is not None:
        counted = np.where(begins == 1, positions == 0, np.diff(positions, axis=1, prepend=0) == 1)
        yield counted | padded, "positions that do not count each segment from 0"


def _of_other_side(columns: Columns, schema: Schema, side: Side) -> Iterator[Invariant]:
    if (feature := schema.mask_of(side)) is not None:
        mask = columns[feature.name]
        before = np.concatenate([np.ones((len(mask), 1), mask.dtype), mask[:, :-1]], axis=1)
        yield mask <= before, f"a {side} mask that is not one run of 1 with padding on the right"
        if (learned := schema.loss_mask_of(side)) is not None:
            answer = columns[learned.name]
            ends = np.diff(answer, axis=1, append=0) < 0
            is_one_run = (answer.any(axis=1) & (np.count_nonzero(ends, axis=1) == 1))[:, None]
            is_last = ~ends | (np.diff(mask, axis=1, append=0) < 0)
            yield is_one_run & is_last, f"no {side} answer at the end of its row"


def _of_annotations(columns: Columns, manifest: Manifest, padded: np.ndarray) -> Iterator[Invariant]:
    schema = manifest.schema
    labels, mask = schema.values(columns, "token_labels"), schema.values(columns, "token_label_mask")
    if labels is not None and mask is not None:
        yield (labels == 0) | (mask == 1), "a tag on a token that tag_mask says has none"
        if manifest.label_names is not None:
            names = len(manifest.label_names)
            yield (labels >= 0) & (labels < names), f"a tag outside 0 to {names - 1}"
    starts, ends = schema.values(columns, "char_starts"), schema.values(columns, "char_ends")
    if starts is not None and ends is not None:
        yield starts <= ends, "a char_starts after char_ends"
    first, last = schema.values(columns, "start_position"), schema.values(columns, "end_position")
    if first is not None and last is not None:
        length = manifest.row_length
        inside = (first <= last) & (last < length)
        yield inside, f"start_positions after end_positions, or outside 0 to {length - 1}"
        rows, answered = np.arange(len(first)), inside & (last > 0)
        at = np.where(answered, first, 0), np.where(answered, last, 0)
        yield ~answered | ~(padded[rows, at[0]] | padded[rows, at[1]]), "an answer that reaches into the padding"
