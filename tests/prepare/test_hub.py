"""Hub datasets, against a hub that lives in this process: the revision is resolved once and pinned, nothing of the
dataset is run, and each way of failing has its own message.

The hub's client reads its settings when it is imported, so that the requests are made by a fresh process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import datasets
import fsspec
import pytest

from pipelines.prepare import hub
from pipelines.prepare.content import files_digest
from tfrecord_io.errors import OutputError, SourceError

SHA = "a" * 39 + "1"
OTHER_SHA = "b" * 40
TOKEN = "hf_SecretSecretSecretSecret"
FILES = {"data/train.jsonl": b"".join(b'{"text": "row %d"}\n' % index for index in range(20))}
SCRIPT = b"raise SystemExit('code of a dataset must not run')\n"

_CLIENT = """
import json, sys
from pipelines.prepare.config import SourceConfig
from pipelines.prepare.loading import open_source
import datasets, huggingface_hub

seen = []
load = datasets.load_dataset
def watched(*args, **options):
    seen.append([list(args), options])
    return load(*args, **options)
datasets.load_dataset = watched
answers = []
for dataset, revision in json.loads(sys.argv[1]):
    seen.clear()
    try:
        source = open_source(SourceConfig(dataset=dataset, revision=revision))
        split = source.splits["train"]
        rows = [text for _, batch in split.read(split.ranges, ["text"]) for text in batch.column(0).to_pylist()]
        answers.append({"identity": dict(source.identity), "rows": rows, "loads": list(seen)})
    except Exception as error:
        answers.append({"error": type(error).__name__, "message": str(error)})
