"""Verify that a dataset has the bytes that were committed, and repair damaged files.

    damaged                                repaired from
    a shard, its list of rejected rows     the plan and the source, byte for byte
    the indexes of an intact shard         the shard
    a copy of the tokenizer                the other copy
    the files for TFDS                     the manifest

Manifests from before an append are checked, but cannot be made again.
The manifest is never written: a repaired shard must have the digest in the manifest.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Literal, cast

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.audit.consent import NONE, Consent
from pipelines.prepare.audit.invariants import REPAIR, check_columns
from pipelines.prepare.audit.reopened_dataset import reopen
from pipelines.prepare.dataset import rejected_rows, tfds
from pipelines.prepare.dataset.job import rejected_path
from pipelines.prepare.dataset.own_files import WORK_FOLDER
from pipelines.prepare.layouts.base import count_tokens
from pipelines.prepare.shards import shard_writer
from pipelines.prepare.sources.rows.unused_rows import words_of
from pipelines.prepare.tokenize.saved_copy import bytes_digest
from tfrecord_io import examples, records
from tfrecord_io.errors import CorruptRecordError, FormatError, OutputError, PrepError
from tfrecord_io.examples import Payloads
from tfrecord_io.format.record_index import ShardIndexes
from tfrecord_io.manifest import Manifest, Shard, former_name, parse
from tfrecord_io.shown import some

Part = Literal["shard", "index", "rejected", "tokenizer", "tfds", "manifest"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedFile:
    """Result of checking one file. `problem`: '' if intact. `split`, `index`: split and number of the file's shard."""

    part: Part
    file: str
    problem: str
    split: str = ""
    index: int = 0


def verify_files(root: str, manifest: Manifest) -> Iterator[CheckedFile]:
    of_length = _by_length(manifest)
    for split_name, split in manifest.splits.items():
        checked: set[int] = set()
        for index, (task, shard) in enumerate(zip(split.tasks, split.shards, strict=True)):
            yield from _check_shard(root, of_length[shard.length], shard, split=split_name, index=index)
            if task in checked:
                continue  # the first shard of a task counts all rejected rows of the task
            checked.add(task)
            file = rejected_path(split_name, task)
            problem = _rejected_problem(storage.join(root, file), shard)
            if problem or shard.ledger.rejected:
                yield CheckedFile(part="rejected", file=file, problem=problem, split=split_name, index=index)
    digest = bytes_digest(storage.read_folder(storage.join(root, "tokenizer")))
    problem = "" if digest == manifest.tokenizer.content_sha256 else "differs from the tokenizer in the manifest"
    yield CheckedFile(part="tokenizer", file="tokenizer", problem=problem)
    for name, content in tfds.files(manifest).items():
        problem = _problem(storage.join(root, name), content, otherwise="differs from the manifest")
        yield CheckedFile(part="tfds", file=name, problem=problem)
    for number, generation in enumerate(manifest.generations[:-1]):
        name = former_name(number)
        problem = _former_problem(storage.join(root, name), generation.fingerprint)
        yield CheckedFile(part="manifest", file=name, problem=problem)


def _by_length(manifest: Manifest) -> dict[int | None, Manifest]:
    return {None: manifest, **{length: manifest.bucket(length) for length in manifest.bucket_lengths}}


def _check_shard(root: str, manifest: Manifest, shard: Shard, *, split: str, index: int) -> Iterator[CheckedFile]:
    indexes: dict[str, bytes] = {}
    problem = ""
    try:
        indexes = verify_shard(root, shard, manifest)
    except OutputError:
        raise  # the storage failed, so the shard may be intact
    except PrepError as error:
        problem = error.cause
    except OSError as error:
        problem = f"{storage.join(root, shard.name)}: cannot be read: {error}"
    yield CheckedFile(part="shard", file=shard.name, problem=problem, split=split, index=index)
    for name, content in indexes.items():
        problem = _problem(storage.join(root, name), content, otherwise="differs from the offsets of the records")
        yield CheckedFile(part="index", file=name, problem=problem, split=split, index=index)


def _former_problem(path: str, fingerprint: str) -> str:
    try:
        former = parse(storage.read_bytes(path), place=path)
    except FileNotFoundError:
        return "missing"
    except FormatError as error:
        return error.cause
    return "" if former.fingerprint == fingerprint else "differs from the generation in the manifest"


def _rejected_problem(path: str, shard: Shard) -> str:
    expected = shard.ledger.rejected
    try:
        counts = dict(collections.Counter(row.reason for row in rejected_rows.read(path)))
    except FileNotFoundError:
        return "missing" if expected else ""
    except FormatError as error:
        return error.cause
    if counts == expected:
        return ""
    listed, wanted = (
        ", ".join(f"{words_of(reason)} in {rows:,}" for reason, rows in sorted(by_reason.items())) or "none"
        for by_reason in (counts, expected)
    )
    return f"rejected rows: {listed}, expected: {wanted}"


def _problem(path: str, expected: bytes, *, otherwise: str) -> str:
    try:
        content = storage.read_bytes(path, most_bytes=len(expected))
    except FileNotFoundError:
        return "missing"
    except FormatError:
        return otherwise
    return "" if content == expected else otherwise


