"""Rows behind web addresses and on the hub, by ranges: counted, denied, changed, and servers without ranges."""

from __future__ import annotations

import collections
import http.server
import json
import re
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.prepare.sources.parquet import row_groups
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.storage import storage_errors
from tests import building
from tests.prepare.sources import stored
from tests.prepare.sources.stored import in_place
from tfrecord_io.errors import SourceError

SHA = "a" * 40
TABLE = pa.table({"text": [f"row {row}" for row in range(100)], "number": range(100)})
SIGNED = "X-Goog-Signature=hush"


class _Server(http.server.ThreadingHTTPServer):
    """Serves one file under every name, in ranges; what it was asked for, and what it is to refuse, by path."""

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content
        self.etag = '"first"'
        self.asked: list[str] = []
        self.refusals: dict[str, list[int]] = collections.defaultdict(list)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        self.server.asked.append(f"{self.command} {path}")
        if self.server.refusals[path]:
            self._say(self.server.refusals[path].pop(0), b"", {})
            return
        content = self.server.content
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found is None or path.startswith("/whole"):
            self._say(200, content, {})
            return
        start, stop = int(found[1]), int(found[2]) + 1
        self._say(206, content[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"})

    do_HEAD = do_GET

    def _say(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "ETag": self.server.etag, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[_Server]:
    stored.parquet(tmp_path / "a.parquet", TABLE)
    with _Server((tmp_path / "a.parquet").read_bytes()) as serving:
        threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield serving
        serving.shutdown()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_errors, "_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(storage_errors, "_PATIENCE_SECONDS", 0.5)


def on_web(server: _Server, name: str = "a.parquet", *, version: str = '"first"') -> DataFile:
    address = f"http://127.0.0.1:{server.server_port}/{name}?{SIGNED}"
    return DataFile(path=address, name=name, size=len(server.content), version=version)


def texts(file: DataFile, row_ranges: list[tuple[int, int]]) -> list[str]:
    found = in_place(file)
    known = {stored_file.path: file.path for stored_file in found.files}
    read = row_groups.read_rows(found.pieces(row_ranges), ["text"], types=TABLE.schema, addresses=known)
    return [text for _, batch in read for text in batch.column(0).to_pylist()]


def refused(file: DataFile) -> str:
    with pytest.raises(SourceError) as caught:
        texts(file, [(0, 100)])
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return str(caught.value)


def test_rows_behind_a_signed_address_are_read(server: _Server) -> None:
    assert texts(on_web(server), [(35, 45), (0, 2)]) == [f"row {row}" for row in (*range(35, 45), 0, 1)]


def test_a_file_that_another_one_replaced_is_refused(server: _Server) -> None:
    before = on_web(server, "replaced.parquet")
    server.etag = '"second"'
    assert "replaced.parquet: was changed since the job was planned" in refused(before)


def test_a_file_is_asked_for_its_version_once(server: _Server) -> None:
    texts(on_web(server, "once.parquet"), [(0, 100)])
    assert server.asked.count("HEAD /once.parquet") == 1


@pytest.mark.parametrize(
    ("status", "said"), [(403, "refuses access (status 403)"), (404, "is gone"), (500, "answers with status 500")]
)
def test_what_stays_is_said(server: _Server, status: int, said: str) -> None:
    server.refusals[f"/{status}.parquet"] = [status] * 1_000
    assert said in refused(on_web(server, f"{status}.parquet"))


def test_a_server_without_ranges_is_refused(server: _Server) -> None:
    assert "sends whole files only, expected the range" in refused(on_web(server, "whole.parquet"))


# It leaves as the command does: threads of the client's libraries may abort while an interpreter ends.
_ON_HUB = """
import json, os, sys
from pipelines.prepare.storage import storage_errors
from tests.prepare.sources.parquet.test_far_away import texts
from pipelines.prepare.sources.resolve.data_files import DataFile
from tfrecord_io.errors import SourceError
storage_errors._FIRST_SECONDS = 0.01
name, size = sys.argv[1:]
path = f"hf://datasets/me/data@{'a' * 40}/{name}"
try:
    print(json.dumps(texts(DataFile(path=path, name=name, size=int(size), version=""), [(15, 25)])))
except SourceError as error:
    print(json.dumps(str(error)))
sys.stdout.flush()
os._exit(0)
"""


def on_hub(server: _Server, name: str, **changes: str) -> Any:
    """What a process reads of a file on the hub, or the error that it gets."""
    hub = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-c", _ON_HUB, name, str(len(server.content))]
    environment = {**building.environment(), **hub, **changes}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_rows_on_the_hub_take_a_request_for_each_range_and_no_other(server: _Server) -> None:
    path = f"/datasets/me/data/resolve/{SHA}/train/a%20b.parquet"
    server.refusals[path] = [503]
    assert on_hub(server, "train/a b.parquet") == [f"row {row}" for row in range(15, 25)]
    assert server.asked == [f"GET {path}"] * 5, "one that was refused, two footers and two row groups"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "the hub refuses access (status 401); ask for access on the page of the dataset, then set HF_TOKEN"),
        (403, "the hub refuses access (status 403)"),
        (404, "is gone, but existed when"),
    ],
)
@pytest.mark.slow
def test_what_the_hub_refuses_is_said(server: _Server, status: int, said: str) -> None:
    server.refusals[f"/datasets/me/data/resolve/{SHA}/a.parquet"] = [status] * 100
    assert said in on_hub(server, "a.parquet")
