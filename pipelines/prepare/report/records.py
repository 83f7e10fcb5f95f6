"""Records to look at: a few thousand of a finished dataset, at fixed places.

    shard        |=....=....=....=|      runs of neighbouring records, read at random access
    gzip shard   |====............|      the beginnings of some shards, since the rest takes unpacking all before it

The places depend on the dataset alone, so that two reports of it are the same.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.audit import invariants, verify
from tfrecord_io import examples, random_access
from tfrecord_io.manifest import Manifest, Shard
from tfrecord_io.schema import Role

__all__ = ["Documents", "SampledRecords", "documents_of", "of_dataset", "token_positions"]

# Of a split: 4,096 records tell a share of 1 % to within 0.3 %; 2 million positions are 16 MB for each feature.
_RECORDS, _POSITIONS = 4096, 2 << 20
_RUN = 16
_GZIP_SHARDS = 8

Columns = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledRecords:
    """N records of one row length. `manifest` describes them: its row length is theirs.

    `columns`: values by feature name, [N, ...]. `places`: where each is, such as `record 5 of SHARD`.
    """

    manifest: Manifest
    columns: Columns
    places: Sequence[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Documents:
    """D documents: tokens, first and last id, int64 [D] each. A document is a segment (pack, chat), what stands between
    two end tokens (concat), or the row.

    Where rows cut documents apart (concat), only ends that are in a record are known: `first` and `last` then have
    fewer, and `lengths` none.
    """

    lengths: np.ndarray
    first: np.ndarray
    last: np.ndarray


def of_dataset(root: str, manifest: Manifest, split: str, *, share: float = 1.0) -> tuple[SampledRecords, ...]:
    """Read the sample of a split: `share` of the usual number of records.

    Raises: CorruptRecordError if a record is damaged; ReaderError if a shard is missing or cut off.
    """
    found = []
    for length in manifest.bucket_lengths or (None,):
        described = manifest if length is None else manifest.bucket(length)
        shards = described.splits[split].shards
        part = sum(shard.num_examples for shard in shards) / max(manifest.splits[split].num_examples, 1)
        wanted = round(min(_RECORDS, _POSITIONS // described.row_length + 1) * share * part)
        if shards:
            read = _spread if manifest.index_stride is not None else _beginnings
            found.append(read(root, described, split, wanted=max(wanted, _RUN)))
    return tuple(found)


def _spread(root: str, manifest: Manifest, split: str, *, wanted: int) -> SampledRecords:
    """Read runs of records, one from each of equal parts of the split, at a random place in it."""
    # One length was chosen, or there is only one.
    opened = random_access.open(root)
    rows = (opened.bucket(manifest.row_length) if opened.manifest.bucket_lengths else opened)[split]
    count = len(rows)
    if count <= wanted:
        numbers = np.arange(count)
    else:
        edges = np.linspace(0, -(-count // _RUN), max(1, wanted // _RUN) + 1).astype(np.int64)
        draws = np.random.default_rng([zlib.crc32(split.encode()), manifest.row_length])
        starts = edges[:-1] + draws.integers(0, np.maximum(np.diff(edges), 1))
        numbers = (starts[:, None] * _RUN + np.arange(_RUN)).ravel()
        numbers = numbers[numbers < count]
    columns = rows.batch(numbers)
    shards = manifest.splits[split].shards
    firsts = np.cumsum([0, *(shard.num_examples for shard in shards)])
    at = np.searchsorted(firsts, numbers, "right") - 1
    places = [f"record {number - firsts[i]} of {shards[i].name}" for number, i in zip(numbers, at, strict=True)]
    for run in np.split(np.arange(len(numbers)), np.flatnonzero((np.diff(numbers) != 1) | (np.diff(at) != 0)) + 1):
        path = storage.join(root, shards[at[run[0]]].name)
        part = {name: values[run] for name, values in columns.items()}
        invariants.check_columns(part, manifest, path=path, first=int(numbers[run[0]] - firsts[at[run[0]]]))
    return SampledRecords(manifest=manifest, columns=columns, places=places)


def _beginnings(root: str, manifest: Manifest, split: str, *, wanted: int) -> SampledRecords:
    """Read the first records of a few shards from all along the split."""
    shards = manifest.splits[split].shards
    chosen = sorted({int(index) for index in np.linspace(0, len(shards) - 1, min(len(shards), _GZIP_SHARDS))})
    each = -(-wanted // len(chosen))
    parts = [_first(_read(root, manifest, shards[index]), each) for index in chosen]
    places = [
        f"record {record} of {shards[index].name}"
        for index, columns in zip(chosen, parts, strict=True)
        for record in range(_count(columns))
    ]
    return SampledRecords(manifest=manifest, columns=_joined(parts), places=places)


def _read(root: str, manifest: Manifest, shard: Shard) -> Iterator[Columns]:
    path, first = storage.join(root, shard.name), 0
    for payloads in verify.read_shard(root, shard, manifest):
        columns = examples.decode(payloads, manifest.schema, place=path)
        invariants.check_columns(columns, manifest, path=path, first=first)
        first += len(payloads)
        yield columns


def _first(batches: Iterator[Columns], most: int) -> Columns:
    """Return the first `most` records of batches, or all that there are."""
    parts: list[Columns] = []
    for batch in batches:
        parts.append(batch)
        if sum(map(_count, parts)) >= most:
            break
    return {name: values[:most] for name, values in _joined(parts).items()}


def _joined(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _count(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def token_positions(part: SampledRecords) -> np.ndarray:
    """Return which positions of the inputs hold tokens rather than padding, bool [N, L]."""
    schema = part.manifest.schema
    marked: tuple[Role, ...] = ("segment_ids", "attention_mask")
    for role in marked:
        if (values := schema.values(part.columns, role)) is not None:
            return np.asarray(values > 0)
    num_tokens = schema.values(part.columns, "num_tokens")
    assert num_tokens is not None, "a manifest says which tokens are padding"
    return np.asarray(np.arange(part.manifest.row_length) < num_tokens[:, None])


def documents_of(parts: Sequence[SampledRecords]) -> Documents:
    """Return the documents of all parts."""
    found = [_documents(part) for part in parts]
    names = [field.name for field in dataclasses.fields(Documents)]
    empty = np.zeros(0, np.int64)
    return Documents(**{name: np.concatenate([empty, *(getattr(each, name) for each in found)]) for name in names})


def _documents(part: SampledRecords) -> Documents:
    schema, tokens = part.manifest.schema, token_positions(part)
    ids, segments = schema.values(part.columns, "token_ids"), schema.values(part.columns, "segment_ids")
    assert ids is not None, "a manifest has them"
    if segments is None and schema.with_role("attention_mask") is None:
        ends = tokens & (ids == _end_id(part.manifest))
        begins = np.pad(ends, ((0, 0), (1, 0)))[:, :-1] & tokens
        return Documents(lengths=np.zeros(0, np.int64), first=ids[begins], last=ids[ends])
    numbers = tokens.astype(np.int64) if segments is None else segments
    begins = tokens & (np.diff(numbers, axis=1, prepend=0) != 0)
    ends = tokens & (np.diff(numbers, axis=1, append=0) != 0)
    # Both in the order of rows and positions, so the n-th beginning belongs to the n-th end.
    return Documents(lengths=np.nonzero(ends)[1] - np.nonzero(begins)[1] + 1, first=ids[begins], last=ids[ends])


def _end_id(manifest: Manifest) -> int:
    """Return the id that ends each document with --layout concat, -1 if that is not known."""
    special, facts = manifest.layout.get("special_tokens", "eos"), manifest.tokenizer
    found = facts.sep_id if facts.eos_id is None else facts.eos_id
    return -1 if special == "none" or found is None else found
