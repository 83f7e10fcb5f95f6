"""A reverse proxy with a port for each client, which counts the bytes of bodies in both directions.

A body counts for the first folder of the object it belongs to, or for `service` where it is no object's content: a
listing, the facts of an object, an error. Requests are passed on one at a time, since the emulator takes one at a time
and lets only a few wait.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import http.client
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["SERVICE", "Tally", "counted"]

SERVICE = "service"
_SECONDS = 120
_KEPT = ("Content-Type", "Content-Range", "Location", "Range", "X-Goog-Hash")
# The metadata of an object, in front of its content or alone.
_NAMED = re.compile(rb'"name": ?"([^"]+)"')
_HEAD_BYTES = 4096
_OBJECT = re.compile(r"/(?:download/)?storage/v1/b/[^/]+/o/(?P<name>.+)")


@dataclasses.dataclass(kw_only=True)
class Tally:
    """What one client has received and sent, in bytes of bodies by folder, and how many requests it made."""

    endpoint: str
    received: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    sent: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    requests: int = 0


@contextlib.contextmanager
def counted(upstream: str, *clients: str) -> Iterator[dict[str, Tally]]:
    """A port for each client, in threads of this process. Yields: their tallies, by client."""
    passing_on = threading.Lock()
    with contextlib.ExitStack() as stack:
        yield {client: stack.enter_context(_port(upstream, passing_on)) for client in clients}


@contextlib.contextmanager
def _port(upstream: str, passing_on: threading.Lock) -> Iterator[Tally]:
    tally = Tally(endpoint="")
    given = {"tally": tally, "upstream": upstream.removeprefix("http://"), "passing_on": passing_on, "sessions": {}}
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), given))
    tally.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield tally
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    timeout = _SECONDS
    tally: Tally
    upstream: str
    passing_on: threading.Lock
    sessions: dict[str, str]

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle_one_request()
            return
        self.close_connection = True

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.passing_on:
            self.tally.requests += 1
            self.tally.sent[folder := self._uploaded_to(body)] += len(body)
            status, headers, content = self._pass_on(body)
            if session := _session(headers.get("Location", "")):
                self.sessions[session] = folder
            self.tally.received[_downloaded_from(self.path, status)] += len(content)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _uploaded_to(self, body: bytes) -> str:
        """The folder of the object whose content the request has, or begins to send."""
        address = urlsplit(self.path)
        if not address.path.startswith("/upload/"):
            return SERVICE
        if known := self.sessions.get(_session(self.path)):
            return known
        named = parse_qs(address.query).get("name") or _NAMED.findall(body[:_HEAD_BYTES])
        return _folder(named[0] if isinstance(named[0], str) else named[0].decode()) if named else SERVICE

    def _pass_on(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        with contextlib.closing(http.client.HTTPConnection(self.upstream, timeout=_SECONDS)) as connection:
            connection.request(self.command, self.path, body=body or None, headers=dict(self.headers))
            got = connection.getresponse()
            return got.status, {name: got.headers[name] for name in _KEPT if name in got.headers}, got.read()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def _downloaded_from(path: str, status: int) -> str:
    """The folder of the object whose content the answer has."""
    address = urlsplit(path)
    found = _OBJECT.fullmatch(address.path)
    is_content = address.path.startswith("/download/") or parse_qs(address.query).get("alt") == ["media"]
    return _folder(unquote(found["name"])) if found and is_content and status < 300 else SERVICE


def _session(address: str) -> str:
    """What an upload in several requests is known by."""
    return parse_qs(urlsplit(address).query).get("upload_id", [""])[0]


def _folder(name: str) -> str:
    return name.partition("/")[0]
