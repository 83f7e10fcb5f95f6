"""Rows behind web addresses and on the Hub, by ranges: counted, denied, changed, and servers without ranges."""

import collections
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.prepare.sources.parquet import row_groups
from pipelines.prepare.sources.parquet.access import is_readable_by_workers, relay
from pipelines.prepare.sources.resolve.data_files import DataFile
from tests import building
from tests.prepare.sources import stored
from tests.prepare.sources.stored import data_file, in_place
from tests.prepare.sources.web import Web, serving
from tests.support import processes, seams
from tfrecord_io.errors import SourceError

SHA = "a" * 40
TABLE = pa.table({"text": [f"row {row}" for row in range(100)], "number": range(100)})
SIGNED = "X-Goog-Signature=hush"


class _Server:
    """Serve one file under every name, in ranges. Record requests, and refuse some by path."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.etag = '"first"'
        self.refusals: dict[str, list[int]] = collections.defaultdict(list)
        self.web = Web(address="")

    def answer(self, method: str, path: str, query: str) -> tuple[int, bytes, dict[str, str]]:
        del method, query
        ranges = "none" if path.startswith("/whole") else "bytes"
        status = self.refusals[path].pop(0) if self.refusals[path] else 200
        return status, self.content if status == 200 else b"", {"ETag": self.etag, "Accept-Ranges": ranges}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[_Server]:
    stored.parquet(tmp_path / "a.parquet", TABLE)
    server = _Server((tmp_path / "a.parquet").read_bytes())
    with serving(server.answer) as server.web:
        yield server


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, first_retry_seconds=0.01, patience_seconds=0.5)


def on_web(server: _Server, name: str = "a.parquet", *, version: str = '"first"') -> DataFile:
    address = f"{server.web.address}/{name}?{SIGNED}"
    return DataFile(path=address, name=name, size=len(server.content), version=version)


def texts(file: DataFile, row_ranges: list[tuple[int, int]]) -> list[str]:
    groups = in_place(file)
    known = {stored_file.path: file.path for stored_file in groups.files}
    read = row_groups.read_rows(groups.pieces(row_ranges), ["text"], types=TABLE.schema, addresses=known)
    return [text for _, batch in read for text in batch.column(0).to_pylist()]


def refused(file: DataFile) -> str:
    with pytest.raises(SourceError) as caught:
        texts(file, [(0, 100)])
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return str(caught.value)


def test_a_file_that_another_one_replaced_is_refused(server: _Server) -> None:
    before = on_web(server, "replaced.parquet")
    server.etag = '"second"'
    assert "replaced.parquet: has changed since the job was planned" in refused(before)


def test_rows_behind_a_signed_address_take_one_request_for_the_version(server: _Server) -> None:
    rows = texts(on_web(server, "once.parquet"), [(35, 45), (0, 2)])
    assert rows == [f"row {row}" for row in (*range(35, 45), 0, 1)]
    assert server.web.requests.count("HEAD /once.parquet") == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [(403, "refuses access (status 403)"), (404, "no longer exists"), (500, "answers with status 500")],
)
def test_what_stays_is_said(server: _Server, status: int, words: str) -> None:
    server.refusals[f"/{status}.parquet"] = [status] * 1_000
    assert words in refused(on_web(server, f"{status}.parquet"))


def test_a_server_without_ranges_is_refused(server: _Server) -> None:
    assert "sends only whole files, expected the requested range" in refused(on_web(server, "whole.parquet"))


# It leaves as the command does: threads of the client's libraries may abort while an interpreter ends.
_ON_HUB = """
import json, os, sys
from pipelines.prepare.storage import storage_errors
from tests.prepare.sources.parquet.test_far_away import texts
from pipelines.prepare.sources.resolve.data_files import DataFile
from tfrecord_io.errors import SourceError
storage_errors._FIRST_SECONDS = 0.01
size, *names = sys.argv[1:]
answers = []
for name in names:
    try:
        path = f"hf://datasets/me/data@{'a' * 40}/{name}"
        answers.append(texts(DataFile(path=path, name=name, size=int(size)), [(15, 25)]))
    except SourceError as error:
        answers.append(str(error))
print(json.dumps(answers), flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_rows_on_the_hub_take_a_request_for_each_range_and_what_it_refuses_is_said(server: _Server) -> None:
    folder = f"/datasets/me/data/resolve/{SHA}"
    server.refusals = collections.defaultdict(list, {f"{folder}/{n}.parquet": [n] * 100 for n in (401, 403, 404)})
    server.refusals[f"{folder}/train/a b.parquet"] = [503]
    hub = {"HF_ENDPOINT": server.web.address, "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
    names = ["train/a b.parquet", "401.parquet", "403.parquet", "404.parquet"]
    command = [sys.executable, "-c", _ON_HUB, str(len(server.content)), *names]
    environment = {**building.environment(), **hub}
    done = processes.run(command, env=environment)
    assert done.returncode == 0, done.stderr
    rows, *messages = json.loads(done.stdout.splitlines()[-1])
    assert rows == [f"row {row}" for row in range(15, 25)]
    requests = [request for request in server.web.requests if "train" in request]
    assert requests == [f"GET {folder}/train/a b.parquet"] * 4, (
        "one that was refused, two footers and two neighbouring row groups"
    )
    assert "status 401); ask for access on the page of the dataset, then set HF_TOKEN" in messages[0]
    assert "the Hub refuses access (status 403)" in messages[1]
    assert "no longer exists, but existed when" in messages[2]


# Parquet files that workers cannot read are sent as they are, once.


@pytest.mark.parametrize(
    ("path", "needs_token", "expected"),
    [
        *(("gs://bucket/a.jsonl", needs_token, True) for needs_token in (False, True)),
        *(("hf://datasets/me/it@abc/a.jsonl", needs_token, not needs_token) for needs_token in (False, True)),
        ("https://host/a.jsonl", False, True),
        ("https://host/a.jsonl?X-Goog-Signature=abc", False, False),
        ("https://me:secret@host/a.jsonl", False, False),
        ("s3://bucket/a.jsonl", False, False),
        ("/data/a.jsonl", False, False),
    ],
)
def test_workers_read_what_needs_no_credentials(path: str, needs_token: bool, expected: bool) -> None:
    assert is_readable_by_workers(DataFile(path=path, name="a.jsonl", size=1), needs_token=needs_token) is expected


def test_copies_have_the_bytes_of_the_files_and_are_made_once(tmp_path: Path) -> None:
    for name, content in (("a b.parquet", b"one"), ("c.parquet", b"two")):
        (tmp_path / name).write_bytes(content)
    files = [data_file(tmp_path / name) for name in ("a b.parquet", "c.parquet")]

    def sent() -> list[Path]:
        copies = relay(files, folder=str(tmp_path / "rows"), addresses={})
        for file in files:
            copied = copies[file.path]
            assert Path(copied.path).read_bytes() == Path(file.path).read_bytes()
            assert (copied.name, copied.size) == (file.name, file.size)
        return [Path(copies[file.path].path) for file in files]

    first, second = sent()
    assert first.parent == tmp_path / "rows" / "source"
    stamp = first.stat().st_mtime_ns
    second.write_bytes(b"{")
    assert sent()[0].stat().st_mtime_ns == stamp


def test_a_file_that_has_changed_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"content")
    file = data_file(tmp_path / "a.jsonl")
    Path(file.path).write_bytes(b"longer than before")
    with pytest.raises(SourceError, match=r"a\.jsonl"):
        relay([file], folder=str(tmp_path / "rows"), addresses={})
    assert not list((tmp_path / "rows").rglob("*a.jsonl"))
