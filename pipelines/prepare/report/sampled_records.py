"""Records to look at: of a finished dataset, a few thousand at fixed places; of a source, what its sample becomes.

    shard        |=....=....=....=|      runs of neighbouring records, read at random access
    gzip shard   |====............|      the beginnings of some shards, since the rest takes unpacking all before it

The places depend on the dataset alone, so that two reports of it are the same. Shards are shuffled unless --no-shuffle
was given, so records that stand together have nothing to do with each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.audit import verify
from pipelines.prepare.layouts import BatchEncoder, Encoded, length_groups
from pipelines.prepare.layouts.token_counts import count_tokens
from tfrecord_io import examples, random_access, records
from tfrecord_io.errors import CorruptRecordError
from tfrecord_io.manifest import Manifest, Shard

__all__ = ["SampledRecords", "of_dataset", "of_rows"]

# Of a split: 4,096 records tell a share of 1 % to within 0.3 %.
_RECORDS = 4096
# Of a split too, for long rows: 2 million positions are 16 MB for each feature.
_POSITIONS = 2 << 20
_RUN = 16
_GZIP_SHARDS = 8
_BATCH_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledRecords:
    """N records of one row length. `manifest` describes them: its row length is theirs.

    `columns`: values by feature name, [N, ...]. `places`: where each is, such as `record 5 of SHARD`.
    """

    manifest: Manifest
    columns: Mapping[str, np.ndarray]
    places: Sequence[str]

    @property
    def num_records(self) -> int:
        """N."""
        return len(self.places)

    @property
    def num_tokens(self) -> np.ndarray:
        """Tokens that are not padding, targets included, int64 [N]."""
        return count_tokens(self.columns, self.manifest.schema)


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


def of_rows(manifest: Manifest, encoder: BatchEncoder, encoded: Sequence[Encoded]) -> tuple[SampledRecords, ...]:
    """Lay out tokenized rows, at most as many as of a dataset, as a build would."""
    builder = encoder.builder()
    rows = 0
    for part in encoded[:: max(1, sum(len(each.reasons) for each in encoded) // _RECORDS)]:
        builder.add(part)
        rows += len(part.reasons)
    found = []
    for group in length_groups(builder):
        described = manifest if group.length is None else manifest.bucket(group.length)
        most = _POSITIONS // described.row_length + 1
        batches = list(_up_to(group.builder.chunks(None), most=min(most, 2 * _RECORDS)))
        columns = (
            {name: np.concatenate([batch[name] for batch in batches])[:most] for name in batches[0]} if batches else {}
        )
        count = len(next(iter(columns.values()))) if columns else 0
        if count:
            places = [f"record {index} of the sample" for index in range(count)]
            found.append(SampledRecords(manifest=described, columns=columns, places=places))
    return tuple(found)


def _up_to(batches: Iterator[dict[str, np.ndarray]], *, most: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches until there are `most` records."""
    for batch in batches:
        yield batch
        most -= len(next(iter(batch.values())))
        if most <= 0:
            return


def _spread(root: str, manifest: Manifest, split: str, *, wanted: int) -> SampledRecords:
    """Read runs of records, one from each of equal parts of the split, at a random place in it."""
    # One length was chosen, or there is only one.
    opened = random_access.open(root, engine="numpy")
    rows = (opened.bucket(manifest.row_length) if opened.manifest.bucket_lengths else opened)[split]
    count = len(rows)
    if count <= wanted:
        numbers = np.arange(count)
    else:
        runs = -(-count // _RUN)
        edges = np.linspace(0, runs, max(1, wanted // _RUN) + 1).astype(np.int64)
        draws = np.random.default_rng([zlib.crc32(split.encode()), manifest.row_length])
        starts = edges[:-1] + draws.integers(0, np.maximum(np.diff(edges), 1))
        numbers = (starts[:, None] * _RUN + np.arange(_RUN)).ravel()
        numbers = numbers[numbers < count]
    with contextlib.closing(rows):
        columns = rows.batch(numbers)
    shards = manifest.splits[split].shards
    firsts = np.cumsum([0, *(shard.num_examples for shard in shards)])
    at = np.searchsorted(firsts, numbers, "right") - 1
    places = [f"record {number - firsts[i]} of {shards[i].name}" for number, i in zip(numbers, at, strict=True)]
    for shard, first in zip(shards, firsts.tolist(), strict=False):
        here = np.flatnonzero((numbers >= first) & (numbers < first + shard.num_examples))
        for run in np.split(here, np.flatnonzero(np.diff(numbers[here]) != 1) + 1) if len(here) else ():
            part = {name: values[run] for name, values in columns.items()}
            path = storage.join(root, shard.name)
            verify.check_columns(part, manifest, path=path, first=int(numbers[run[0]]) - first)
    return SampledRecords(manifest=manifest, columns=columns, places=places)


def _beginnings(root: str, manifest: Manifest, split: str, *, wanted: int) -> SampledRecords:
    """Read the first records of a few shards from all along the split."""
    shards = manifest.splits[split].shards
    chosen = sorted({int(index) for index in np.linspace(0, len(shards) - 1, min(len(shards), _GZIP_SHARDS))})
    each = -(-wanted // len(chosen))
    parts: list[Mapping[str, np.ndarray]] = []
    places: list[str] = []
    for shard in (shards[index] for index in chosen):
        columns = _beginning(root, manifest, shard, wanted=each)
        parts.append(columns)
        places += [f"record {index} of {shard.name}" for index in range(len(next(iter(columns.values()))))]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return SampledRecords(manifest=manifest, columns=joined, places=places)


def _beginning(root: str, manifest: Manifest, shard: Shard, *, wanted: int) -> dict[str, Any]:
    path = storage.join(root, shard.name)
    batches: list[dict[str, np.ndarray]] = []
    try:
        with storage.read_stream(path) as stream:
            for payloads in records.read_payloads(
                stream,
                compression=manifest.compression,
                place=path,
                batch_bytes=_BATCH_BYTES,
                most_record_bytes=manifest.schema.most_record_bytes,
            ):
                columns = examples.decode(payloads, manifest.schema, place=path)
                verify.check_columns(columns, manifest, path=path, first=sum(len(b[next(iter(b))]) for b in batches))
                batches.append(columns)
                wanted -= len(payloads)
                if wanted <= 0:
                    break
    except FileNotFoundError as error:
        raise CorruptRecordError(f"{path}: no such file", remedy=verify.REMEDY) from error
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
