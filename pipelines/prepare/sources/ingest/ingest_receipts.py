"""Receipts of ingested files: which part of which source file, how many rows, and where its record batches lie.

    FOLDER/train-00003-00000.json     {"task": "0f3c...", "rows": 81234, "bytes": ..., "batches": {...}}

What a plan needs of ingested rows is in here, and no row has to be read for it.
"""

from __future__ import annotations

import dataclasses
import json
import posixpath
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.sources.formats.groups import Groups, StoredFile
from pipelines.prepare.sources.formats.row_files import Batches, RowFile
from pipelines.prepare.sources.ingest.ingest_tasks import VERSION, IngestTask
from tfrecord_io.shown import without_access

__all__ = ["IngestReceipt", "find_receipts", "groups_of"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class IngestReceipt:
    """What became of a task. `task` is its digest, `source` the name of the file, and `num_bytes` is the size of the
    Arrow file at `path`.
    """

    task: str
    path: str
    split: str
    source: str
    source_bytes: int
    source_version: str
    num_bytes: int
    batches: Batches

    @classmethod
    def of(cls, task: IngestTask, rows: RowFile) -> IngestReceipt:
        """The receipt of a task whose rows are written."""
        return cls._of(task, num_bytes=rows.num_bytes, batches=rows.batches)

    @classmethod
    def parse(cls, text: bytes, task: IngestTask) -> IngestReceipt | None:
        """The receipt in `text`; None if it is damaged, or that of another task."""
        try:
            document = json.loads(text)
            if document["version"] != VERSION or document["task"] != task.digest:
                return None
            receipt = cls._of(task, num_bytes=int(document["bytes"]), batches=_parsed(document["batches"], task))
            return receipt if receipt.num_rows == document["rows"] else None
        except (ValueError, KeyError, TypeError, OverflowError):
            return None

    @property
    def num_rows(self) -> int:
        """Rows of the file."""
        return int(self.batches.num_rows.sum())

    def dump(self) -> bytes:
        """The receipt as JSON."""
        arrays = {name: getattr(self.batches, name).tolist() for name in ("num_rows", "at", "length")}
        columns = {name: _lists(getattr(self.batches, name)) for name in ("num_bytes", "nulls")}
        document = {
            "version": VERSION,
            "task": self.task,
            "source": {"name": self.source, "bytes": self.source_bytes, "version": self.source_version},
            "rows": self.num_rows,
            "bytes": self.num_bytes,
            "batches": {**arrays, **columns},
        }
        return (json.dumps(document, separators=(",", ":")) + "\n").encode()

    @classmethod
    def _of(cls, task: IngestTask, *, num_bytes: int, batches: Batches) -> IngestReceipt:
        return cls(
            task=task.digest,
            path=without_access(task.path),
            split=task.split,
            source=task.name,
            source_bytes=task.file.size,
            source_version=task.version,
            num_bytes=num_bytes,
            batches=batches,
        )


def find_receipts(tasks: Sequence[IngestTask]) -> list[IngestReceipt | None]:
    """The receipt of each task; None where its file is not there, or not whole. Raises: OutputError."""
    if not tasks:
        return []
    there = storage.sizes(tasks[0].folder)
    found: list[IngestReceipt | None] = [None] * len(tasks)
    asked = [number for number, task in enumerate(tasks) if posixpath.basename(task.receipt_path) in there]
    texts = storage.read_many([tasks[number].receipt_path for number in asked])
    for number, text in zip(asked, texts, strict=True):
        receipt = IngestReceipt.parse(text, tasks[number]) if text else None
        if receipt is not None and there.get(posixpath.basename(tasks[number].path)) == receipt.num_bytes:
            found[number] = receipt
    return found


def groups_of(receipts: Sequence[IngestReceipt], columns: Sequence[str]) -> Groups:
    """The record batches of ingested files, in this order, as groups of rows of which `columns` are read."""
    return Groups(
        files=tuple(StoredFile(path=receipt.path, format="ipc", size=receipt.num_bytes) for receipt in receipts),
        file=np.repeat(np.arange(len(receipts), dtype=np.int32), [len(each.batches.num_rows) for each in receipts]),
        num_rows=_joined([each.batches.num_rows for each in receipts]),
        at=_joined([each.batches.at for each in receipts]),
        length=_joined([each.batches.length for each in receipts]),
        num_bytes=_joined([_read(each.batches, columns) for each in receipts]),
        stored_bytes=_joined([_stored(each.batches, columns) for each in receipts]),
        nulls={name: _joined([each.batches.nulls[name] for each in receipts]) for name in columns},
    )


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *arrays])


def _read(batches: Batches, columns: Sequence[str]) -> np.ndarray:
    """Bytes of the columns' values, int64 [N]."""
    return sum((batches.num_bytes[name] for name in columns), np.zeros(len(batches.num_rows), np.int64))


def _stored(batches: Batches, columns: Sequence[str]) -> np.ndarray:
    """The columns' share of the messages, int64 [N]: how well each one was compressed is not known."""
    every = np.maximum(_read(batches, list(batches.num_bytes)), 1)
    return np.ceil(batches.length * (_read(batches, columns) / every)).astype(np.int64)


def _lists(arrays: Any) -> dict[str, list[int]]:
    return {name: array.tolist() for name, array in arrays.items()}


def _parsed(document: Any, task: IngestTask) -> Batches:
    """Raises: ValueError, KeyError, TypeError if there is not a number for each batch."""
    length = len(document["num_rows"])

    def array(values: Any) -> np.ndarray:
        if len(values) != length or not all(type(value) is int and value >= 0 for value in values):
            raise ValueError("not a count for each batch")
        return np.array(values, np.int64)

    return Batches(
        num_rows=array(document["num_rows"]),
        at=array(document["at"]),
        length=array(document["length"]),
        num_bytes={name: array(document["num_bytes"][name]) for name in task.types.names},
        nulls={name: array(document["nulls"][name]) for name in task.types.names},
    )
