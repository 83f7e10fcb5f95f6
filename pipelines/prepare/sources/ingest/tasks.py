"""Ingest tasks: groups of consecutive shards of a stream, each of which becomes one Parquet part.

    shards of `datasets`    0.jsonl   1.jsonl   2.jsonl   3.jsonl ...      mostly one for each file
    parts                   |  0, about 16 MB   |  1, about 16 MB  |

The cuts depend on the source alone, so that the same source has the same rows in the same row groups everywhere.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.sources.resolve.data_files import DataFile, SourceListing

__all__ = ["IngestSource", "IngestTask", "SplitStream", "folder_of"]

# The version of the ingested files; files of another version are ingested again.
VERSION = 3

_PART_BYTES = 16_000_000
_MOST_PARTS = 2000
_DIGEST_LETTERS = 16


class IngestTask(NamedTuple):
    """Shards of a stream to write as one part: group `part` of `parts`, as `IterableDataset.shard` cuts them."""

    split: str
    part: int
    parts: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitStream:
    """The rows of a split to ingest: an IterableDataset of `datasets`, whose rows have `types`.

    `batch_rows` are read at a time. `files` are those of the split, `shard_files` the number of the file of each shard,
    empty if they do not correspond.
    """

    dataset: Any
    types: pa.Schema
    batch_rows: int
    files: tuple[DataFile, ...]
    shard_files: tuple[int, ...] = ()

    @property
    def num_shards(self) -> int:
        """Number of shards of the stream."""
        return int(self.dataset.num_shards)

    def tasks(self, split: str) -> list[IngestTask]:
        """Return the tasks for all rows of the split."""
        parts = -(-sum(file.size for file in self.files) // _PART_BYTES)
        parts = max(1, min(parts, self.num_shards, _MOST_PARTS))
        return [IngestTask(split, part, parts) for part in range(parts)]

    def task_of(self, split: str, shard: int) -> IngestTask:
        """Return the task for one shard alone."""
        return IngestTask(split, shard, self.num_shards)

    def shards_of(self, task: IngestTask) -> range:
        """Return the numbers of the shards of a task: `IterableDataset.shard` gives the first groups one more."""
        each, more = divmod(self.num_shards, task.parts)
        first = each * task.part + min(task.part, more)
        return range(first, first + each + (task.part < more))

    def file_of(self, shard: int) -> DataFile | None:
        """Return the file of a shard, if that is known."""
        return self.files[self.shard_files[shard]] if self.shard_files else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class IngestSource:
    """What all tasks of a source share: the streams by split, and the folder of the parts.

    `inside` is the folder that must exist when a part is written (see `storage.write_atomic`).
    """

    streams: Mapping[str, SplitStream]
    folder: str
    inside: str | None = None

    def path(self, task: IngestTask) -> str:
        """Return the path of a part."""
        return storage.join(self.folder, f"{task.split}-{task.part:05}-of-{task.parts:05}.parquet")

    def tasks(self) -> list[IngestTask]:
        """Return the tasks of all splits."""
        return [task for split, stream in self.streams.items() for task in stream.tasks(split)]


def folder_of(root: str, listing: SourceListing, types: Mapping[str, pa.Schema]) -> str:
    """Return the folder below `root` for the rows of a source, which no other rows can be in."""
    splits = {
        split: [[file.name, file.size, file.version] for file in files] for split, files in listing.splits.items()
    }
    total = hashlib.sha256(json.dumps([VERSION, listing.kind, listing.identity, splits], sort_keys=True).encode())
    for each in types.values():
        total.update(b"\0" + each.serialize().to_pybytes())
    return storage.join(root, f"rows-{total.hexdigest()[:_DIGEST_LETTERS]}")
