"""Finding the records of a finished dataset by the value of a kept column, such as an id.

    uid=a17  ──►  the bytes of this entry in a record  ──►  searched in every shard  ──►  those records decoded

The source is not needed. Nothing is decoded but what holds these bytes, so a shard takes as long as its checksums do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from pipelines.prepare import storage
from tfrecord_io import examples, records
from tfrecord_io.errors import ReaderError
from tfrecord_io.examples import Payloads
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Feature, Schema

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
    kept = [feature.name for feature in manifest.schema.features if feature.role in ("column", "label")]
    if name not in kept or not given or manifest.schema[name].shape:
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
        for record in _in_shard(storage.join(root, shard.name), manifest, name, value, length=shard.length)
    ]
    if not found:
        raise ReaderError(
            f"--find {wanted}: no such record in {f'split {split!r}' if split else 'any split'}",
            remedy="look in the folder rejected/ for rows that could not be used",
        )
    return found


def _value(text: str, feature: Feature) -> np.ndarray:
    """Return the value as a column of one row."""
    try:
        if feature.is_bytes:
            return np.array([text if feature.dtype == "string" else text.encode()], object)
        return np.array([int(text) if feature.dtype == "int64" else float(text)], feature.dtype)
    except (ValueError, OverflowError) as error:
        raise ReaderError(
            f"--find {feature.name}={text}: expected a number, as the column holds {feature.dtype}",
            remedy="write the value as a number",
        ) from error


def _in_shard(path: str, manifest: Manifest, name: str, value: np.ndarray, *, length: int | None) -> Iterator[int]:
    schema = manifest.schema if length is None else manifest.bucket(length).schema
    entry, first = _entry(value, schema[name]), 0
    with storage.read_stream(path) as stream:
        for payloads in records.read_payloads(
            stream, compression=manifest.compression, place=path, most_record_bytes=schema.most_record_bytes
        ):
            for record in _holding(payloads, entry):
                one = payloads[record]
                alone = Payloads(np.frombuffer(one, np.uint8), np.array([0, len(one)]))
                if examples.decode(alone, schema, place=path)[name] == value:
                    yield first + record
            first += len(payloads)


def _entry(value: np.ndarray, feature: Feature) -> bytes:
    """Return the bytes of a feature in a record: those of a record of its own, behind their tag and size."""
    message = examples.encode({feature.name: value}, Schema((feature,)))[0]
    last_of_size = next(at for at in range(1, len(message)) if message[at] < 0x80)
    return message[last_of_size + 1 :]


def _holding(payloads: Payloads, entry: bytes) -> list[int]:
    """Return the records that have these bytes somewhere, ascending."""
    data, at, places = payloads.data.tobytes(), -1, []
    while (at := data.find(entry, at + 1)) >= 0:
        places.append(at)
    return np.unique(np.searchsorted(payloads.offsets, places, "right") - 1).tolist()
