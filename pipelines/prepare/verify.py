"""Rereading everything: are these the very bytes that were committed, and do they say what the manifest says?

Of every shard: size, digest, record framing and both crcs, number of examples and of tokens, the exact features,
shapes and dtypes, ids below the vocabulary's size, masks that are 1 on tokens and 0 on padding in one run, labels
that have a name.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import BinaryIO, cast

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.shards import count_tokens
from tfrecord_io import examples, records
from tfrecord_io.errors import CorruptRecordError, PrepError
from tfrecord_io.manifest import Manifest, Shard

__all__ = ["Finding", "check_columns", "verify_shard", "verify_split_files"]

REMEDY = "build the dataset anew with --overwrite, or copy the shard again from where it was made"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """What is wrong with one shard."""

    split: str
    shard: str
    problem: str


def verify_split_files(root: str, manifest: Manifest) -> Iterator[tuple[str, Shard, Finding | None]]:
    """Verifies shard after shard, yielding what each turned out to be."""
    for split_name, split in manifest.splits.items():
        for shard in split.shards:
            problem = _problem(root, shard, manifest)
            finding = Finding(split=split_name, shard=shard.name, problem=problem) if problem else None
            yield split_name, shard, finding


def _problem(root: str, shard: Shard, manifest: Manifest) -> str:
    try:
        verify_shard(root, shard, manifest)
    except PrepError as error:
        return error.cause
    except OSError as error:
        return f"{storage.join(root, shard.name)}: cannot be read: {error}"
    return ""


def verify_shard(root: str, shard: Shard, manifest: Manifest) -> None:
    """Rereads one shard. Raises: CorruptRecordError that names the shard and, where it can, the record."""
    path = storage.join(root, shard.name)
    stored = storage.size(path)
    if stored is None:
        raise CorruptRecordError(f"{path}: no such file", remedy=REMEDY)
    if stored != shard.num_bytes:
        raise CorruptRecordError(f"{path}: {stored} bytes, expected {shard.num_bytes}", remedy=REMEDY)
    with storage.read_stream(path) as stream:
        counting = _Digesting(stream)
        num_examples, num_tokens = _read(counting, path, manifest)
        while counting.read(1 << 20):
            pass
    if counting.hexdigest() != shard.sha256:
        raise CorruptRecordError(
            f"{path}: sha256 {counting.hexdigest()}, expected {shard.sha256}: whole records were changed or exchanged",
            remedy=REMEDY,
        )
    if (num_examples, num_tokens) != (shard.num_examples, shard.num_tokens):
        raise CorruptRecordError(
            f"{path}: {num_examples} examples with {num_tokens} tokens, "
            f"expected {shard.num_examples} with {shard.num_tokens}",
            remedy=REMEDY,
        )


def check_columns(columns: dict[str, np.ndarray], manifest: Manifest, *, place: str, first: int) -> None:
    """Checks decoded records, the first of which is record `first` of its shard. Raises: CorruptRecordError."""

    def expect(valid: np.ndarray, what: str) -> None:
        rows = np.flatnonzero(~valid.reshape(len(valid), -1).all(axis=1))
        if len(rows):
            raise CorruptRecordError(f"{place}, record {first + int(rows[0])}: {what}", remedy=REMEDY)

    for feature in manifest.schema.features:
        if feature.constant is not None:
            expect(columns[feature.name] == feature.constant, f"a {feature.name} other than {feature.constant}")
    facts, length = manifest.tokenizer, manifest.row_length
    ids = columns["input_ids"]
    expect((ids >= 0) & (ids < facts.vocab_size), f"a token id outside 0 to {facts.vocab_size - 1}")
    padded = _padding(columns, length=length, left=facts.padding_side == "left")
    if (mask := columns.get("attention_mask")) is not None:
        expect((mask == 0) | (mask == 1), "an attention mask with other values than 0 and 1")
        expect(
            mask == ~padded, f"an attention mask that is not one run of 1 before padding on the {facts.padding_side}"
        )
    else:
        num_tokens = columns["num_tokens"]
        expect((num_tokens >= 1) & (num_tokens <= length), f"num_tokens outside 1 to {length}")
    expect((ids == facts.pad_id) | ~padded, f"something else than the pad id {facts.pad_id} in the padding")
    for feature in manifest.schema.features:
        if feature.constant is not None:
            expect(
                columns[feature.name] == feature.constant, f"{feature.name} that is not {feature.constant} everywhere"
            )
    label = manifest.schema.with_role("label")
    if label is not None and manifest.label_names is not None:
        names = len(manifest.label_names)
        expect((columns[label.name] >= 0) & (columns[label.name] < names), f"a label outside 0 to {names - 1}")


def _padding(columns: dict[str, np.ndarray], *, length: int, left: bool) -> np.ndarray:
    """Where padding is to be, bool [N, L], from the number of tokens in each row."""
    position = np.arange(length)
    if "attention_mask" not in columns:
        return np.asarray(position >= columns["num_tokens"][:, None])
    count = columns["attention_mask"].sum(axis=1)[:, None]
    return np.asarray(position < length - count if left else position >= count)


def _read(stream: _Digesting, path: str, manifest: Manifest) -> tuple[int, int]:
    num_examples, num_tokens = 0, 0
    payloads_of = records.read_payloads(cast(BinaryIO, stream), compression=manifest.compression, place=path)
    for payloads in payloads_of:
        columns = examples.decode(payloads, manifest.schema, place=path)
        check_columns(columns, manifest, place=path, first=num_examples)
        num_examples += len(payloads)
        num_tokens += count_tokens(columns)
    return num_examples, num_tokens


class _Digesting:
    """A stream that digests what is read through it, so that a file is read once."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._digest.update(data)
        return data

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
