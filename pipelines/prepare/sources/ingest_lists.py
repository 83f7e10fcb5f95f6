"""Ingest tasks on their way to workers of a cluster: in lists beside the copy, since a graph has no room for them.

graph     names of lists: a few bytes for each 256 tasks
FOLDER/tasks-00000.json    {"types": [schemas], "inside": ..., "tasks": [[split, number, file, ...], ...]}
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.sources.files import DataFile
from pipelines.prepare.sources.ingest_tasks import IngestTask
from tfrecord_io import json_fields
from tfrecord_io.errors import FormatError
from tfrecord_io.json_fields import WRONG, count, items, mapping, optional, text

__all__ = ["read", "write"]

_LIST_TASKS = 256
_FIELDS = ("split", "number", "name", "version", "part", "parts", "start", "stop")


def write(tasks: Sequence[IngestTask], *, folder: str) -> list[str]:
    """Writes the tasks, all of which are for `folder`, and returns the paths of the lists. Raises: OutputError."""
    paths = []
    for number, first in enumerate(range(0, len(tasks), _LIST_TASKS)):
        path = storage.join(folder, f"tasks-{number:05d}.json")
        storage.write_bytes(path, _dump(tasks[first : first + _LIST_TASKS]), inside=tasks[0].inside)
        paths.append(path)
    return paths


def read(path: str) -> Iterator[IngestTask]:
    """The tasks of a list. Raises: FormatError if it is none; FileNotFoundError if it is gone."""
    content = storage.read_bytes(path)
    try:
        document = mapping(json_fields.load(content))
        folder, inside = text(document["folder"]), optional(text, document["inside"])
        types = [_schema(text(each)) for each in items(document["types"])]
        tasks = [_parsed(mapping(each), types, folder=folder, inside=inside) for each in items(document["tasks"])]
    except (*WRONG, pa.ArrowException) as error:
        raise FormatError(
            f"{path}: not a list of files to be ingested ({error!r:.200})", remedy="run the same command again"
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
    """Raises: what `WRONG` names."""
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
