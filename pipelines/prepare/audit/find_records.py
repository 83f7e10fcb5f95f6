"""Finding the records of a finished dataset by the value of a kept column, such as an id. The source is not needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from pipelines.prepare import storage
from tfrecord_io import examples, records
from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest, Shard
from tfrecord_io.schema import Feature

__all__ = ["FoundRecord", "find_records"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundRecord:
    """A record, with the numbers of its shard and of itself as `trace` takes them. `name` is the shard's file."""

    split: str
    shard: int
    record: int
    name: str


def find_records(root: str, manifest: Manifest, wanted: str, *, split: str | None = None) -> list[FoundRecord]:
    """Return the records in which a kept column has a value, given as `COLUMN=VALUE`; by default in all splits.

    Raises: ReaderError if there is no such split, column or record, or the value is not of the column's type.
    """
    name, given, text = wanted.partition("=")
    kept = [each.name for each in manifest.schema.features if each.role in ("column", "label") and not each.shape]
    if name not in kept or not given:
        raise ReaderError(
            f"--find {wanted}: expected COLUMN=VALUE, with a column of single values that the records hold",
            remedy=f"choose among {', '.join(kept)}" if kept else "build the dataset with --keep-column",
        )
    if split is not None and split not in manifest.splits:
        raise ReaderError(f"no split {split!r}", remedy=f"choose among {', '.join(manifest.splits)}")
    value = _value(text, manifest.schema[name])
    found = [
        FoundRecord(split=each, shard=number, record=record, name=shard.name)
        for each in manifest.splits
        if split in (None, each)
        for number, shard in enumerate(manifest.splits[each].shards)
        for record in _in_shard(root, manifest, shard, name=name, value=value)
    ]
    if not found:
        raise ReaderError(
            f"--find {wanted}: no such record in {f'split {split!r}' if split else 'any split'}",
            remedy="look in the folder rejected/ for rows that could not be used",
        )
    return found


def _value(text: str, feature: Feature) -> Any:
    if feature.is_bytes:
        return text if feature.dtype == "string" else text.encode()
    try:
        return int(text) if feature.dtype == "int64" else np.float32(text)
    except ValueError as error:
        raise ReaderError(
            f"--find {feature.name}={text}: expected a number, as the column holds {feature.dtype}",
            remedy="write the value as a number",
        ) from error


def _in_shard(root: str, manifest: Manifest, shard: Shard, *, name: str, value: Any) -> Iterator[int]:
    schema = manifest.schema if shard.length is None else manifest.bucket(shard.length).schema
    path, first = storage.join(root, shard.name), 0
    with storage.read_stream(path) as stream:
        for payloads in records.read_payloads(
            stream, compression=manifest.compression, place=path, most_record_bytes=schema.most_record_bytes
        ):
            columns = examples.decode(payloads, schema, place=path)
            yield from (first + np.flatnonzero(columns[name] == value)).tolist()
            first += len(payloads)
