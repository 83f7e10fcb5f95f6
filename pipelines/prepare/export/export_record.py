"""export.json, the commit record of an export (docs/format.md), and the receipts of its shards.

The record contains no path, time or host name, so equal exports have identical files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pipelines.prepare import storage
from tfrecord_io.errors import FormatError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import ABSENT, FINGERPRINT, NAME, WRONG, Count, Name, Sha256, decoded, mapping, text
from tfrecord_io.shown import some

FILE_NAME = "export.json"
_FORMAT, _VERSION = "prep-tfrecords-export", "1.0"


def _path(value: Any) -> str:
    for part in text(value).split("/"):
        text(part, NAME)
    return str(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """A file of an export. `name` includes its folder, if any."""

    name: Annotated[str, _path]
    num_bytes: Count
    sha256: Sha256

    @classmethod
    def of(cls, name: str, content: Any) -> ExportedFile:
        view = memoryview(content)
        return cls(name=name, num_bytes=view.nbytes, sha256=hashlib.sha256(view).hexdigest())


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportedShard:
    """Receipt for an exported shard, with its files. `counts`: the figures in `Writer.counts`, if any."""

    split: Name
    shard: Name
    shard_sha256: Sha256
    num_examples: Count
    num_tokens: Count
    files: tuple[ExportedFile, ...]
    counts: Mapping[str, Count] = dataclasses.field(default_factory=dict, metadata=ABSENT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """Record of a finished export. `items`: everything that affects the files. `key`: the digest of `items`."""

    key: str
    items: Mapping[str, Any]
    shards: tuple[ExportedShard, ...]
    files: tuple[ExportedFile, ...]


def dump(content: ExportedShard | ExportRecord) -> bytes:
    """Return the canonical JSON of a shard's receipt, or of an export's record."""
    document = dataclasses.asdict(content)
    if isinstance(content, ExportRecord):
        document |= {"format": _FORMAT, "format_version": _VERSION}
        document["sha256"] = _seal(document)
    return _text(document)


def read(root: str) -> ExportRecord | None:
    """Return the record of the export in `root`, or None if there is none. Raises: FormatError."""
    path = storage.join(root, FILE_NAME)
    try:
        content = storage.read_bytes(path)
    except FileNotFoundError:
        return None
    try:
        document = mapping(json_fields.load(content))
        if document.pop("sha256") != _seal(document) or document["format"] != _FORMAT:
            raise ValueError("the sha256 does not match the other fields")
        return ExportRecord(
            key=text(document["key"], FINGERPRINT),
            items=mapping(document["items"]),
            shards=decoded(tuple[ExportedShard, ...], document["shards"]),
            files=decoded(tuple[ExportedFile, ...], document["files"]),
        )
    except WRONG as error:
        cause = f"{path}: damaged, or not written by `prep-tfrecords export` ({error!r:.200})"
        raise FormatError(cause, remedy="delete this folder, and export again") from error


def problems(root: str, record: ExportRecord) -> Iterator[tuple[str, str]]:
    """Yield the name and the problem ('' if intact) of each file that the record of the export in `root` lists."""
    for file in (*(file for shard in record.shards for file in shard.files), *record.files):
        digest, num_bytes = hashlib.sha256(), 0
        try:
            with storage.read_stream(storage.join(root, file.name)) as stream:
                while piece := stream.read(1 << 22):
                    digest.update(piece)
                    num_bytes += len(piece)
        except FileNotFoundError:
            yield file.name, "missing"
            continue
        sha256 = digest.hexdigest()
        is_intact = (num_bytes, sha256) == (file.num_bytes, file.sha256)
        problem = f"{some(num_bytes, 'byte')} with sha256 {sha256}, expected {file.num_bytes:,} with {file.sha256}"
        yield file.name, "" if is_intact else problem


def receipt_of(content: bytes) -> ExportedShard | None:
    """Parse a shard's receipt; return None if `content` is not a receipt."""
    try:
        receipt: ExportedShard = decoded(ExportedShard, json_fields.load(content))
        return receipt
    except WRONG:
        return None


def _seal(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(document)).hexdigest()


def _text(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
