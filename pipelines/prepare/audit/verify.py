"""Verifying a finished dataset: are these exactly the bytes that were committed, and do they fit the manifest?

Every shard: size, digest, record framing and both crcs, number of examples and of tokens, the exact features, shapes
and dtypes, ids within the vocabulary, masks that are 1 on tokens and 0 on padding (of targets too), segments and
positions that count correctly, labels that have a name. Besides the shards: their indexes, the lists of rejected rows,
the tokenizer, the files for TFDS, and the manifests of earlier generations.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Iterator
from typing import BinaryIO, Literal, cast

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.audit import decoder_targets, packed_segments, token_annotations
from pipelines.prepare.dataset import own_files, rejected_rows, tfds
from pipelines.prepare.dataset.job import rejected_path
from pipelines.prepare.layouts.token_counts import count_tokens
from pipelines.prepare.tokenize.folder_digest import bytes_digest
from tfrecord_io import examples, records
from tfrecord_io.errors import CorruptRecordError, FormatError, ManifestError, OutputError, PrepError
from tfrecord_io.examples import Payloads
from tfrecord_io.format import dali_index
from tfrecord_io.format.manifest_checks import REMAKE
from tfrecord_io.format.shard_indexes import ShardIndexes
from tfrecord_io.manifest import Manifest, Shard, former_name
from tfrecord_io.schema import UNLABELLED, Schema

__all__ = [
    "FORMER_REMEDY",
    "CheckedFile",
    "Part",
    "check_columns",
    "padding",
    "read_shard",
    "verify_files",
    "verify_shard",
]

REMEDY = "run `prep-tfrecords verify --repair` on the dataset, which makes again what is damaged"
# `manifest.json` does not say which options, engines and versions a dataset had before.
FORMER_REMEDY = (
    "copy it again from where the dataset was made, since no other file has all of its content; only trainings that "
    "began before rows were appended need it"
)

Part = Literal["shard", "index", "rejected", "tokenizer", "tfds", "manifest"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedFile:
    """A file of the dataset, and its `problem`, empty if it is sound. `split` and `index` are those of its shard."""

    part: Part
    file: str
    problem: str
    split: str = ""
    index: int = 0


def verify_files(root: str, manifest: Manifest) -> Iterator[CheckedFile]:
    """Verify all files, yielding the result for each."""
    of_length = {length: manifest.bucket(length) for length in manifest.bucket_lengths}
    for split_name, split in manifest.splits.items():
        seen: set[int] = set()
        for index, shard in enumerate(split.shards):
            task = split.task_of(index)
            described = manifest if shard.length is None else of_length[shard.length]
            parts = _ShardChecks(root, described, split=split_name, index=index, shard=shard)
            yield from parts.check()
            # The first file of a task accounts for all of its rejected rows.
            if task not in seen:
                yield from parts.check_rejected(task)
            seen.add(task)
    problem = _tokenizer_problem(root, manifest)
    yield CheckedFile(part="tokenizer", file="tokenizer", problem=problem)
    for name, content in tfds.files(manifest).items():
        problem = _problem(storage.join(root, name), content, otherwise="not what the manifest gives")
        yield CheckedFile(part="tfds", file=name, problem=problem)
    for number, generation in enumerate(manifest.generations[:-1]):
        name = former_name(number)
        problem = _former_problem(root, manifest, name, fingerprint=generation.fingerprint)
        yield CheckedFile(part="manifest", file=name, problem=problem)


class _ShardChecks:
    """Checks one shard and the files that belong to it."""

    def __init__(self, root: str, manifest: Manifest, *, split: str, index: int, shard: Shard) -> None:
        self._root = root
        self._manifest = manifest
        self._split = split
        self._index = index
        self._shard = shard

    def check(self) -> Iterator[CheckedFile]:
        """Check the shard, then its indexes if the shard is sound."""
        indexes: dict[str, bytes] = {}
        problem = ""
        try:
            indexes = verify_shard(self._root, self._shard, self._manifest)
        except OutputError:
            raise  # the storage failed, which says nothing about the content
        except PrepError as error:
            problem = error.cause
        except OSError as error:
            problem = f"{storage.join(self._root, self._shard.name)}: cannot be read: {error}"
        yield self._checked("shard", self._shard.name, problem)
        for name, content in indexes.items():
            problem = _problem(storage.join(self._root, name), content, otherwise="not the offsets of the records")
            yield self._checked("index", name, problem)

    def check_rejected(self, task: int) -> Iterator[CheckedFile]:
        """Check the list of rejected rows of the shard's task."""
        file = rejected_path(self._split, task)
        if (problem := self._rejected_problem(file)) or self._shard.ledger.unusable:
            yield self._checked("rejected", file, problem)

    def _checked(self, part: Part, file: str, problem: str) -> CheckedFile:
        return CheckedFile(part=part, file=file, problem=problem, split=self._split, index=self._index)

    def _rejected_problem(self, file: str) -> str:
        """Return why the list does not have as many rows for each reason as the ledger counts; empty if it has."""
        try:
            counts = dict(collections.Counter(row.reason for row in rejected_rows.read(storage.join(self._root, file))))
        except FileNotFoundError:
            return "not there" if self._shard.ledger.unusable else ""
        except FormatError as error:
            return error.cause
        expected = self._shard.ledger.unusable
        return "" if counts == expected else f"{counts} rows by reason, expected {expected}"


