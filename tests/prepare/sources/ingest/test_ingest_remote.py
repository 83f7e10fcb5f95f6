"""Files that are far away are ingested like local ones, with no secret in what travels and what is said."""

from __future__ import annotations

import dataclasses
import http.server
import itertools
import pickle
import re
import threading
import urllib.parse
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pipelines.prepare.sources.files import byte_ranges
from pipelines.prepare.sources.files.data_files import DataFile, FileKind
from pipelines.prepare.sources.formats import type_inference
from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.ingest.ingest_receipts import IngestReceipt
from pipelines.prepare.sources.ingest.ingest_tasks import IngestTask, tasks_of
from tests.prepare.sources.ingest.ingesting import PACKERS, json_lines, rows_of
from tfrecord_io.errors import SourceError

ROWS = [{"text": f"row {row}", "label": row} for row in range(3000)]
FILES: dict[str, bytes] = {}


class _Signed(http.server.BaseHTTPRequestHandler):
    """As storage services answer to an address that is signed for GET."""

    def do_HEAD(self) -> None:
        self.send_error(403)

    def do_GET(self) -> None:
        address = urllib.parse.urlsplit(self.path)
        content = FILES.get(address.path)
        if "X-Goog-Signature=hush" not in address.query or content is None:
            self.send_error(403 if content else 404)
            return
        start, stop = 0, len(content)
        if found := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            start, stop = int(found[1]), min(int(found[2]) + 1, len(content))
        self.send_response(206 if found else 200)
        if found:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(content[start:stop])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Signed) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


def in_memory(name: str, content: bytes) -> str:
    """The address of a remote file."""
    address = f"memory://{uuid.uuid4().hex}/{name}"
    fsspec.filesystem("memory").pipe_file(address.removeprefix("memory:/"), content)
    return address


def remote(address: str, kind: FileKind = "json") -> DataFile:
    fs, inner = fsspec.core.url_to_fs(address)
    name = urllib.parse.urlsplit(address).path.rpartition("/")[2]
    return DataFile(path=address, name=name, kind=kind, size=fs.info(inner)["size"], version="")


def made(file: DataFile, folder: Path) -> tuple[IngestTask, ...]:
    types = type_inference.text_types({"train": [file]}, file.kind, addresses={})
    return tasks_of({"train": [file]}, types, folder=str(folder))


@pytest.mark.parametrize("packed", PACKERS)
def test_remote_files_of_every_packing_have_their_rows(packed: str, tmp_path: Path) -> None:
    file = remote(in_memory(f"a.jsonl{packed}", PACKERS[packed](json_lines(*ROWS))))
    assert rows_of(ingest.ingest_all(made(file, tmp_path), threads=1)).to_pylist() == ROWS


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_a_remote_file_is_fetched_in_blocks(packed: str) -> None:
    file = remote(in_memory(f"a.jsonl{packed}", PACKERS[packed](json_lines(*ROWS))))
    with byte_ranges.open_file(file, addresses={}, block_bytes=1000) as stream:
        assert stream.read() == json_lines(*ROWS)
    assert byte_ranges.read_head(file, 100, addresses={}) == json_lines(*ROWS)[:100]


def test_parts_of_a_remote_file_have_the_rows_of_the_whole(tmp_path: Path) -> None:
    (task,) = made(remote(in_memory("a.jsonl", json_lines(*ROWS))), tmp_path)
    bounds = [0, 1, 777, 50_000, task.file.size]
    parts = [
        dataclasses.replace(task, part=part, parts=4, start=start, stop=stop)
        for part, (start, stop) in enumerate(itertools.pairwise(bounds))
    ]
    assert rows_of([ingest.run(part) for part in parts]).to_pylist() == ROWS


@pytest.mark.parametrize("packed", [suffix for suffix in PACKERS if suffix])
def test_a_remote_file_that_was_cut_off_is_an_error(packed: str, tmp_path: Path) -> None:
    (task,) = made(remote(in_memory(f"a.jsonl{packed}", PACKERS[packed](json_lines(*ROWS)))), tmp_path)
    short = remote(in_memory(f"b.jsonl{packed}", PACKERS[packed](json_lines(*ROWS))[:-9]))
    with pytest.raises(SourceError, match=rf"b\.jsonl{packed}: cannot be decompressed: it ends in the middle"):
        ingest.run(dataclasses.replace(task, file=short))


def test_no_secret_travels_or_is_said(server: str, tmp_path: Path) -> None:
    FILES["/a.jsonl"] = json_lines(*ROWS)
    address = f"{server}/a.jsonl?X-Goog-Signature=hush"
    (task,) = made(remote(address), tmp_path)
    assert b"hush" not in pickle.dumps(task)
    receipt: IngestReceipt = ingest.run(task, addresses={f"{server}/a.jsonl": address})
    assert rows_of([receipt]).to_pylist() == ROWS
    assert b"hush" not in receipt.dump()
    FILES["/a.jsonl"] = json_lines(*ROWS[:50], {"text": 1}, *ROWS[51:])
    broken = dataclasses.replace(task, file=dataclasses.replace(task.file, size=len(FILES["/a.jsonl"])))
    with pytest.raises(SourceError, match=r"a\.jsonl, row 50: column 'text' holds") as caught:
        ingest.run(broken, addresses={f"{server}/a.jsonl": address})
    assert "hush" not in str(caught.value)


def test_a_remote_file_that_has_changed_is_an_error(tmp_path: Path) -> None:
    (task,) = made(remote(in_memory("a.jsonl", json_lines(*ROWS))), tmp_path)
    inner = task.file.path.removeprefix("memory:/")
    fsspec.filesystem("memory").pipe_file(inner, json_lines(*ROWS[:100]))
    with pytest.raises(SourceError, match=r"a\.jsonl"):
        ingest.run(dataclasses.replace(task, file=dataclasses.replace(task.file, version="2")))
