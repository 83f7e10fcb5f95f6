"""Ingest tasks: one for each file, and several for a large file that can be read from the middle.

    a.jsonl.gz   1 GB              one task: a compressed stream can be read from its start only
    b.jsonl      1 GB              tasks of at most 256 MB, cut at any byte: a line belongs to the task it begins in
    c.parquet    200 row groups    tasks of consecutive row groups with about 64 MB of values

The cuts depend on the source alone, so that the same source has the same rows in the same record batches everywhere.

On a cluster tasks travel in files beside the copy, since they are too large for a graph. FOLDER/tasks-00000.json has
{"types": [schemas], "inside": ..., "tasks": [[split, number, file, ...], ...]} of 256 tasks.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.sources.files.byte_ranges import compression_suffix
from pipelines.prepare.sources.files.data_files import DataFile, SourceListing
from pipelines.prepare.sources.formats import json_lines, plain_tables
from tfrecord_io.errors import FormatError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import WRONG, count, items, mapping, optional, text
from tfrecord_io.shown import without_access

__all__ = ["VERSION", "IngestTask", "folder_of", "read_list", "tasks_of", "write_lists"]

# The version of the ingested files; files of another version are ingested again.
VERSION = 1

_LARGE_BYTES = 64_000_000
_LEAST_PART_BYTES = 16_000_000
_MOST_PART_BYTES = 256_000_000
_MOST_PARTS = 2000
_DIGEST_LETTERS = 16
# Many threads, since looking into a remote file takes a few round trips.
_THREADS = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class IngestTask:
    """A file, or part of one, to be written as one Arrow file with columns of `types`.

    `number` counts the files of the split. [start, stop) are bytes, or row groups of a Parquet file. `file` may be a
    copy of the listed file; `name` and `version` are the listed file's. `inside` is the folder that must exist when the
    job writes (see `storage.write_atomic`).
    """

    split: str
    number: int
    file: DataFile
    name: str
    version: str
    part: int
    parts: int
    start: int
    stop: int
    types: pa.Schema
    folder: str
    inside: str | None = None

    @property
    def shown(self) -> str:
        """The file as messages name it."""
        return without_access(self.file.path)

    @property
    def is_whole(self) -> bool:
        """Whether this task covers the whole file."""
        return self.parts == 1

    @property
    def path(self) -> str:
        """The path of the Arrow file."""
        return storage.join(self.folder, f"{self.split}-{self.number:05}-{self.part:05}.arrow")

    @property
    def receipt_path(self) -> str:
        """The path of the receipt, which is written after the rows."""
        return self.path.removesuffix(".arrow") + ".json"

    @property
    def digest(self) -> str:
        """A digest of all that the rows depend on, whatever the file's location."""
        source = [VERSION, self.split, self.name, self.file.kind, self.file.size, self.version]
        return _digest([*source, self.part, self.parts, self.start, self.stop], self.types)


def folder_of(root: str, listing: SourceListing, types: Mapping[str, pa.Schema]) -> str:
    """Return `ROOT/rows-<digest>`, the folder for the ingested rows of a source, for any tokenizer and layout."""
    splits = {
        split: [[file.name, file.kind, file.size, file.version] for file in files]
        for split, files in listing.splits.items()
    }
    return storage.join(root, f"rows-{_digest([VERSION, listing.kind, listing.identity, splits], *types.values())}")


def tasks_of(
    splits: Mapping[str, Sequence[DataFile]],
    types: pa.Schema,
    *,
    folder: str,
    in_place: Collection[str] = frozenset(),
    copies: Mapping[str, DataFile] | None = None,
    addresses: Mapping[str, str] | None = None,
    inside: str | None = None,
) -> tuple[IngestTask, ...]:
    """Return the tasks of all files except those whose paths are `in_place`, split by split, in row order.

    `copies` are files to read instead, by the path of the listed file (see `relay`). Large files are opened to see
    whether they can be cut. Raises: SourceError if one cannot be read.
    """
    every = [file for files in splits.values() for file in files if file.path not in in_place]
    cuts = _all_cuts(every, addresses=addresses or {})
    return tuple(
        IngestTask(
            split=split,
            number=number,
            file=(copies or {}).get(file.path) or dataclasses.replace(file, path=without_access(file.path)),
            name=file.name,
            version=file.version,
            part=part,
            parts=len(cuts[file.path]),
            start=start,
            stop=stop,
            types=types,
            folder=folder,
            inside=inside,
        )
        for split, files in splits.items()
        for number, file in enumerate(files)
        if file.path not in in_place
        for part, (start, stop) in enumerate(cuts[file.path])
    )


