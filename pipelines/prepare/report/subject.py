"""Subject of a report: a finished dataset, and a sample of a few thousand records at fixed places.

The sample consists of runs of neighbouring records. From gzip shards it takes the first records, since reading a later
one requires unpacking all earlier ones. The places depend only on the dataset, so reports are reproducible.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from pipelines.prepare.audit import invariants
from pipelines.prepare.dataset.rejected_rows import RejectedContent
from pipelines.prepare.tokenize.engines import HFTokenizer
from tfrecord_io import random_access
from tfrecord_io.manifest import Manifest, Split
from tfrecord_io.schema import ROLES
from tfrecord_io.shown import some

# Maximum sample of a split: 4,096 records show a share of 1 % as 0.7 to 1.3 %; 2 million positions are 16 MB a feature.
_RECORDS, _POSITIONS = 4096, 2 << 20
_RUN = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledRecords:
    """N sampled records of one length, the row length of `manifest`. `columns`: values [N, ...] by feature."""

    manifest: Manifest
    columns: Mapping[str, np.ndarray]
    num_records: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSubject:
    """One split: its manifest entry, a sample with one part per row length, and examples of rejected rows."""

    name: str
    parts: tuple[SampledRecords, ...]
    finished: Split
    rejected: tuple[RejectedContent, ...] = ()

    @property
    def num_sampled(self) -> int:
        return sum(part.num_records for part in self.parts)

    @property
    def source_of_figures(self) -> str:
        if self.num_sampled == self.finished.num_examples:
            return f"from all {some(self.num_sampled, 'record')}"
        return f"from a sample of {self.num_sampled:,} of {some(self.finished.num_examples, 'record')}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """Data for all sections of a report. `splits`: those to show in detail. `place`: where the source is, if known."""

    manifest: Manifest
    tokenizer: HFTokenizer
    splits: tuple[SplitSubject, ...]
    place: str = ""

    def token(self, token_id: int) -> str:
        text = self.tokenizer.convert_ids_to_tokens(int(token_id))
        return str(token_id) if text is None else str(text)


def sampled_records(root: str, manifest: Manifest, split: str, *, share: float = 1.0) -> tuple[SampledRecords, ...]:
    """Read up to `share` times 4,096 records of a split, as one part per row length. Raises: CorruptRecordError."""
    parts = []
    for length in manifest.bucket_lengths or (None,):
        described = manifest if length is None else manifest.bucket(length)
        shards = described.splits[split].shards
        fraction = sum(shard.num_examples for shard in shards) / max(manifest.splits[split].num_examples, 1)
        wanted = round(min(_RECORDS, _POSITIONS // described.row_length + 1) * share * fraction)
        if shards:
            parts.append(_spread(root, described, split, wanted=max(wanted, _RUN)))
    return tuple(parts)


def _spread(root: str, manifest: Manifest, split: str, *, wanted: int) -> SampledRecords:
    opened = random_access.open(root)
    rows = (opened.bucket(manifest.row_length) if opened.manifest.bucket_lengths else opened)[split]
    count = len(rows)
    if count <= wanted or manifest.index_stride is None:
        numbers = np.arange(min(count, wanted))
    else:
        starts = np.linspace(0, count - _RUN, max(1, wanted // _RUN)).astype(np.int64)
        numbers = np.unique(starts[:, None] + np.arange(_RUN))
    columns = rows.batch(numbers)
    invariants.check_columns(columns, manifest, path=f"{root}: sample of split {split!r}", first=0)
    return SampledRecords(manifest=manifest, columns=columns, num_records=len(numbers))


def lengths_of(part: SampledRecords) -> np.ndarray:
    """Return the number of tokens in each document of a sample, int64; empty if records split documents.

    A document is a record or, in layouts pack and chat, a segment of a record. A preference pair has two lengths: one
    for the prompt with each answer.
    """
    schema = part.manifest.schema
    if schema.with_role("token_ids") is None:
        masks = (schema.mask_of(ROLES[feature.role].side) for feature in schema.token_features)
        return np.concatenate([part.columns[mask.name].sum(axis=1) for mask in masks if mask is not None])
    segments = schema.values(part.columns, "segment_ids")
    if segments is None and schema.with_role("attention_mask") is None:
        return np.zeros(0, np.int64)
    tokens = ~invariants.padding(part.columns, part.manifest)
    numbers = tokens.astype(np.int64) if segments is None else segments
    begins = tokens & (np.diff(numbers, axis=1, prepend=0) != 0)
    ends = tokens & (np.diff(numbers, axis=1, append=0) != 0)
    # `nonzero` sorts by row and position, so the n-th beginning belongs to the n-th end.
    return np.asarray(np.nonzero(ends)[1] - np.nonzero(begins)[1] + 1)


def count(number: float) -> str:
    """Format a number, rounded, as in 1,234."""
    return f"{round(number):,}"


def shortened(text: str, *, most: int = 1000) -> str:
    return text if len(text) <= most else f"{text[:most]} …"


def share(part: float, whole: float = 1.0) -> str:
    """Format part / whole in percent, with more digits near 0 and 100, so that only an exact zero is shown as 0 %."""
    percent = 100 * part / whole if whole else 0.0
    if percent in (0.0, 100.0):
        return f"{percent:.0f} %"
    if percent < 0.01:
        return "< 0.01 %"
    if percent < 1 or 99 < percent < 100:
        return f"{min(percent, 99.99):.2f} %"
    return f"{percent:.1f} %"
