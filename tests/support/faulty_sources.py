"""Sources that answer badly: a hub that is busy, private or gated.

    with hub({"data/train.parquet": content}, refusals=(503, 429)) as server:     # twice, and then it serves
        ... HF_ENDPOINT=server.endpoint, dataset server.dataset ...

A hub serves bytes or local files, whole or in ranges, as much as reading a dataset by the hub's client or its file
system needs.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["DATASET", "SHA", "Hub", "hub"]

DATASET = "me/data"
SHA = "a" * 39 + "1"
_SECONDS = 60


@dataclasses.dataclass(kw_only=True)
class Hub:
    """A hub with one dataset. `asked` are the requests, `served` the bytes of each file that it sent."""

    files: Mapping[str, bytes | Path]
    token: str | None
    gated: bool
    refusals: list[int]
    refused: re.Pattern[str]
    endpoint: str = ""
    dataset: str = DATASET
    asked: list[str] = dataclasses.field(default_factory=list)
    served: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def environment(self) -> dict[str, str]:
        """Environment variables for processes whose hub this is; without a token."""
        return {"HF_ENDPOINT": self.endpoint, "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1"}

    def size(self, name: str) -> int:
        """Bytes of a file."""
        content = self.files[name]
        return len(content) if isinstance(content, bytes) else content.stat().st_size


@contextlib.contextmanager
def hub(
    files: Mapping[str, bytes | Path],
    *,
    refusals: Sequence[int] = (),
    refused: str = "/resolve/",
    token: str | None = None,
    gated: bool = False,
) -> Iterator[Hub]:
    """A hub in threads of this process, with the dataset `DATASET` at commit `SHA`.

    The first requests whose method and path match `refused` are answered with `refusals`, one each. With a `token`
    nobody without it sees the dataset, or its files if it is `gated`.
    """
    served = Hub(files=files, token=token, gated=gated, refusals=list(refusals), refused=re.compile(refused))
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": served}))
    served.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = _SECONDS
    hub: Hub

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle_one_request()
            return
        self.close_connection = True

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        path = unquote(address.path)
        asked = f"{self.command} {path}"
        self.hub.asked.append(asked)
        if self.hub.refused.search(asked) and self.hub.refusals:
            self._say(self.hub.refusals.pop(0), {"error": "busy"}, {"Retry-After": "1"})
        elif refusal := self._stranger(path):
            self._say(*refusal)
        elif (name := path.removeprefix(f"/datasets/{DATASET}/resolve/{SHA}/")) in self.hub.files:
            self._send_file(name)
        else:
            self._say(*_facts(self.hub, path, {**parse_qs(address.query), **parse_qs(body.decode())}))

    do_HEAD = do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def _stranger(self, path: str) -> tuple[int, Any, dict[str, str]] | None:
        """What is said to those without the token."""
        if self.hub.token is None or self.headers.get("Authorization") == f"Bearer {self.hub.token}":
            return None
        if not self.hub.gated:
            return 401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
        return (403, {"error": "gated"}, {"X-Error-Code": "GatedRepo"}) if "/resolve/" in path else None

    def _send_file(self, name: str) -> None:
        content, size = self.hub.files[name], self.hub.size(name)
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        start, stop = _span(found[1], found[2], size) if found else (0, size)
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("ETag", f'"{_oid(self.hub, name)}"')
        if found:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.end_headers()
        if self.command == "HEAD":
            return
        self.hub.served[name] += stop - start
        if isinstance(content, bytes):
            self.wfile.write(content[start:stop])
            return
        with content.open("rb") as stream:
            stream.seek(start)
            _copy(stream, self.wfile, stop - start)

    def _say(self, status: int, facts: Any, headers: Mapping[str, str]) -> None:
        content = json.dumps(facts).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _span(first: str, last: str, size: int) -> tuple[int, int]:
    """The [start, stop) bytes of a range such as `5-9`, `5-` or `-5`."""
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def _copy(source: Any, target: Any, count: int) -> None:
    while count > 0:
        piece = source.read(min(count, 1 << 20))
        if not piece:
            raise ConnectionResetError("a file of the hub ended early")
        target.write(piece)
        count -= len(piece)


def _facts(hub: Hub, path: str, form: Mapping[str, list[str]]) -> tuple[int, Any, dict[str, str]]:
    """What the hub says of the dataset: its commit, its files, some of its files."""
    info = f"/api/datasets/{DATASET}"
    if path in (info, f"{info}/revision/main", f"{info}/revision/{SHA}"):
        siblings = [
            {"rfilename": name, "size": hub.size(name), "blobId": _oid(hub, name)} for name in sorted(hub.files)
        ]
        private = hub.token is not None and not hub.gated
        facts: dict[str, Any] = {
            "private": private,
            "gated": "manual" if hub.gated else False,
            "disabled": False,
            "tags": [],
        }
        return 200, {"id": DATASET, "sha": SHA, "siblings": siblings, "downloads": 0, "likes": 0, **facts}, {}
    if found := re.fullmatch(rf"{info}/tree/(?:{SHA}|main)(?P<folder>/.*)?", path):
        return _tree(hub, (found["folder"] or "").strip("/"), recursive=form.get("recursive", ["false"]) != ["false"])
    if path in (f"{info}/paths-info/{SHA}", f"{info}/paths-info/main"):
        return 200, [entry for name in form.get("paths", []) for entry in _entry(hub, name.strip("/"))], {}
    if path.startswith(f"{info}/revision/"):
        return 404, {}, {"X-Error-Code": "RevisionNotFound"}
    return 404, {}, {"X-Error-Code": "EntryNotFound" if DATASET in path else "RepoNotFound"}


def _tree(hub: Hub, folder: str, *, recursive: bool) -> tuple[int, Any, dict[str, str]]:
    inside = f"{folder}/" if folder else ""
    below = [name.removeprefix(inside) for name in sorted(hub.files) if name.startswith(inside)]
    if not below:
        return 404, {}, {"X-Error-Code": "EntryNotFound"}
    folders = {name[: found.start()] for name in below for found in re.finditer("/", name)}
    wanted = sorted({*below, *folders})
    return 200, [entry for name in wanted if recursive or "/" not in name for entry in _entry(hub, inside + name)], {}


def _entry(hub: Hub, name: str) -> list[dict[str, Any]]:
    if name in hub.files:
        return [{"type": "file", "oid": _oid(hub, name), "size": hub.size(name), "path": name}]
    is_folder = any(each.startswith(f"{name}/") for each in hub.files)
    return [{"type": "directory", "oid": "0" * 40, "size": 0, "path": name}] if is_folder else []


def _oid(hub: Hub, name: str) -> str:
    return hashlib.sha1(f"{name} {hub.size(name)}".encode()).hexdigest()
