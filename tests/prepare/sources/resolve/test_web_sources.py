"""Data files behind a web address: signed ones, ones that are not there, and servers that do not answer."""

import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.resolve.resolve import resolve
from tests import building
from tests.building import Outcome
from tests.prepare.sources.web import serving
from tfrecord_io.errors import SourceError

SIGNATURE = "X-Goog-Signature=hush/4a%2B&X-Goog-Expires=900"
ROWS = "".join(json.dumps({"text": f"row {number} [/INST]"}) + "\n" for number in range(30)).encode()
FILES = {"/train.jsonl": ROWS, "/b/test.jsonl.gz": gzip.compress(ROWS)}


def signed(method: str, path: str, query: str) -> tuple[int, bytes, dict[str, str]]:
    """Answers as storage services do for an address that is signed for GET."""
    content = FILES.get(path)
    if method == "HEAD" or (content and "X-Goog-Signature=hush" not in query):
        return 403, b"", {}
    return (404, b"", {}) if content is None else (200, content, {})


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(signed) as web:
        yield web.address


def refused(address: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        resolve(SourceConfig(dataset=address))
    assert "hush" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(("name", "split"), [("train.jsonl", "train"), ("b/test.jsonl.gz", "test")])
def test_a_signed_address_is_the_file_that_its_path_names(server: str, name: str, split: str) -> None:
    address = f"{server}/{name}?{SIGNATURE}"
    listing = resolve(SourceConfig(dataset=address))
    (file,) = listing.splits[split]
    assert list(listing.splits) == [split]
    assert (file.path, file.name, listing.kind) == (address, name.rpartition("/")[2], "json")
    assert file.size == len(FILES[f"/{name}"])
    assert "hush" not in json.dumps(listing.identity)


def test_what_a_server_says_is_told_apart(server: str) -> None:
    error = refused(f"{server}/train.jsonl?sig=hush")
    assert "127.0.0.1 refuses access (status 403)" in error.cause
    assert "if it is signed, it may have expired, so get a new one" in error.remedy
    assert "no such file" in refused(f"{server}/none.jsonl?{SIGNATURE}").cause


@pytest.mark.parametrize("path", ["a.parquet?X-Goog-Signature=hush", "*.parquet"])
def test_a_server_that_is_not_there_is_not_a_file_that_is_not_there(path: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    error = refused(f"http://127.0.0.1:{port}/{path}")
    assert "no connection to 127.0.0.1" in error.cause
    assert "no such file" not in error.cause
    assert error.remedy.startswith("check the address, the network and the service")


def test_two_addresses_of_one_name_are_refused(server: str) -> None:
    """They differ only in the query, which is never shown."""
    address = f"{server}/train.jsonl?{SIGNATURE}"
    with pytest.raises(SourceError, match=r"/train\.jsonl: this file is given twice, with different queries"):
        resolve(SourceConfig(dataset=address, more_paths=(f"{address}1",)))


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
    assert [outcome.status for outcome in outcomes] == [0, 0, 0, 0], outcomes
    told = [outcome.out + outcome.err for outcome in outcomes]
    files = building.files(output)
    assert any(name.startswith("train-train-") for name in files), "the name is that of the file"
    assert any(name.endswith(".parquet") for name in files)
    assert not [text for text in told if "hush" in text]
    assert not [name for name, content in files.items() if b"hush" in content or "hush" in name]
    assert b"/train.jsonl" in b"".join(content for name, content in files.items() if name.endswith("source.json"))