print(json.dumps(answers))
"""


class _Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's interface as reading a small dataset needs."""

    asked: tuple[str, ...] = ()

    def log_message(self, *args: Any) -> None:
        """Keeps quiet."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        type(self).asked += (f"{self.command} {path}",)
        code, body, headers = _answer(path)
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET


def _answer(path: str) -> tuple[int, bytes, dict[str, str]]:
    info = "/api/datasets/me/good"
    if path in (info, f"{info}/revision/main", f"{info}/revision/{SHA}"):
        return 200, json.dumps({"id": "me/good", "sha": SHA, "tags": [], "siblings": []}).encode(), {}
    if path.startswith(f"{info}/tree/{SHA}"):
        return _tree(path.removeprefix(f"{info}/tree/{SHA}").strip("/"))
    name = path.removeprefix(f"/datasets/me/good/resolve/{SHA}/")
    if name in FILES:
        return 200, FILES[name], {"X-Repo-Commit": SHA, "ETag": f'"{hashlib.sha1(FILES[name]).hexdigest()}"'}
    if path.startswith("/api/datasets/me/script"):
        return 200, json.dumps({"id": "me/script", "sha": SHA, "tags": [], "siblings": []}).encode(), {}
    if path.startswith("/datasets/me/script/resolve/") and path.endswith("/script.py"):
        return 200, SCRIPT, {"X-Repo-Commit": SHA, "ETag": '"1"'}
    if path.startswith("/api/datasets/me/gated"):
        return 403, b"{}", {"X-Error-Code": "GatedRepo"}
    if path.startswith("/api/datasets/me/broken"):
        return 500, b"{}", {}
    if path.startswith(f"{info}/revision/"):
        return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
    return 404, b"{}", {"X-Error-Code": "RepoNotFound" if "me/missing" in path else "EntryNotFound"}


def _tree(folder: str) -> tuple[int, bytes, dict[str, str]]:
    below = {name.removeprefix(f"{folder}/" if folder else ""): name for name in FILES if name.startswith(folder)}
    entries: list[dict[str, Any]] = [
        {"type": "file", "oid": "0" * 40, "size": len(FILES[name]), "path": name}
        for rest, name in below.items()
        if "/" not in rest
    ]
    folders = sorted({rest.partition("/")[0] for rest in below if "/" in rest})
    entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": name} for name in folders]
    return 200, json.dumps(entries).encode(), {}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def _ask(home: Path, endpoint: str, *requests: tuple[str, str | None], offline: bool = False) -> list[dict[str, Any]]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_TOKEN": TOKEN,
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    command = [sys.executable, "-c", _CLIENT, json.dumps(requests)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.fixture(scope="module")
def online(home: Path, endpoint: str) -> dict[str, dict[str, Any]]:
    """Answers to all requests that a working connection allows, made by one process."""
    requests: list[tuple[str, str | None]] = [
        *(("me/good", None), ("me/good", "main"), ("me/good", SHA), ("me/good", "nope")),
        *(("me/missing", None), ("me/gated", None), ("me/broken", None), ("a/b/c", None)),
        ("me/script", None),
    ]
    answers = _ask(home, endpoint, *requests)
    return {f"{name}@{revision}": answer for (name, revision), answer in zip(requests, answers, strict=True)}


def test_the_rows_of_a_hub_dataset_arrive(online: dict[str, dict[str, Any]]) -> None:
    assert online["me/good@None"]["rows"] == [f"row {index}" for index in range(20)]


@pytest.mark.parametrize("revision", [None, "main", SHA])
def test_every_name_of_a_revision_is_pinned_to_its_commit(
    online: dict[str, dict[str, Any]], revision: str | None
) -> None:
    answer = online[f"me/good@{revision}"]
    assert answer["identity"] == {"kind": "hub", "name": "me/good", "config": None, "revision": SHA}
    assert [options["revision"] for _, options in answer["loads"]] == [SHA]


def test_only_the_pinned_commit_is_downloaded_from(online: dict[str, dict[str, Any]]) -> None:
    assert online
    read = [line for line in _Hub.asked if "/resolve/" in line or "/tree/" in line]
    assert read
    assert all(SHA in line for line in read)


def test_code_of_a_dataset_is_neither_allowed_nor_run(online: dict[str, dict[str, Any]]) -> None:
    assert not any("trust_remote_code" in options for _, options in online["me/good@None"]["loads"])
    assert online["me/script@None"]["error"] == "SourceError"  # running it would have ended the process


def test_the_token_is_in_no_answer(online: dict[str, dict[str, Any]]) -> None:
    assert TOKEN not in json.dumps(online)


@pytest.mark.parametrize(
    ("request_", "message", "remedy"),
    [
        ("me/good@nope", "me/good: no such revision", "--revision"),
        ("me/missing@None", "me/missing: no such dataset", "for a private dataset set HF_TOKEN"),
        ("me/gated@None", "me/gated: access to this dataset is gated", "ask for access on its page"),
        ("me/broken@None", "me/broken: the hub answered with an error (Server error '500", "try again later"),
        ("me/script@None", "me/script: made by a script of its own", "--revision refs/convert/parquet"),
        ("a/b/c@None", "a/b/c: no such file or folder", "a dataset of the hub has the form USER/NAME"),
    ],
)
def test_each_failure_has_its_message_and_remedy(
    online: dict[str, dict[str, Any]], request_: str, message: str, remedy: str
) -> None:
    answer = online[request_]
    assert answer["error"] == "SourceError"
    assert answer["message"].startswith(message)
    assert remedy in answer["message"]


@pytest.mark.slow
def test_offline_the_cached_commit_is_used_and_named(
    online: dict[str, dict[str, Any]], home: Path, endpoint: str
) -> None:
    answers = _ask(home, endpoint, ("me/good", None), ("me/good", SHA), ("me/other", None), offline=True)
    assert [answer.get("identity") for answer in answers[:2]] == [online["me/good@None"]["identity"]] * 2
    assert "the hub cannot be reached" in answers[2]["message"]


@pytest.mark.slow
def test_offline_another_revision_is_never_passed_off_as_the_one_asked_for(
    online: dict[str, dict[str, Any]], home: Path, endpoint: str
) -> None:
    assert online
    answers = _ask(home, endpoint, ("me/good", OTHER_SHA), ("me/good", "v2"), offline=True)
    for answer, revision in zip(answers, (OTHER_SHA, "v2"), strict=True):
        assert f"--revision {revision} cannot be looked up offline, and the cache has commit {SHA}" in answer["message"]


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_told_apart_from_a_missing_dataset(home: Path) -> None:
    (answer,) = _ask(home, "http://127.0.0.1:9", ("me/good", None))
    assert answer["error"] == "SourceError"
    assert "the hub cannot be reached" in answer["message"]
    assert "check the network" in answer["message"]


def test_signed_addresses_are_cut_out_of_messages() -> None:
    error = RuntimeError("403 for url 'https://cdn.example.com/file?Signature=abc&Key=def' (denied)")
    with pytest.raises(SourceError, match=r"file\?\.\.\.' \(denied\)") as caught, hub.explained("me/data"):
        raise error
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize("kind", [FileNotFoundError, PermissionError])
def test_a_cache_that_cannot_be_made_is_an_output_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[OSError]
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf/datasets")
    number = errno.ENOENT if kind is FileNotFoundError else errno.EACCES
    with pytest.raises(OutputError, match=r"cache cannot be written.*; point HF_HOME"), hub.explained("a.csv"):
        raise kind(number, "refused", str(tmp_path / "hf"))


def test_a_file_that_is_refused_is_not_taken_for_the_cache(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read: PermissionError"), hub.explained("a.csv"):
        raise PermissionError(errno.EACCES, "refused", str(tmp_path / "a.csv"))


def test_a_full_disk_is_an_output_error_that_names_the_cache() -> None:
    with pytest.raises(OutputError, match=r"no space left.*HF_DATASETS_CACHE"), hub.explained("me/data"):
        raise RuntimeError("generating failed") from OSError(28, "No space left on device")


def test_our_own_errors_pass_unchanged() -> None:
    error = OutputError("cause", remedy="remedy")
    with pytest.raises(OutputError) as caught, hub.explained("me/data"):
        raise error
    assert caught.value is error


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    yield fs
    with contextlib.suppress(FileNotFoundError):
        fs.rm("/bucket", recursive=True)


def test_a_url_with_a_glob_is_expanded_in_order(memory: Any) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.txt"):
        memory.pipe(f"/bucket/data/{name}", b"x")
    assert hub.expand_url("memory://bucket/data/*.jsonl") == [
        "memory:///bucket/data/a.jsonl",
        "memory:///bucket/data/b.jsonl",
    ]


def test_a_url_without_a_file_is_an_error(memory: Any) -> None:
    memory.pipe("/bucket/data/a.jsonl", b"x")
    for url in ("memory://bucket/data/none.jsonl", "memory://bucket/none/*.jsonl"):
        with pytest.raises(SourceError, match=r"no such file; check the address"):
            hub.expand_url(url)


def test_storage_without_version_marks_is_read_for_its_digest(memory: Any) -> None:
    memory.pipe("/bucket/a.jsonl", b"one")
    before = files_digest(["memory://bucket/a.jsonl"])
    memory.pipe("/bucket/a.jsonl", b"two")
    assert files_digest(["memory://bucket/a.jsonl"]) != before
