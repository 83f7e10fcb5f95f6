"""A proxy in front of the emulator: repairs requests, speaks TLS, injects faults, and answers some requests itself.

    client ──► proxy, threads of this process ──► emulator      it makes and counts 503s, cut and stalled
       TLS or not                   plain HTTP, whole bodies    connections, and answers the emulator lacks

The emulator misreads a body that has both chunks and a length, as TensorFlow's client sends it. The proxy reads a body
whole and passes it on with only its length. So a truncated body never reaches the emulator.
"""

import collections
import contextlib
import dataclasses
import http.client
import json
import re
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from tests.cloud.emulator import Gcs
from tests.support import limits

HOSTS = ("www.googleapis.com", "storage.googleapis.com")
"""The names that TensorFlow's client calls, for which the proxy has certificates."""

_UNIT_BYTES = 1 << 18  # storage of a resumable upload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong: the first of every 1 / share requests, or of those that have such a body; 0 is never."""

    unavailable: float = 0
    """Answered with status 503, and not passed on."""
    cut_uploads: float = 0
    """The connection ends when half of the body has come. Of a part of a resumable upload the service keeps that half,
    in whole units of 256 KiB; of anything else nothing."""
    cut_downloads: float = 0
    """The connection ends when half of the answer is sent."""
    lost_answers: float = 0
    """What has a body is passed on and done, and the connection ends without an answer."""
    stall_at: int = 0
    """One request, the first from this number on that was not refused, is held back..."""
    stall_seconds: float = 0
    """...for so long, and then passed on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Status and body of an answer."""

    status: int = 200
    content: bytes = b""


def refusal(status: int, message: str = "") -> Answer:
    return Answer(status=status, content=json.dumps({"error": {"code": status, "message": message}}).encode())


