"""Receipts of ingested files: the part of the source file, the number of rows, and the offsets of record batches.

    FOLDER/train-00003-00000.json     {"task": "0f3c...", "rows": 81234, "bytes": ..., "batches": {...}}

A plan is made from receipts alone, without reading rows.
"""

from __future__ import annotations

import dataclasses
import json
import posixpath
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.sources.formats.groups import Groups, StoredFile
from pipelines.prepare.sources.formats.row_files import Batches, RowFileWriter
from pipelines.prepare.sources.ingest.ingest_tasks import VERSION, IngestTask
from tfrecord_io.shown import without_access

__all__ = ["IngestReceipt", "find_receipts", "groups_of"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class IngestReceipt:
    """The result of a task: `task` is its digest, `source` the name of the source file, and `num_bytes` the size of the
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
    def of(cls, task: IngestTask, written: RowFileWriter) -> IngestReceipt:
        """Make the receipt of a task whose rows are written."""
        return cls._of(task, num_bytes=written.num_bytes, batches=written.batches)

    @classmethod
    def parse(cls, text: bytes, task: IngestTask) -> IngestReceipt | None:
        """Parse the receipt in `text`; None if it is damaged, or belongs to another task."""
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
        """Return the receipt as JSON."""
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
    """Return the receipt of each task; None if its Arrow file is missing or incomplete. Raises: OutputError."""
    if not tasks:
        return []
    sizes = storage.sizes(tasks[0].folder)
    receipts: list[IngestReceipt | None] = [None] * len(tasks)
    listed = [number for number, task in enumerate(tasks) if posixpath.basename(task.receipt_path) in sizes]
    texts = storage.read_many([tasks[number].receipt_path for number in listed])
    for number, text in zip(listed, texts, strict=True):
        receipt = IngestReceipt.parse(text, tasks[number]) if text else None
        if receipt is not None and sizes.get(posixpath.basename(tasks[number].path)) == receipt.num_bytes:
            receipts[number] = receipt
    return receipts


def groups_of(receipts: Sequence[IngestReceipt], columns: Sequence[str]) -> Groups:
    """Return the record batches of ingested files, in this order, as groups of rows of which `columns` are read."""
    return Groups(
        files=tuple(StoredFile(path=receipt.path, format="ipc", size=receipt.num_bytes) for receipt in receipts),
        file=np.repeat(np.arange(len(receipts), dtype=np.int32), [len(each.batches.num_rows) for each in receipts]),
        num_rows=_joined([each.batches.num_rows for each in receipts]),
        at=_joined([each.batches.at for each in receipts]),
        length=_joined([each.batches.length for each in receipts]),
        num_bytes=_joined([_num_bytes(each.batches, columns) for each in receipts]),
        stored_bytes=_joined([_stored_bytes(each.batches, columns) for each in receipts]),
        nulls={
            name: _joined([each.batches.nulls[name] for each in receipts])
            for name in columns
            if all(name in each.batches.nulls for each in receipts)  # not the fields of structs
        },
    )


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *arrays])


def _num_bytes(batches: Batches, columns: Sequence[str]) -> np.ndarray:
    """Bytes of the columns' values in memory, int64 [N]."""
    stored = {_column_of(name, batches.num_bytes) for name in columns}
    return sum((batches.num_bytes[name] for name in stored), np.zeros(len(batches.num_rows), np.int64))


def _column_of(name: str, stored: Collection[str]) -> str:
    """Return the stored column that has the field `name` of a struct."""
    while name not in stored and "." in name:
        name = name.rpartition(".")[0]
    return name


def _stored_bytes(batches: Batches, columns: Sequence[str]) -> np.ndarray:
    """The columns' share of the compressed messages, int64 [N], as if all columns were compressed equally well."""
    every = np.maximum(_num_bytes(batches, list(batches.num_bytes)), 1)
    return np.ceil(batches.length * (_num_bytes(batches, columns) / every)).astype(np.int64)


def _lists(arrays: Any) -> dict[str, list[int]]:
    return {name: array.tolist() for name, array in arrays.items()}


def _parsed(document: Any, task: IngestTask) -> Batches:
    """Parse the batches of a receipt. Raises: ValueError, KeyError or TypeError unless each has all its numbers."""
    length = len(document["num_rows"])

    def array(values: Any) -> np.ndarray:
        if len(values) != length or not all(type(value) is int and value >= 0 for value in values):
            raise ValueError("expected a count for each batch")
        return np.array(values, np.int64)

    return Batches(
        num_rows=array(document["num_rows"]),
        at=array(document["at"]),
        length=array(document["length"]),
        num_bytes={name: array(document["num_bytes"][name]) for name in task.types.names},
        nulls={name: array(document["nulls"][name]) for name in task.types.names},
    )
