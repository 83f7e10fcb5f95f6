"""Decode records back to text, with all special tokens, as a whole and in pieces."""

from __future__ import annotations

import base64
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.audit import invariants, verify
from pipelines.prepare.audit.invariants import Columns
from pipelines.prepare.tokenize import saved_copy
from pipelines.prepare.tokenize.engines import HFTokenizer
from tfrecord_io import examples
from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import ROLES, UNLABELLED

_Shown = tuple[str, int, "tuple[TextPiece, ...]", dict[str, Any]]  # text, number of tokens, pieces, features


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodedRow:
    """A decoded record, without padding. `pieces`: its text, divided where the marks of tokens change."""

    split: str
    shard: str
    record: int
    num_tokens: int
    text: str
    features: dict[str, Any]
    pieces: tuple[TextPiece, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "pieces"}


def load_tokenizer(root: str) -> Any:
    """Load the dataset's tokenizer. Raises: ReaderError if there is none."""
    folder = storage.join(root, "tokenizer")
    files = storage.read_folder(folder)
    if not files:
        cause = f"{folder}: the dataset's tokenizer is missing"
        raise ReaderError(cause, remedy=f"run `prep-tfrecords verify {root} --repair`")
    return saved_copy.load(files)


def decoded_rows(root: str, manifest: Manifest, split: str, *, rows: int) -> Iterator[DecodedRow]:
    """Yield the first `rows` records of a split, decoded. Raises: ReaderError if there is no such split."""
    if split not in manifest.splits:
        raise ReaderError(f"{root}: no split {split!r}", remedy=f"choose among {', '.join(manifest.splits)}")
    tokenizer = load_tokenizer(root)
    for shard in manifest.splits[split].shards:
        path, record = storage.join(root, shard.name), 0
        described = manifest if shard.length is None else manifest.bucket(shard.length)
        for payloads in verify.read_shard(root, shard, described):
            columns = examples.decode(payloads, described.schema, place=path)
            invariants.check_columns(columns, described, path=path, first=record)
            for index in range(len(payloads)):
                if rows <= 0:
                    return
                row = {name: values[index] for name, values in columns.items()}
                yield _decode(row, tokenizer, described, split=split, shard=shard.name, record=record)
                rows -= 1
                record += 1


def _decode(
    row: Columns, tokenizer: HFTokenizer, manifest: Manifest, *, split: str, shard: str, record: int
) -> DecodedRow:
    schema = manifest.schema
    show = _shown_pair if schema.with_role("token_ids") is None else _shown_row
    text, num_tokens, pieces, features = show(row, tokenizer, manifest)
    for feature in schema.features:
        if ROLES[feature.role].shown_as == "value":
            value: Any = row[feature.name]
            if isinstance(value, bytes):
                value = base64.b64encode(value).decode()
            features[feature.name] = value if isinstance(value, str) else value.tolist()
    if "label" in features and manifest.label_names is not None:
        label, names = row["label"], manifest.label_names
        if manifest.multi_hot_size:
            features["label"] = list(itertools.compress(names, label))
        else:
            features["label"] = None if label == UNLABELLED else names[label]
    return DecodedRow(
        split=split, shard=shard, record=record, num_tokens=num_tokens, text=text, features=features, pieces=pieces
    )


def _shown_pair(row: Columns, tokenizer: HFTokenizer, manifest: Manifest) -> _Shown:
    prompts, answers, num_tokens = [], dict[str, Any](), 0
    for feature in manifest.schema.token_features:
        side, ids = ROLES[feature.role].side, row[feature.name]
        learned = manifest.schema.loss_mask_of(side)
        assert learned is not None, "the layout has a loss mask for each side"
        kept, is_answer = ~invariants.padding(row, manifest, side=side), row[learned.name] == 1
        prompt, whole = decoded(ids[kept & ~is_answer], tokenizer), decoded(ids[kept], tokenizer)
        prompts.append(prompt)
        # An answer decoded alone would lose the space before its first word.
        answers[side] = whole[len(prompt) :] if whole.startswith(prompt) else decoded(ids[is_answer], tokenizer)
        num_tokens += int(np.count_nonzero(kept))
    text = max(prompts, key=len)  # of prompts that were cut on the left, the longer contains the other
    answer_pieces = (TextPiece(text=answer, learned=True, name=side) for side, answer in answers.items())
    return text, num_tokens, (TextPiece(text=text), *answer_pieces), answers