@dataclasses.dataclass(kw_only=True)
class Proxy:
    """A running proxy."""

    upstream: str
    faults: Faults
    endpoint: str = ""
    ca_file: Path = Path()
    """The certificate authority to trust. Only with TLS."""
    adopting: Path = Path()
    """A Unix socket, only with TLS. Who sends it a listening socket is served there too, in whatever network."""
    answer: Callable[[int, str, str], Answer | None] = lambda number, method, path: None
    """`answer(number, method, path)` is asked for each request, counted from 1; None is left to the emulator."""
    requests: list[dict[str, str]] = dataclasses.field(default_factory=list)
    """The headers of each."""
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """How many requests there were by host, and how many were hit by each of the faults."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: collections.Counter[str] = collections.Counter()

    def number(self, headers: dict[str, str]) -> int:
        with self._lock:
            self.requests.append(headers)
            self.counts[f"host {headers.get('Host')}"] += 1
            return len(self.requests)

    def hits(self, name: str) -> bool:
        """Whether the fault of this name happens now."""
        with self._lock:
            share = getattr(self.faults, name)
            hit = bool(share) and self._asked[name] % round(1 / share) == 0
            self._asked[name] += 1
            self.counts[name] += hit
            return hit

    def pause(self, number: int) -> float:
        with self._lock:
            stalls = not self.counts["stalls"] and 0 < self.faults.stall_at <= number
            self.counts["stalls"] += stalls
            return self.faults.stall_seconds * stalls


@contextlib.contextmanager
def running(upstream: str, *, faults: Faults | None = None, tls: bool = False) -> Iterator[Proxy]:
    """Starts a proxy to `upstream`, and ends it whatever happens."""
    proxy = Proxy(upstream=upstream.removeprefix("http://"), faults=faults or Faults())
    # Not in a folder of pytest's: the path of a socket may have about a hundred characters.
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        context = None
        if tls:
            proxy.ca_file, proxy.adopting = Path(folder, "ca.pem"), Path(folder, "adopting")
            authority = trustme.CA()
            authority.cert_pem.write_to_path(str(proxy.ca_file))
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert(*HOSTS, "127.0.0.1").configure_cert(context)
        handler = type("Handler", (_Handler,), {"proxy": proxy, "tls": tls})

        def serve(listening: socket.socket) -> None:
            server = servers.enter_context(_Server(listening, handler, context))
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            servers.callback(server.shutdown)

        def adopt(adopting: socket.socket) -> None:
            with contextlib.suppress(OSError):  # until it is closed
                while True:
                    connection, _ = adopting.accept()
                    with connection:
                        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
                        serve(socket.socket(fileno=descriptors[0]))
                        connection.sendall(b".")

        listening = socket.create_server(("127.0.0.1", 0), backlog=100)
        serve(listening)
        if tls:
            adopting = servers.enter_context(socket.socket(socket.AF_UNIX))
            adopting.bind(str(proxy.adopting))
            adopting.listen()
            threading.Thread(target=adopt, args=(adopting,), daemon=True).start()
            servers.callback(adopting.shutdown, socket.SHUT_RDWR)
        proxy.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{listening.getsockname()[1]}"
        yield proxy


@contextlib.contextmanager
def through(gcs: Gcs, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with running(gcs.endpoint, faults=faults) as proxy, monkeypatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        yield proxy


class _Server(ThreadingHTTPServer):
    """Serves a socket that listens already, of whatever network namespace."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, handler: type["_Handler"], context: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self._context = context

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = self.socket.accept()
        if self._context is not None:
            # The handshake is made by the thread that serves the connection, when it first reads.
            connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    timeout = limits.ANSWER
    proxy: Proxy
    tls: bool

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, ssl.SSLError):
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()

    def handle_expect_100(self) -> bool:
        """At once: curl waits a second for this answer before it sends a body, which buffered it would not be."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def do_GET(self) -> None:
        proxy = self.proxy
        number = proxy.number(dict(self.headers))
        answer = refusal(503) if proxy.hits("unavailable") else proxy.answer(number, self.command, self.path)
        if answer is not None:
            self._body()
            self._answer(answer.status, {"Content-Type": "application/json"}, answer.content)
            return
        time.sleep(proxy.pause(number))
        has_body = self._is_chunked() or self._length() > 0
        if has_body and proxy.hits("cut_uploads"):
            half = self._length() // 2
            # The content of chunks is known only after reading all of them.
            self._keep_units(self._body()[:half] if self._is_chunked() else self._read(half))
            self._cut()
        status, headers, content = self._pass_on(self._body())
        if has_body and proxy.hits("lost_answers"):
            self._cut()
        is_cut = self.command == "GET" and len(content) > 1 and proxy.hits("cut_downloads")
        self._answer(status, headers, content, is_cut=is_cut)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def _length(self) -> int:
        return int(self.headers.get("Content-Length") or 0)

    def _is_chunked(self) -> bool:
        return (self.headers.get("Transfer-Encoding") or "").lower() == "chunked"

    def _body(self) -> bytes:
        if not self._is_chunked():
            return self._read(self._length())
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self._read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            """Trailers."""
        return b"".join(chunks)

    def _read(self, size: int) -> bytes:
        content = self.rfile.read(size)
        if len(content) < size:
            raise ConnectionResetError("the client has gone in the middle of a body")
        return content

    def _pass_on(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        dropped = {"transfer-encoding", "content-length", "connection", "expect"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        with contextlib.closing(http.client.HTTPConnection(self.proxy.upstream, timeout=limits.ANSWER)) as connection:
            connection.request(self.command, self.path, body=body or None, headers=headers)
            response = connection.getresponse()
            content = response.read()
        dropped = {"content-length", "connection", "server", "date"}
        kept = {name: value for name, value in response.getheaders() if name.lower() not in dropped}
        if self.tls and "Location" in kept:
            kept["Location"] = kept["Location"].replace("http://", "https://", 1)
        return response.status, kept, content

    def _keep_units(self, part: bytes) -> None:
        """Of a part that broke off the service keeps whole units, and asks for the rest."""
        span = re.fullmatch(r"bytes (\d+)-\d+/.+", self.headers.get("Content-Range", ""))
        kept = len(part) - len(part) % _UNIT_BYTES
        if span and kept:
            start = int(span.group(1))
            self.headers.replace_header("Content-Range", f"bytes {start}-{start + kept - 1}/*")
            self._pass_on(part[:kept])

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, is_cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if is_cut else content)
        if is_cut:
            self.wfile.flush()
            self._cut()

    def _cut(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        raise ConnectionResetError("a fault that was asked for")
