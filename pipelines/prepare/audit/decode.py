"""Decoding rows of a finished dataset back to text, with every special token visible."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.audit import invariants, text_pieces
from pipelines.prepare.audit.text_pieces import TextPiece, decoded
from pipelines.prepare.tokenize import tokenization
from tfrecord_io import examples, records
from tfrecord_io.errors import CorruptRecordError, ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import UNLABELLED, Role, Schema

__all__ = ["DecodedRow", "decoded_rows", "json_value", "load_tokenizer"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodedRow:
    """One record: its location, its text without padding, and its other features.

    `pieces` are the same text, cut where tokens are marked differently.
    """

    split: str
    shard: str
    record: int
    num_tokens: int
    text: str
    features: dict[str, Any]
    pieces: tuple[TextPiece, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that `inspect --json` prints."""
        fields = dataclasses.asdict(self)
        del fields["pieces"]
        return fields


def load_tokenizer(root: str) -> Any:
    """Load the tokenizer that is stored with the dataset. Raises: ReaderError if there is none."""
    folder = storage.join(root, "tokenizer")
    files = storage.read_folder(folder)
    if not files:
        raise ReaderError(f"{folder}: no tokenizer", remedy=f"run `prep-tfrecords verify {root} --repair`")
    return tokenization.load(files)


def decoded_rows(root: str, manifest: Manifest, split: str, *, rows: int) -> Iterator[DecodedRow]:
    """Yield the first `rows` records of a split. Raises: ReaderError if there is no such split."""
    if split not in manifest.splits:
        raise ReaderError(f"{root}: no split {split!r}", remedy=f"choose among {', '.join(manifest.splits)}")
    tokenizer = load_tokenizer(root)
    for shard in manifest.splits[split].shards:
        path = storage.join(root, shard.name)
        described = manifest if shard.length is None else manifest.bucket(shard.length)
        record = 0
        with _opened(path) as stream:
            for payloads in records.read_payloads(
                stream,
                compression=manifest.compression,
                place=path,
                most_record_bytes=described.schema.most_record_bytes,
            ):
                columns = examples.decode(payloads, described.schema, place=path)
                invariants.check_columns(columns, described, path=path, first=record)
                for index in range(len(payloads)):
                    if rows <= 0:
                        return
                    one = {name: values[index] for name, values in columns.items()}
                    yield _decode(one, tokenizer, described, split=split, shard=shard.name, record=record)
                    rows -= 1
                    record += 1


def json_value(value: Any) -> Any:
    """Return a value of a feature as JSON has it: bytes in base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if isinstance(value, str) else value.tolist()


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        with storage.read_stream(path) as stream:
            yield stream
    except FileNotFoundError as error:
        raise CorruptRecordError(
            f"{path}: no such file", remedy="run `prep-tfrecords verify --repair` on the dataset, which makes it again"
        ) from error


def _decode(
    row: dict[str, np.ndarray], tokenizer: Any, manifest: Manifest, *, split: str, shard: str, record: int
) -> DecodedRow:
    pieces = text_pieces.pieces_of(text_pieces.input_marks(row, manifest), tokenizer)
    ids = row.pop(_name(manifest.schema, "token_ids"))
    annotated = _annotations(row, ids, manifest, tokenizer)
    learned = _learned(row, ids, tokenizer, manifest.schema)
    ids, described = _without_padding(ids, row, manifest.schema)
    row.pop(_name(manifest.schema, "token_type_ids"), None)
    described.update(_target(row, tokenizer, manifest.schema))
    described.update(learned, **annotated)
    features: dict[str, Any] = {**described, **{name: json_value(values) for name, values in row.items()}}
    if "label" in features and manifest.label_names is not None:
        label, names = features["label"], manifest.label_names
        if manifest.multi_hot_size:
            features["label"] = list(itertools.compress(names, label))
        else:
            features["label"] = None if label == UNLABELLED else names[label]
    text = decoded(ids, tokenizer)
    return DecodedRow(
        split=split, shard=shard, record=record, num_tokens=len(ids), text=text, features=features, pieces=pieces
    )


def _target(row: dict[str, np.ndarray], tokenizer: Any, schema: Schema) -> dict[str, str]:
    """Return the text of the target, if there is one, and remove its features from `row`."""
    ids, mask = _taken(row, schema, "target_ids"), _taken(row, schema, "target_mask")
    return {} if ids is None or mask is None else {"target text": decoded(ids[mask == 1], tokenizer)}


def _learned(row: dict[str, np.ndarray], ids: np.ndarray, tokenizer: Any, schema: Schema) -> dict[str, list[str]]:
    """Return the texts of the spans of tokens to be learned, and remove their mask from `row`."""
    if (feature := schema.with_role("loss_mask")) is None:
        return {}
    edges = np.flatnonzero(np.diff(row.pop(feature.name), prepend=0, append=0))
    return {"learned": [decoded(ids[start:stop], tokenizer) for start, stop in edges.reshape(-1, 2)]}


def _without_padding(ids: np.ndarray, row: dict[str, np.ndarray], schema: Schema) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the tokens of a row and what describes them, and remove from `row` the features that mark padding."""
    if (segments := schema.with_role("segment_ids")) is not None:
        segment_ids = row.pop(segments.name)
        row.pop(_name(schema, "positions"), None)
        return ids[segment_ids > 0], {
            "tokens of each document": np.unique(segment_ids[segment_ids > 0], return_counts=True)[1].tolist()
        }
    if (mask := row.pop(_name(schema, "attention_mask"), None)) is not None:
        return ids[mask == 1], {}
    return ids[: int(row.pop(_name(schema, "num_tokens")))], {}


def _name(schema: Schema, role: Role) -> str:
    """Return the name of the feature with that role, empty if there is none."""
    feature = schema.with_role(role)
    return "" if feature is None else feature.name


def _annotations(row: dict[str, np.ndarray], ids: np.ndarray, manifest: Manifest, tokenizer: Any) -> dict[str, Any]:
    """Return tokens with their tags' names, the span of characters, and the answer; remove them from `row`."""
    schema, found = manifest.schema, dict[str, Any]()
    labels, mask = _taken(row, schema, "token_labels"), _taken(row, schema, "token_label_mask")
    if labels is not None and mask is not None:
        chosen = np.flatnonzero(mask)
        tokens = tokenizer.convert_ids_to_tokens(ids[chosen].tolist())
        tags = labels[chosen].tolist()
        named = tags if manifest.label_names is None else [manifest.label_names[tag] for tag in tags]
        found["tags"] = [f"{token} {tag}" for token, tag in zip(tokens, named, strict=True)]
    starts, ends = _taken(row, schema, "char_starts"), _taken(row, schema, "char_ends")
    if starts is not None and ends is not None:
        covered = ends > 0
        found["characters"] = [int(starts[covered].min(initial=2**31 - 1)), int(ends.max())] if covered.any() else []
    first, last = _taken(row, schema, "start_position"), _taken(row, schema, "end_position")
    if first is not None and last is not None:
        span = ids[int(first) : int(last) + 1].tolist() if last > 0 else []
        found["answer"] = tokenizer.decode(span, clean_up_tokenization_spaces=False).strip()
    return found


def _taken(row: dict[str, np.ndarray], schema: Schema, role: Role) -> np.ndarray | None:
    feature = schema.with_role(role)
    return None if feature is None else row.pop(feature.name)
