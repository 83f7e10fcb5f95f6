"""Small source files, and their rows after ingest."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import zstandard

from pipelines.prepare.sources.files.data_files import DataFile, FileKind
from pipelines.prepare.sources.formats import type_inference
from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.ingest.ingest_receipts import IngestReceipt
from pipelines.prepare.sources.ingest.ingest_tasks import IngestTask, tasks_of

__all__ = ["PACKERS", "as_datasets", "data_file", "ingested", "json_lines", "rows_of", "tasks", "written"]

PACKERS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: zstandard.ZstdCompressor().compress(content),
}
_READERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "json": ("json", {}),
    "csv": ("csv", {}),
    "tsv": ("csv", {"sep": "\t"}),
    "text": ("text", {"encoding": "utf-8-sig"}),
    "arrow": ("arrow", {}),
    "parquet": ("parquet", {}),
}


def json_lines(*rows: Any, end: str = "\n") -> bytes:
    """Rows as JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows).encode()


def written(path: Path, content: bytes, kind: FileKind = "json") -> DataFile:
    """A file with this content, packed as its name says."""
    path.write_bytes(PACKERS.get(path.suffix, bytes)(content))
    return data_file(path, kind)


def data_file(path: Path, kind: FileKind) -> DataFile:
    """A local file as it is in a listing."""
    found = os.stat(path)
    return DataFile(path=str(path), name=path.name, kind=kind, size=found.st_size, version="", stamp=found.st_mtime_ns)


def tasks(files: Sequence[DataFile], folder: Path, types: pa.Schema | None = None) -> tuple[IngestTask, ...]:
    """The tasks of one split, with the types of the files' heads."""
    kind = files[0].kind
    splits = {"train": files}
    found = type_inference.text_types(splits, kind, addresses={}) if types is None else types
    return tasks_of(splits, found, folder=str(folder))


def rows_of(receipts: Sequence[IngestReceipt]) -> pa.Table:
    """What was written."""
    return pa.concat_tables([pa.ipc.open_file(receipt.path).read_all() for receipt in receipts])


def ingested(files: Sequence[DataFile], folder: Path, types: pa.Schema | None = None) -> pa.Table:
    """The rows of files after ingest."""
    return rows_of(ingest.ingest_all(tasks(files, folder, types), threads=1))


def as_datasets(files: Sequence[DataFile], cache: Path) -> datasets.Dataset:
    """The same rows by `load_dataset`."""
    reader, options = _READERS[files[0].kind]
    return datasets.load_dataset(
        reader, data_files=[file.path for file in files], split="train", cache_dir=str(cache), **options
    )