def _former_problem(root: str, manifest: Manifest, name: str, *, fingerprint: str) -> str:
    """Return what is wrong with the manifest that an append kept: it must have the fingerprint of its generation, and
    name shards of the present manifest only.
    """
    try:
        former = own_files.read_manifest(root, name=name)
    except ManifestError as error:
        return error.cause.removeprefix(f"{storage.join(root, name)}: ")
    if former is None:
        return "not there, expected the manifest of an earlier generation"
    if former.fingerprint != fingerprint:
        return f"has fingerprint {former.fingerprint}, expected {fingerprint}"
    present = {shard.name: shard for split in manifest.splits.values() for shard in split.shards}
    others = [each for split in former.splits.values() for each in split.shards if each != present.get(each.name)]
    return f"names shard {others[0].name} with other facts than manifest.json" if others else ""


def _tokenizer_problem(root: str, manifest: Manifest) -> str:
    folder = storage.join(root, "tokenizer")
    digest = bytes_digest(storage.read_folder(folder))
    return "" if digest == manifest.tokenizer.content_sha256 else "not the tokenizer that the manifest names"


def _problem(path: str, expected: bytes, *, otherwise: str) -> str:
    """Return what is wrong with a file that should have this content; empty if nothing is."""
    try:
        found = storage.read_bytes(path, most_bytes=len(expected))
    except FileNotFoundError:
        return "not there"
    except FormatError:
        return otherwise
    return "" if found == expected else otherwise


def verify_shard(root: str, shard: Shard, manifest: Manifest) -> dict[str, bytes]:
    """Reread one shard, and return the contents that its indexes should have, by path.

    Raises: CorruptRecordError that names the shard and, where it can, the record.
    """
    path = storage.join(root, shard.name)
    indexes = ShardIndexes(
        shard.name, indexed=manifest.index_stride is not None, dali=dali_index.asked_for(manifest.options)
    )
    num_examples, num_tokens = 0, 0
    for payloads in read_shard(root, shard, manifest):
        columns = examples.decode(payloads, manifest.schema, place=path)
        check_columns(columns, manifest, path=path, first=num_examples)
        indexes.add(np.diff(payloads.offsets) + records.FRAME_BYTES)
        num_examples += len(payloads)
        num_tokens += int(count_tokens(columns, manifest.schema).sum())
    if num_tokens != shard.num_tokens:
        raise CorruptRecordError(
            f"{path}: {num_examples} examples with {num_tokens} tokens, expected {shard.num_tokens}", remedy=REMEDY
        )
    return indexes.files()


def read_shard(root: str, shard: Shard, manifest: Manifest) -> Iterator[Payloads]:
    """Yield the messages of a shard in batches of about 8 MB, and check its size, digest and number of examples.

    Raises: CorruptRecordError that names the shard: for a wrong digest after the last batch.
    """
    path = storage.join(root, shard.name)
    stored = storage.size(path)
    if stored is None:
        raise CorruptRecordError(f"{path}: no such file", remedy=REMEDY)
    if stored != shard.num_bytes:
        raise CorruptRecordError(f"{path}: {stored} bytes, expected {shard.num_bytes}", remedy=REMEDY)
    num_examples = 0
    with storage.read_stream(path) as stream:
        counting = _Digesting(stream)
        for payloads in records.read_payloads(
            cast(BinaryIO, counting),
            compression=manifest.compression,
            place=path,
            most_record_bytes=manifest.schema.most_record_bytes,
        ):
            num_examples += len(payloads)
            if num_examples > shard.num_examples:  # a small file can unpack to any number of records
                raise CorruptRecordError(f"{path}: more than the expected {shard.num_examples} examples", remedy=REMEDY)
            yield payloads
        while counting.read(1 << 20):
            pass
    if counting.hexdigest() != shard.sha256:
        raise CorruptRecordError(
            f"{path}: sha256 {counting.hexdigest()}, expected {shard.sha256}: whole records were changed or exchanged",
            remedy=REMEDY,
        )
    if num_examples != shard.num_examples:
        raise CorruptRecordError(f"{path}: {num_examples} examples, expected {shard.num_examples}", remedy=REMEDY)


