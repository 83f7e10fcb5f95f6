"""Subject of a report: a finished dataset, and a sample of a few thousand records at fixed places.

    shard        |=....=....=....=|      runs of neighbouring records, read by random access
    gzip shard   |====............|      the first records of some shards: later ones require unpacking all before them

The places depend on the dataset alone, so that two reports of it are the same.
"""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.audit import invariants, verify
from pipelines.prepare.dataset.rejected_rows import RejectedContent
from tfrecord_io import examples, random_access
from tfrecord_io.manifest import Manifest, Split

# Sample of a split: 4,096 records give a share of 1 % to within 0.3 %; 2 million positions are 16 MB for each feature.
_RECORDS, _POSITIONS = 4096, 2 << 20
_RUN = 16
_GZIP_SHARDS = 8

Columns = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledRecords:
    """N records of one row length, which is the row length of `manifest`.

    `columns`: values by feature name, [N, ...]. `places`: where each is, such as `record 5 of SHARD`.
    """

    manifest: Manifest
    columns: Columns
    places: Sequence[str]


class Documents(NamedTuple):
    """Length in tokens, first id and last id of D documents, int64 [D] each.

    A document is a segment (pack, chat), the tokens between two end tokens (concat), or the row. Where rows cut
    documents apart (concat), only ends inside a record are known: `first` and `last` are then shorter, and `lengths`
    is empty.
    """

    lengths: np.ndarray
    first: np.ndarray
    last: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSubject:
    """One split: its sampled records for each row length, its entry in the manifest, and examples of rejected rows."""

    name: str
    parts: tuple[SampledRecords, ...]
    finished: Split
    rejected: tuple[RejectedContent, ...] = ()

    @property
    def num_sampled(self) -> int:
        """Number of sampled records."""
        return sum(len(part.places) for part in self.parts)

    @property
    def source_of_figures(self) -> str:
        """Note on the records that figures come from, to show beside the figures."""
        if self.num_sampled == self.finished.num_examples:
            return f"from all {self.num_sampled:,} records"
        return f"from a sample of {self.num_sampled:,} of {self.finished.num_examples:,} records"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """Data for all sections. `splits`: the splits to show in detail; `place`: the location of the source, if known."""

    manifest: Manifest
    tokenizer: Any
    splits: tuple[SplitSubject, ...]
    place: str = ""

    def token(self, token_id: int) -> str:
        """Return a token as the vocabulary writes it."""
        text = self.tokenizer.convert_ids_to_tokens(int(token_id))
        return str(token_id) if text is None else str(text)


def sampled_records(root: str, manifest: Manifest, split: str, *, share: float = 1.0) -> tuple[SampledRecords, ...]:
    """Read a sample of a split, `share` of the usual size. Raises: CorruptRecordError if damaged; ReaderError."""
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
    """Divide the split into equal parts, and read a run of records at a random place in each of them."""
    # `manifest` describes one bucket, or a dataset with one row length.
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
    """Read the first records of a few shards, spread over the split."""
    shards = manifest.splits[split].shards
    chosen = sorted({int(index) for index in np.linspace(0, len(shards) - 1, min(len(shards), _GZIP_SHARDS))})
    most = -(-wanted // len(chosen))
    parts: list[Columns] = []
    places: list[str] = []
    for shard in (shards[index] for index in chosen):
        path, first = storage.join(root, shard.name), 0
        for payloads in verify.read_shard(root, shard, manifest):
            columns = examples.decode(payloads, manifest.schema, place=path)
            invariants.check_columns(columns, manifest, path=path, first=first)
            last = min(first + len(payloads), most)
            parts.append({name: values[: last - first] for name, values in columns.items()})
            places += [f"record {record} of {shard.name}" for record in range(first, last)]
            first += len(payloads)
            if first >= most:
                break
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return SampledRecords(manifest=manifest, columns=columns, places=places)


def token_positions(part: SampledRecords) -> np.ndarray:
    """Return a mask of the input positions that hold tokens rather than padding, bool [N, L]."""
    manifest, left = part.manifest, part.manifest.tokenizer.padding_side == "left"
    return ~invariants.padding(dict(part.columns), manifest.schema, length=manifest.row_length, left=left)


def documents_of(parts: Sequence[SampledRecords]) -> Documents:
    """Return the documents of all parts of a sample."""
    none = Documents(*[np.zeros(0, np.int64)] * 3)
    return Documents(*map(np.concatenate, zip(none, *map(_documents, parts), strict=True)))


def _documents(part: SampledRecords) -> Documents:
    schema, tokens = part.manifest.schema, token_positions(part)
    ids, segments = schema.values(part.columns, "token_ids"), schema.values(part.columns, "segment_ids")
    assert ids is not None, "a manifest has them"
    if segments is None and schema.with_role("attention_mask") is None:
        # With --layout concat an end token follows each document, unless there is no such token.
        facts, special = part.manifest.tokenizer, part.manifest.layout.get("special_tokens", "eos")
        end = facts.sep_id if facts.eos_id is None else facts.eos_id
        ends = tokens & (ids == (-1 if special == "none" or end is None else end))
        begins = np.pad(ends, ((0, 0), (1, 0)))[:, :-1] & tokens
        return Documents(np.zeros(0, np.int64), ids[begins], ids[ends])
    numbers = tokens.astype(np.int64) if segments is None else segments
    begins = tokens & (np.diff(numbers, axis=1, prepend=0) != 0)
    ends = tokens & (np.diff(numbers, axis=1, append=0) != 0)
    # Both in the order of rows and positions, so the n-th beginning belongs to the n-th end.
    return Documents(np.nonzero(ends)[1] - np.nonzero(begins)[1] + 1, ids[begins], ids[ends])


def count(number: float) -> str:
    """Format a number, rounded to a whole one: 1,234."""
    return f"{round(number):,}"


def share(part: float, whole: float = 1.0) -> str:
    """Format a share in per cent, with more digits near 0 and 100, so that only an exact zero is 0 %."""
    percent = 100 * part / whole if whole else 0.0
    if percent in (0.0, 100.0):
        return f"{percent:.0f} %"
    if percent < 0.01:
        return "< 0.01 %"
    if percent < 1 or 99 < percent < 100:
        return f"{min(percent, 99.99):.2f} %"
    return f"{percent:.1f} %"


def some(number: int, noun: str) -> str:
    """Format a number with its noun: 1 shard, 3 shards."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
