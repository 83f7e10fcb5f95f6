"""Rows of the source where every worker can read them: Arrow IPC streams in the job's folder, read by byte range.

OUT/.prep/FINGERPRINT/source/SPLIT-00000.arrow    schema, record batches, end mark: about 100 MB
OUT/.prep/FINGERPRINT/source/SPLIT.index          where each batch lies: its first row, rows, file, offset, length

A shard's rows come from all along the split. An Arrow file says where its batches are, but not which rows are in them;
the index does, so that a worker asks for the bytes of its own batches and no others, several at a time.

    rows asked for    [1200, 1900)                [5000, 7000)
    batches           [1000, 2000)                [5000, 6000) [6000, 7000)
    requests          one                         one: neighbours in a file are fetched together
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.overlap import ordered_map
from pipelines.prepare.persistence import persist
from tfrecord_io.errors import SourceError

__all__ = ["Index", "StagedFiles", "file_path", "index_path"]

# Neighbouring batches are fetched together up to this size; so many requests are on their way at a time.
_REQUEST_BYTES = 8 << 20
_REQUESTS = 4

_AGAIN = "run the same command again, which puts it there"


def file_path(folder: str, split: str, number: int) -> str:
    """Where a file of rows is."""
    return storage.join(folder, f"{split}-{number:05d}.arrow")


def index_path(folder: str, split: str) -> str:
    """Where the index of a split is."""
    return storage.join(folder, f"{split}.index")


@dataclasses.dataclass(frozen=True)
class Index:
    """N record batches of a split, ascending by row. Arrays int64 [N]; `schema` is that of the batches."""

    schema: pa.Schema
    first_rows: np.ndarray
    num_rows: np.ndarray
    files: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray

    def dump(self) -> bytes:
        """As an Arrow IPC stream, with the schema of the batches in its metadata."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "schema"]
        arrays = [pa.array(getattr(self, name), pa.int64()) for name in names]
        metadata = {b"schema": self.schema.serialize().to_pybytes()}
        table = pa.Table.from_arrays(arrays, schema=pa.schema([(name, pa.int64()) for name in names], metadata))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return bytes(sink.getvalue())

    @classmethod
    def parse(cls, text: bytes) -> Index:
        """What `dump` gave."""
        table = pa.ipc.open_stream(text).read_all()
        schema = pa.ipc.read_schema(pa.py_buffer(table.schema.metadata[b"schema"]))
        return cls(schema, *(column.to_numpy() for column in table.columns))


class _Piece(NamedTuple):
    """Rows [start, stop) of the split, in one batch."""

    batch: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class StagedFiles:
    """The staged rows of a split, read as `ArrowFiles` are. Travels as an address, and the digest of the index."""

    folder: str
    split: str
    index_sha256: str

    def read(
        self,
        segments: Sequence[tuple[int, int]],
        columns: Sequence[str],
        *,
        unread: Collection[str] = (),
        in_parts: bool = False,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields (first row number, record batch) for the given ascending [start, stop) row ranges. Staged batches are
        small, and come whole: `unread` and `in_parts` change nothing.

        Raises: SourceError if the rows are not there any more, or others are.
        """
        index = self._index()
        pieces = list(_pieces(index, segments))
        requests = list(_requests(index, sorted({piece.batch for piece in pieces})))
        position = 0
        contents = ordered_map(lambda request: self._fetch(index, request), requests, threads=_REQUESTS)
        for request, content in zip(requests, contents, strict=True):
            while position < len(pieces) and pieces[position].batch < request.stop:
                batch, start, stop = pieces[position]
                decoded = content[batch - request.start].select(list(columns))
                first = int(index.first_rows[batch])
                yield start, decoded.slice(start - first, stop - start)
                position += 1

    def _index(self) -> Index:
        with _lock:
            return _read_index(index_path(self.folder, self.split), self.index_sha256)

    def _fetch(self, index: Index, batches: range) -> list[pa.RecordBatch]:
        """Neighbouring batches of one file, by one request."""
        path = file_path(self.folder, self.split, int(index.files[batches.start]))
        start = int(index.offsets[batches.start])
        stops = (index.offsets[batches.start : batches.stop] + index.lengths[batches.start : batches.stop]).tolist()
        content = pa.py_buffer(_read_range(path, start, stops[-1]))
        starts = index.offsets[batches.start : batches.stop].tolist()
        try:
            return [
                pa.ipc.read_record_batch(content.slice(low - start, high - low), index.schema)
                for low, high in zip(starts, stops, strict=True)
            ]
        except (pa.ArrowInvalid, OSError) as error:
            raise SourceError(
                f"{path}: damaged at byte {start} ({error})", remedy=f"delete it, and {_AGAIN}"
            ) from error


_lock = threading.Lock()


@functools.lru_cache(maxsize=8)
def _read_index(path: str, sha256: str) -> Index:
    """Once for each process: it takes 40 bytes for each batch, 40 MB for a terabyte of rows."""
    try:
        with storage.source_explained(path):
            text = storage.read_bytes(path)
    except FileNotFoundError as error:
        raise SourceError(f"{path}: the source is not there any more", remedy=_AGAIN) from error
    if hashlib.sha256(text).hexdigest() != sha256:
        raise SourceError(
            f"{path}: was replaced since this job began",
            remedy="let one job at a time write to this folder, and run the same command again",
        )
    return Index.parse(text)


def _pieces(index: Index, segments: Sequence[tuple[int, int]]) -> Iterator[_Piece]:
    """The parts of the segments that lie in each batch, in order. Raises: SourceError if a row is in none."""
    lasts = index.first_rows + index.num_rows
    for start, stop in segments:
        batch = int(np.searchsorted(lasts, start, "right"))
        while start < stop:
            if batch == len(lasts) or index.first_rows[batch] > start:
                raise SourceError(
                    f"row {start} was planned, but is not among the rows that were put where workers read them",
                    remedy="start over with --overwrite",
                )
            end = min(stop, int(lasts[batch]))
            yield _Piece(batch, start, end)
            start, batch = end, batch + 1


def _requests(index: Index, batches: Sequence[int]) -> Iterator[range]:
    """Runs of neighbouring batches in one file, of up to _REQUEST_BYTES, or one batch."""
    open_run, num_bytes = range(0), 0
    for batch in batches:
        length = int(index.lengths[batch])
        goes_on = open_run and batch == open_run.stop and index.files[batch] == index.files[open_run.start]
        if goes_on and num_bytes + length <= _REQUEST_BYTES:
            open_run, num_bytes = range(open_run.start, batch + 1), num_bytes + length
            continue
        if open_run:
            yield open_run
        open_run, num_bytes = range(batch, batch + 1), length
    if open_run:
        yield open_run


def _read_range(path: str, start: int, stop: int) -> bytes:
    """Raises: SourceError if the file is not there, or too short."""
    fs, inner = storage.file_system(path)

    def attempt() -> bytes:
        content: bytes = fs.cat_file(inner, start=start, end=stop)
        return content

    try:
        with storage.source_explained(path):
            content = persist(attempt, path=path)
    except FileNotFoundError as error:
        raise SourceError(f"{path}: the source is not there any more", remedy=_AGAIN) from error
    if len(content) != stop - start:
        raise SourceError(
            f"{path}: {len(content)} bytes from {start} on, expected {stop - start}", remedy=f"delete it, and {_AGAIN}"
        )
    return content