def verify_shard(root: str, shard: Shard, manifest: Manifest) -> dict[str, bytes]:
    """Check one shard, and return the expected content of its index files, by path. Raises: CorruptRecordError."""
    path = storage.join(root, shard.name)
    indexes = ShardIndexes(shard.name, indexed=manifest.index_stride is not None)
    num_examples, num_tokens = 0, 0
    for payloads in read_shard(root, shard, manifest):
        columns = examples.decode(payloads, manifest.schema, place=path)
        check_columns(columns, manifest, path=path, first=num_examples)
        indexes.add(np.diff(payloads.offsets) + records.FRAME_BYTES)
        num_examples += len(payloads)
        num_tokens += int(count_tokens(columns, manifest.schema).sum())
    if num_tokens != shard.num_tokens:
        content = f"{some(num_examples, 'example')} with {some(num_tokens, 'token')}"
        raise _damaged(path, f"{content}, expected {shard.num_tokens:,}")
    return indexes.files()


def _damaged(path: str, problem: str) -> CorruptRecordError:
    return CorruptRecordError(f"{path}: {problem}", remedy=REPAIR)


def read_shard(root: str, shard: Shard, manifest: Manifest) -> Iterator[Payloads]:
    """Yield a shard's serialized examples in batches of about 8 MB. Check its size, number of examples and sha256.

    Raises: CorruptRecordError, for the sha256 only after the last batch.
    """
    path = storage.join(root, shard.name)
    stored = storage.size(path)
    if stored is None:
        raise _damaged(path, "no such file")
    if stored != shard.num_bytes:
        raise _damaged(path, f"{some(stored, 'byte')}, expected {shard.num_bytes:,}")
    num_examples = 0
    with storage.read_stream(path) as stream:
        hashing = _HashingStream(stream)
        for payloads in records.read_payloads(
            cast(BinaryIO, hashing),
            compression=manifest.compression,
            place=path,
            most_record_bytes=manifest.schema.most_record_bytes,
        ):
            num_examples += len(payloads)
            if num_examples > shard.num_examples:  # a small file can unpack to any number of records
                raise _damaged(path, f"more than the expected {some(shard.num_examples, 'example')}")
            yield payloads
        while hashing.read(1 << 20):
            pass
    if (sha256 := hashing.digest.hexdigest()) != shard.sha256:
        raise _damaged(path, f"sha256 {sha256}, expected {shard.sha256}: whole records were replaced")
    if num_examples != shard.num_examples:
        raise _damaged(path, f"{some(num_examples, 'example')}, expected {shard.num_examples:,}")


class _HashingStream:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.digest = stream, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(size)
        self.digest.update(content)
        return content


def repair(
    root: str, manifest: Manifest, damaged: Sequence[CheckedFile], *, consent: Consent = NONE
) -> Iterator[tuple[str, str]]:
    """Repair the `damaged` files that `verify_files` reported; yield each file's name and where its content came from.

    Raises: the errors of `reopen`, before anything is changed; OutputError if a remade shard differs from the original,
        and FormatError for a manifest from before an append, possibly after other files were repaired.
    """
    described = _by_length(manifest)
    task_of = {file: manifest.splits[file.split].tasks[file.index] for file in damaged if file.split}
    remade = sorted({(file.split, task_of[file]) for file in damaged if file.part in ("shard", "rejected")})
    reopened = reopen(root, manifest, consent=consent) if remade else None
    if remade or any(file.part == "tokenizer" for file in damaged):
        yield from _restore_tokenizer(root, manifest)
    if reopened is not None:
        encoder = reopened.job.open_encoder()
        of_tasks = {split: manifest.splits[split].by_task() for split, _ in remade}
        for split, task in remade:  # a task may make several files; its intact ones stay the same
            expected = of_tasks[split][task]
            shard_writer.write(*reopened.task(split, task), encoder, expected=expected)
            for shard in expected:
                verify_shard(root, shard, described[shard.length])
                yield shard.name, "the source"
        yield from ((file.file, "the source") for file in damaged if file.part == "rejected")
    for file in damaged:
        if file.part == "tfds":
            storage.write_bytes(storage.join(root, file.file), tfds.files(manifest)[file.file], inside=root)
            yield file.file, "the manifest"
        elif file.part == "index" and (file.split, task_of[file]) not in remade:
            shard = manifest.splits[file.split].shards[file.index]
            content = verify_shard(root, shard, described[shard.length])[file.file]
            storage.write_bytes(storage.join(root, file.file), content, inside=root)
            yield file.file, "its shard"
    if former := [file.file for file in damaged if file.part == "manifest"]:
        cause = f"{root}: {former[0]}, the manifest from before an append, cannot be made again"
        raise FormatError(cause, remedy="copy it from an intact copy of the dataset")


def _restore_tokenizer(root: str, manifest: Manifest) -> Iterator[tuple[str, str]]:
    folders = ("tokenizer", storage.join(WORK_FOLDER, manifest.fingerprint, "tokenizer"))
    copies = {name: storage.read_folder(storage.join(root, name)) for name in folders}
    sound = [name for name in folders if bytes_digest(copies[name]) == manifest.tokenizer.content_sha256]
    if not sound:
        cause = f"{root}: neither {folders[0]}/ nor {folders[1]}/ holds the tokenizer that the manifest names"
        raise FormatError(cause, remedy="copy one of these folders from an intact copy of the dataset")
    wanted = copies[sound[0]]
    for folder in folders:
        if folder in sound:
            continue
        for name in copies[folder].keys() - wanted.keys():
            storage.delete(storage.join(root, folder, name), inside=root)
        for name, content in wanted.items():
            if copies[folder].get(name) != content:
                storage.write_bytes(storage.join(root, folder, name), content, inside=root)
        yield folder, f"{sound[0]}/"