def _shown_row(row: Columns, tokenizer: HFTokenizer, manifest: Manifest) -> _Shown:
    schema, features = manifest.schema, dict[str, Any]()
    ids, learned, segments = (schema.values(row, role) for role in ("token_ids", "loss_mask", "segment_ids"))
    assert ids is not None, "only rows with token ids are shown here"
    kept, answer = ~invariants.padding(row, manifest), _answer(row, manifest)
    if segments is not None:
        features["tokens of each document"] = np.unique(segments[kept], return_counts=True)[1].tolist()
    for feature in schema.token_features:
        if (side := ROLES[feature.role].side) != "input":
            tokens = row[feature.name][~invariants.padding(row, manifest, side=side)]
            features[f"{side} text"] = decoded(tokens, tokenizer)
    if learned is not None:
        edges = np.flatnonzero(np.diff(learned, prepend=0, append=0))
        features["learned"] = [decoded(ids[start:stop], tokenizer) for start, stop in edges.reshape(-1, 2)]
    features |= _annotations(row, ids, manifest, tokenizer)
    if answer is not None:
        features["answer"] = tokenizer.decode(ids[answer].tolist(), clean_up_tokenization_spaces=False).strip()
    marks = [mark if mark is None else mark[kept] for mark in (learned, answer, segments)]
    pieces = _pieces(ids[kept], marks, tokenizer)
    return decoded(ids[kept], tokenizer), int(np.count_nonzero(kept)), pieces, features


def _annotations(row: Columns, ids: np.ndarray, manifest: Manifest, tokenizer: HFTokenizer) -> dict[str, Any]:
    schema, annotations = manifest.schema, dict[str, Any]()
    labels, tagged = schema.values(row, "token_labels"), schema.values(row, "token_label_mask")
    if labels is not None and tagged is not None:
        chosen = np.flatnonzero(tagged)
        tokens = tokenizer.convert_ids_to_tokens(ids[chosen].tolist())
        tags = labels[chosen].tolist()
        names = tags if manifest.label_names is None else [manifest.label_names[tag] for tag in tags]
        annotations["tags"] = [f"{token} {name}" for token, name in zip(tokens, names, strict=True)]
    starts, ends = schema.values(row, "char_starts"), schema.values(row, "char_ends")
    if starts is not None and ends is not None:
        covered = ends > 0
        annotations["characters"] = [int(starts[covered].min()), int(ends.max())] if covered.any() else []
    return annotations


def _answer(row: Columns, manifest: Manifest) -> np.ndarray | None:
    first, last = (manifest.schema.values(row, role) for role in ("start_position", "end_position"))
    if first is None or last is None:
        return None
    at = np.arange(manifest.row_length)
    return (at >= first) & (at <= last) & (last > 0)  # both are 0 if the row has no answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextPiece:
    """Piece of a record's text. `learned`, `answer`: whether its tokens are learned, or belong to the answer.

    `document`: the document's number in the record, from 1; 0 if records hold only one document. `name`: chosen or
    rejected, for the two answers of a preference pair; otherwise empty.
    """

    text: str
    learned: bool = False
    answer: bool = False
    document: int = 0
    name: str = ""


def _pieces(ids: np.ndarray, marks: Iterable[np.ndarray | None], tokenizer: HFTokenizer) -> tuple[TextPiece, ...]:
    none = np.zeros(len(ids), np.int64)
    learned, answer, segments = kinds = np.stack([none if mark is None else mark.astype(np.int64) for mark in marks])
    edges = [0, *(np.flatnonzero((np.diff(kinds) != 0).any(axis=0)) + 1).tolist(), len(ids)] if len(ids) else [0]
    # A piece decoded alone would lose the space before its first word. So take the text that the piece's tokens add,
    # unless later tokens change earlier text, such as half a character.
    whole, ends = decoded(ids, tokenizer), [decoded(ids[:edge], tokenizer) for edge in edges]
    if all(whole.startswith(text) for text in ends):
        texts = [whole[len(before) : len(text)] for before, text in itertools.pairwise(ends)]
    else:
        texts = [decoded(ids[start:stop], tokenizer) for start, stop in itertools.pairwise(edges)]
    return tuple(
        TextPiece(text=text, learned=bool(learned[at]), answer=bool(answer[at]), document=int(segments[at]))
        for at, text in zip(edges[:-1], texts, strict=True)
    )


def decoded(ids: np.ndarray, tokenizer: HFTokenizer) -> str:
    """Decode token ids to text, special tokens included."""
    return str(tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False))
