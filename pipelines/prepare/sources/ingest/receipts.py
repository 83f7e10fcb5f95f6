"""Receipts of parts: the rows of each shard in it, its size, and the digest of its footer.

    FOLDER/train-00003-of-00012.json     {"task": [...], "rows": [500, 412], "bytes": 81234, ...}

Rows, bytes and nulls of each row group are in the part's own footer, as in any Parquet file.
"""

from __future__ import annotations

import dataclasses
import json
import posixpath
from collections.abc import Collection, Sequence

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.sources.ingest.tasks import VERSION, IngestSource, IngestTask
from pipelines.prepare.sources.parquet import footers
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.resolve.data_files import DataFile

__all__ = ["IngestReceipt", "find_receipts", "read_groups"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class IngestReceipt:
    """The result of a task: the rows of each shard, the size of the part, and the digest of its footer."""

    task: IngestTask
    rows: tuple[int, ...]
    num_bytes: int
    footer: str

    @classmethod
    def parse(cls, text: bytes, task: IngestTask) -> IngestReceipt | None:
        """Parse the receipt in `text`; None if it is damaged, or belongs to another task."""
        try:
            document = json.loads(text)
            if document["version"] != VERSION or document["task"] != list(task):
                return None
            rows = tuple(document["rows"])
            if not all(type(each) is int and each >= 0 for each in (*rows, document["bytes"])):
                return None
            return cls(task=task, rows=rows, num_bytes=document["bytes"], footer=str(document["footer"]))
        except (ValueError, KeyError, TypeError):
            return None

    def dump(self) -> bytes:
        """Return the receipt as JSON."""
        document = {
            "version": VERSION,
            "task": list(self.task),
            "rows": self.rows,
            "bytes": self.num_bytes,
            "footer": self.footer,
        }
        return (json.dumps(document, separators=(",", ":")) + "\n").encode()


def find_receipts(source: IngestSource, tasks: Sequence[IngestTask]) -> list[IngestReceipt | None]:
    """Return the receipt of each task; None if its part is missing or incomplete. Raises: OutputError."""
    if not tasks:
        return []
    sizes = storage.sizes(source.folder)
    receipts: list[IngestReceipt | None] = [None] * len(tasks)
    listed = [number for number, task in enumerate(tasks) if posixpath.basename(source.receipt_path(task)) in sizes]
    texts = storage.read_many([source.receipt_path(tasks[number]) for number in listed])
    for number, text in zip(listed, texts, strict=True):
        receipt = IngestReceipt.parse(text, tasks[number]) if text else None
        if receipt is not None and sizes.get(posixpath.basename(source.path(tasks[number]))) == receipt.num_bytes:
            receipts[number] = receipt
    return receipts


def read_groups(
    source: IngestSource, receipts: Sequence[IngestReceipt], columns: Collection[str] | None
) -> list[Groups]:
    """Return the row groups of each part, by its footer, with the bytes of `columns`.

    Raises: SourceError if a part is not the one that was written.
    """
    files = [DataFile(path=source.path(each.task), name="", size=each.num_bytes, version="") for each in receipts]
    read = footers.read_footers(files, columns, digests=[each.footer for each in receipts])
    return [
        footers.groups_of(file, footer, source_rows=np.array(receipt.rows, np.int64))
        for file, footer, receipt in zip(files, read, receipts, strict=True)
    ]