def part_bytes(total: int) -> int:
    """Return the most bytes in a part of a large file, for a source of `total` bytes."""
    return max(_LEAST_PART_BYTES, min(_MOST_PART_BYTES, total // _MOST_PARTS))


def _all_cuts(files: Sequence[DataFile], *, addresses: Mapping[str, str]) -> dict[str, list[tuple[int, int]]]:
    """Return [start, stop) of each part of each file, by the file's path."""
    most = part_bytes(sum(file.size for file in files))
    with ThreadPoolExecutor(_THREADS) as pool:
        cuts = pool.map(lambda file: list(_cuts(file, most, addresses=addresses)), files)
        return {file.path: parts for file, parts in zip(files, cuts, strict=True)}


def _cuts(file: DataFile, most: int, *, addresses: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    if file.kind == "parquet":
        yield from plain_tables.row_group_ranges(file, addresses=addresses)
    elif file.size > _LARGE_BYTES and _has_lines(file, addresses=addresses):
        count = -(-file.size // most)
        for part in range(count):
            yield file.size * part // count, file.size * (part + 1) // count
    else:
        yield 0, file.size


def _has_lines(file: DataFile, *, addresses: Mapping[str, str]) -> bool:
    """Whether each line of the file is a row, so that it can be read from the middle."""
    if compression_suffix(file.path) or file.kind not in ("json", "text"):
        return False
    return file.kind == "text" or json_lines.begins_with_row(file, addresses=addresses)


def _digest(values: Any, *types: pa.Schema) -> str:
    total = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
    for each in types:
        total.update(b"\0" + each.serialize().to_pybytes())
    return total.hexdigest()[:_DIGEST_LETTERS]


_LIST_TASKS = 256
_FIELDS = ("split", "number", "name", "version", "part", "parts", "start", "stop")


def write_lists(tasks: Sequence[IngestTask], *, folder: str) -> list[str]:
    """Write the tasks, all of them for `folder`, in lists; return the paths of the lists. Raises: OutputError."""
    paths = []
    for number, first in enumerate(range(0, len(tasks), _LIST_TASKS)):
        path = storage.join(folder, f"tasks-{number:05d}.json")
        storage.write_bytes(path, _dump(tasks[first : first + _LIST_TASKS]), inside=tasks[0].inside)
        paths.append(path)
    return paths


def read_list(path: str) -> Iterator[IngestTask]:
    """Yield the tasks of a list. Raises: FormatError if it is malformed; FileNotFoundError."""
    content = storage.read_bytes(path)
    try:
        document = mapping(json_fields.load(content))
        folder, inside = text(document["folder"]), optional(text, document["inside"])
        types = [_schema(text(each)) for each in items(document["types"])]
        tasks = [_parsed(mapping(each), types, folder=folder, inside=inside) for each in items(document["tasks"])]
    except (*WRONG, pa.ArrowException) as error:
        raise FormatError(
            f"{path}: not a list of ingest tasks ({error!r:.200})", remedy="run the same command again"
        ) from error
    yield from tasks


def _dump(tasks: Sequence[IngestTask]) -> bytes:
    types: list[pa.Schema] = []
    listed = []
    for task in tasks:
        if task.types not in types:
            types.append(task.types)
        listed.append(
            {
                **{name: getattr(task, name) for name in _FIELDS},
                "file": dataclasses.asdict(task.file),
                "types": types.index(task.types),
            }
        )
    schemas = [base64.b64encode(schema.serialize().to_pybytes()).decode() for schema in types]
    document = {"folder": tasks[0].folder, "inside": tasks[0].inside, "types": schemas, "tasks": listed}
    return (json.dumps(document) + "\n").encode()


def _schema(encoded: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded, validate=True)))


def _parsed(fields: dict[str, Any], types: Sequence[pa.Schema], *, folder: str, inside: str | None) -> IngestTask:
    """Parse a task. Raises: one of the errors in `WRONG`."""
    file = mapping(fields["file"])
    return IngestTask(
        split=text(fields["split"], json_fields.NAME),
        number=count(fields["number"]),
        file=DataFile(
            path=text(file["path"]),
            name=text(file["name"]),
            kind=text(file["kind"]),  # type: ignore[arg-type]
            size=count(file["size"]),
            version=text(file["version"]),
            stamp=optional(count, file["stamp"]),
        ),
        name=text(fields["name"]),
        version=text(fields["version"]),
        part=count(fields["part"]),
        parts=count(fields["parts"]),
        start=count(fields["start"]),
        stop=count(fields["stop"]),
        types=types[count(fields["types"])],
        folder=folder,
        inside=inside,
    )