def check_columns(columns: dict[str, np.ndarray], manifest: Manifest, *, path: str, first: int) -> None:
    """Check decoded records of the shard at `path` from record `first` on. Raises: CorruptRecordError."""

    def expect(valid: np.ndarray, what: str) -> None:
        rows = np.flatnonzero(~valid.reshape(len(valid), -1).all(axis=1))
        if len(rows):
            raise CorruptRecordError(f"{path}, record {first + int(rows[0])}: {what}", remedy=REMEDY)

    for feature in manifest.schema.features:
        if feature.constant is not None:
            expect(columns[feature.name] == feature.constant, f"a {feature.name} other than {feature.constant}")
    facts, length = manifest.tokenizer, manifest.row_length
    ids = manifest.schema.values(columns, "token_ids")
    assert ids is not None, "a manifest has them"
    expect((ids >= 0) & (ids < facts.vocab_size), f"a token id outside 0 to {facts.vocab_size - 1}")
    for valid, what in (
        *packed_segments.invariants(columns, manifest.schema),
        *decoder_targets.invariants(columns, manifest),
    ):
        expect(valid, what)
    padded = padding(columns, manifest.schema, length=length, left=facts.padding_side == "left")
    if (mask := manifest.schema.values(columns, "attention_mask")) is not None:
        expect((mask == 0) | (mask == 1), "an attention mask with other values than 0 and 1")
        expect(
            mask == ~padded, f"an attention mask that is not one run of 1 before padding on the {facts.padding_side}"
        )
    elif (num_tokens := manifest.schema.values(columns, "num_tokens")) is not None:
        expect((num_tokens >= 1) & (num_tokens <= length), f"num_tokens outside 1 to {length}")
    expect((ids == facts.pad_id) | ~padded, f"something else than the pad id {facts.pad_id} in the padding")
    if (learned := manifest.schema.with_role("loss_mask")) is not None:
        mask = columns[learned.name]
        expect((mask == 0) | ((mask == 1) & ~padded), f"a {learned.name} of other values than 0 and 1, or 1 on padding")
    for valid, what in token_annotations.invariants(columns, manifest, padded):
        expect(valid, what)
    label = manifest.schema.with_role("label")
    if label is not None and manifest.multi_hot_size:
        expect((columns[label.name] >> 1 == 0).all(axis=1), f"a {label.name} of other values than 0 and 1")
    elif label is not None and manifest.label_names is not None:
        names = len(manifest.label_names)
        unlabelled = any(split.num_unlabelled for split in manifest.splits.values())
        known = (columns[label.name] >= (UNLABELLED if unlabelled else 0)) & (columns[label.name] < names)
        expect(known, f"a label outside 0 to {names - 1}{f', and not {UNLABELLED} for none' if unlabelled else ''}")


def padding(columns: dict[str, np.ndarray], schema: Schema, *, length: int, left: bool) -> np.ndarray:
    """Return which positions should be padding, bool [N, L], from segments, token counts or the attention mask."""
    if (segment_ids := schema.with_role("segment_ids")) is not None:
        return np.asarray(columns[segment_ids.name] == 0)
    position = np.arange(length)
    if (num_tokens := schema.values(columns, "num_tokens")) is not None:
        return np.asarray(position >= num_tokens[:, None])
    if (mask := schema.values(columns, "attention_mask")) is None:
        raise ManifestError("no feature says which tokens are padding", remedy=REMAKE)
    count = mask.sum(axis=1)[:, None]
    return np.asarray(position < length - count if left else position >= count)


class _Digesting:
    """A stream that digests what is read through it, so that each file is read only once."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._digest.update(data)
        return data

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
