"""Data files behind a web address: signed ones, ones that are not there, and servers that do not answer."""

from __future__ import annotations

import gzip
import http.server
import json
import re
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from pipelines.prepare import doctor, hub, paths
from pipelines.prepare.config import SourceConfig, default_name
from pipelines.prepare.loading import open_source
from tests import building
from tests.building import Outcome
from tfrecord_io.errors import SourceError

SIGNATURE = "X-Goog-Signature=hush/4a%2B&X-Goog-Expires=900"
ROWS = "".join(json.dumps({"text": f"row {number} [/INST]"}) + "\n" for number in range(30)).encode()
FILES = {"/train.jsonl": ROWS, "/b/test.jsonl.gz": gzip.compress(ROWS)}


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
            start, stop = int(found[1]), int(found[2]) + 1
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(len(content[start:stop])))
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


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` would ask no server at all."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)


def refusing() -> str:
    """The address of a server that is not there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def refused(address: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        open_source(SourceConfig(dataset=address))
    assert "hush" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(("name", "split"), [("train.jsonl", "train"), ("b/test.jsonl.gz", "test")])
def test_a_signed_address_is_the_file_that_its_path_names(server: str, name: str, split: str) -> None:
    source = open_source(SourceConfig(dataset=f"{server}/{name}?{SIGNATURE}"))
    assert {name: each.num_rows for name, each in source.splits.items()} == {split: 30}
    assert source.identity["files"][0]["name"] == name.rpartition("/")[2]
    assert "hush" not in json.dumps(source.identity)


def test_an_address_that_is_signed_anew_is_the_same_dataset(server: str) -> None:
    one, other = (
        open_source(SourceConfig(dataset=f"{server}/train.jsonl?{SIGNATURE}{end}")).identity for end in ("", "1")
    )
    assert one == other


@pytest.mark.parametrize(
    ("address", "kind", "name"),
    [
        ("https://host/a/train.parquet?X-Goog-Signature=x/y.csv", "parquet", "train"),
        ("https://host/Data.JSONL.gz?sig=a.b#c", "json", "Data"),
        ("https://me:pass@host/a.csv", "csv", "a"),
        ("gs://box/part-?.tsv", "tsv", "box"),
        ("https://host/?file=a.csv", None, "host"),
    ],
)
def test_kind_and_name_are_those_of_the_path(address: str, kind: str | None, name: str) -> None:
    assert paths.kind_of(address) == kind
    assert default_name(address) == name


def test_what_a_server_says_is_told_apart(server: str) -> None:
    error = refused(f"{server}/train.jsonl?sig=hush")
    assert "127.0.0.1 refuses access (status 403)" in error.cause
    assert "a signed address is good for a limited time" in error.remedy
    assert "no such file" in refused(f"{server}/none.jsonl?{SIGNATURE}").cause


@pytest.mark.parametrize("path", ["a.parquet?X-Goog-Signature=hush", "*.parquet"])
def test_a_server_that_is_not_there_is_not_a_file_that_is_not_there(path: str) -> None:
    error = refused(f"{refusing()}/{path}")
    assert "127.0.0.1 refuses the connection" in error.cause
    assert "no such file" not in error.cause
    assert error.remedy.startswith("check the address, the network and that the server is up")


def test_a_host_without_an_address_is_named() -> None:
    assert "no connection to no-such-host.invalid" in refused("http://me:hush@no-such-host.invalid/a.parquet").cause


def test_the_doctor_says_the_same_of_a_source(server: str, tmp_path: Path) -> None:
    def check(address: str) -> Any:
        return doctor.diagnose(str(tmp_path), dataset=address)[-1]

    assert check(f"{server}/train.jsonl?{SIGNATURE}").ok
    for address in (f"{server}/train.jsonl?sig=hush", f"{server}/none.csv?{SIGNATURE}", f"{refusing()}/a?sig=hush"):
        found = check(address)
        assert found.ok is False
        assert "hush" not in found.found + found.remedy


def test_of_other_addresses_too_nothing_but_a_missing_file_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(MemoryFileSystem, "info", deny)
    with pytest.raises(SourceError, match="Permission denied"):
        hub.expand_url("memory://box/a.csv")


@pytest.mark.slow
def test_a_dataset_of_a_signed_address_holds_no_trace_of_the_signature(server: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    address = f"{server}/train.jsonl?{SIGNATURE}"
    outcomes: list[Outcome] = [
        building.command("build", address, "--verbose", *building.options(output)),
        building.command("verify", output),
        building.command("trace", output, "--split=train", "--shard=0", "--record=0", "--json", "--source", address),
        building.command("inspect", output, "--json"),
    ]
    assert [each.status for each in outcomes] == [0, 0, 0, 0], outcomes
    told = [each.out + each.err for each in outcomes]
    files = building.files(output)
    assert any(name.startswith("train-train-") for name in files), "the name is that of the file"
    assert not [text for text in told if "hush" in text]
    assert not [name for name, content in files.items() if b"hush" in content or "hush" in name]
    assert b"/train.jsonl" in b"".join(content for name, content in files.items() if name.endswith("source.json"))
