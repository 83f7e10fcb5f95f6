"""Whether the files of an export are the ones that were written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from pipelines.prepare import storage
from pipelines.prepare.export import export_record
from pipelines.prepare.export.export_record import ExportedFile, ExportRecord

__all__ = ["verify_files"]


def verify_files(root: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each file of the export in `root` and its problem, empty if it is sound.

    Raises: FormatError if the commit record is damaged; FileNotFoundError if there is none.
    """
    record = export_record.read(root)
    if record is None:
        raise FileNotFoundError(root)
    for file in _listed(record):
        yield file.name, _problem(storage.join(root, file.name), file)


def _listed(record: ExportRecord) -> Iterator[ExportedFile]:
    for shard in record.shards:
        yield from shard.files
    yield from record.files


def _problem(path: str, file: ExportedFile) -> str:
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with storage.read_stream(path) as stream:
            while piece := stream.read(1 << 22):
                digest.update(piece)
                num_bytes += len(piece)
    except FileNotFoundError:
        return "not there"
    if num_bytes != file.num_bytes:
        return f"{num_bytes} bytes, expected {file.num_bytes}"
    if digest.hexdigest() != file.sha256:
        return f"sha256 {digest.hexdigest()}, expected {file.sha256}"
    return ""
