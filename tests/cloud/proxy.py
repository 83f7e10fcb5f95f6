"""A reverse proxy in front of the emulator: makes requests digestible, speaks TLS, and injects faults on request.

    client ──► proxy ──► emulator           503, 429, cut and stalled connections happen here, and are counted
       TLS or not    plain HTTP, bodies whole

The emulator misreads a body that comes both in chunks and with its length, as TensorFlow's client sends it, which
aiohttp refuses too. The proxy reads a body whole, and passes it on with its length only. So a body that was cut off
never reaches the emulator.

Of every 1 / share requests one is hit by a fault; a seed says which.
"""

import argparse
import collections
import contextlib
import dataclasses
import http.client
import json
import random
import re
import socket
import ssl
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import trustme

from tests.cloud import emulator
from tests.cloud.emulator import Gcs

if TYPE_CHECKING:
    import pytest  # not when this is a program

HOSTS = ("www.googleapis.com", "storage.googleapis.com")
"""The names that TensorFlow's client calls, for which the proxy has certificates."""

_COUNTS = "/-/counts"
_SECONDS = 60
_UNIT_BYTES = 1 << 18  # what a resumable upload is stored in


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong. Shares are of the requests, or of those that have such a body; 0 is never."""

    seed: int = 0
    unavailable: float = 0
    """Answered with status 503, and not passed on."""
    cut_uploads: float = 0
    """The connection ends when half of the body has come. Of a part of a resumable upload the service keeps that half,
    in whole units of 256 KiB; of anything else nothing."""
    cut_downloads: float = 0
    """The connection ends when half of the answer is sent."""
    lost_answers: float = 0
    """What has a body is passed on and done, and the connection ends without an answer."""
    burst_every: int = 0
    """After so many requests comes a burst, in which each is answered with status 429. Those do not count towards the
    next burst: otherwise, clients that ask again soon enough would keep one burst alive for ever..."""
    burst_seconds: float = 0
    """...for so long."""
    stall_at: int = 0
    """One request, the first from this number on that was not refused, is held back..."""
    stall_seconds: float = 0
    """...for so long, and then passed on."""


class _Share:
    """Hits one of every 1 / share, at a place that the seed decides."""

    def __init__(self, share: float, seed: str) -> None:
        self._random = random.Random(seed)
        self._period = round(1 / share) if share else 0
        self._position = self._chosen = 0

    def hit(self) -> bool:
        if not self._period:
            return False
        if self._position == 0:
            self._chosen = self._random.randrange(self._period)
        hit = self._position == self._chosen
        self._position = (self._position + 1) % self._period
        return hit


class _Script:
    """Decides for each request what becomes of it, and counts."""

    def __init__(self, faults: Faults) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._faults = faults
        self._lock = threading.Lock()
        self._burst_until = 0.0
        self._since_burst = 0
        self._shares = {
            name: _Share(getattr(faults, name), f"{faults.seed} {name}")
            for name in ("unavailable", "cut_uploads", "cut_downloads", "lost_answers")
        }

    def hits(self, name: str) -> bool:
        """Whether the fault of this name happens now."""
        with self._lock:
            hit = self._shares[name].hit()
            self.counts[name] += hit
            return hit

    def refusal(self, host: str) -> int:
        """To be asked once for each request: the status that it is refused with, or 0."""
        with self._lock:
            now, every = time.monotonic(), self._faults.burst_every
            self.counts["requests"] += 1
            self.counts[f"host {host}"] += 1
            self._since_burst += now >= self._burst_until
            if every and self._since_burst == every:
                self.counts["bursts"] += 1
                self._since_burst = 0
                self._burst_until = now + self._faults.burst_seconds
            if now < self._burst_until:
                self.counts["too_many"] += 1
                return HTTPStatus.TOO_MANY_REQUESTS
        return HTTPStatus.SERVICE_UNAVAILABLE if self.hits("unavailable") else 0

    def pause(self) -> float:
        """For how long a request that was not refused waits."""
        with self._lock:
            stalls = not self.counts["stalls"] and 0 < self._faults.stall_at <= self.counts["requests"]
            self.counts["stalls"] += stalls
            return self._faults.stall_seconds * stalls


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proxy:
    """A running proxy."""

    endpoint: str
    ca_file: Path
    """The certificate authority to trust. Only with TLS."""
    adopting: Path
    """A Unix socket, only with TLS. Who sends it a listening socket is served there too, in whatever network."""

    def counts(self) -> collections.Counter[str]:
        """How many requests there were, in all and by host, and how many were hit by each of the faults."""
        context = ssl.create_default_context(cafile=self.ca_file) if self.ca_file.exists() else None
        handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
        with urllib.request.build_opener(*handlers).open(self.endpoint + _COUNTS, timeout=_SECONDS) as answer:
            return collections.Counter(json.load(answer))


@contextlib.contextmanager
def running(upstream: str, *, faults: Faults | None = None, tls: bool = False) -> Iterator[Proxy]:
    """Starts a proxy to `upstream`, and ends it whatever happens."""
    words = [upstream, json.dumps(dataclasses.asdict(faults or Faults())), *(["--tls"] if tls else [])]
    # Not in a folder of pytest's: the path of a socket may have about a hundred characters.
    with tempfile.TemporaryDirectory() as folder, emulator.process("tests.cloud.proxy", *words, folder) as port:
        yield Proxy(
            endpoint=f"{'https' if tls else 'http'}://127.0.0.1:{port}",
            ca_file=Path(folder, "ca.pem"),
            adopting=Path(folder, "adopting"),
        )


@contextlib.contextmanager
def through(gcs: Gcs, faults: Faults, monkeypatch: "pytest.MonkeyPatch") -> Iterator[Proxy]:
    """gs:// is the emulator behind a proxy."""
    with running(gcs.endpoint, faults=faults) as proxy, monkeypatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        yield proxy


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    timeout = _SECONDS
    script: _Script
    upstream: str
    tls: bool

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, ssl.SSLError):
            super().handle_one_request()
            return
        self.close_connection = True

    def handle_expect_100(self) -> bool:
        """At once: curl waits a second for this answer before it sends a body, which buffered it would not be."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def do_GET(self) -> None:
        if self.path == _COUNTS:
            self._answer(200, {"Content-Type": "application/json"}, json.dumps(self.script.counts).encode())
            return
        status = self.script.refusal(self.headers.get("Host", ""))
        if status:
            self._body()
            message = json.dumps({"error": {"code": status, "message": HTTPStatus(status).phrase}})
            self._answer(status, {"Content-Type": "application/json"}, message.encode())
            return
        time.sleep(self.script.pause())
        has_body = self._is_chunked() or self._length() > 0
        if has_body and self.script.hits("cut_uploads"):
            half = self._length() // 2
            # Chunks have to be read to the end to know what is in them.
            self._keep_units(self._body()[:half] if self._is_chunked() else self._read(half))
            self._cut()
        answer = self._pass_on(self._body())
        if has_body and self.script.hits("lost_answers"):
            self._cut()
        self._answer(*answer, breaks_off=self._breaks_off(answer[2]))

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
        connection = http.client.HTTPConnection(self.upstream, timeout=_SECONDS)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body=body or None, headers=headers)
            got = connection.getresponse()
            content = got.read()
        dropped = {"content-length", "connection", "server", "date"}
        kept = {name: value for name, value in got.getheaders() if name.lower() not in dropped}
        if self.tls and "Location" in kept:
            kept["Location"] = kept["Location"].replace("http://", "https://", 1)
        return got.status, kept, content

    def _keep_units(self, part: bytes) -> None:
        """Of a part that broke off the service keeps whole units, and asks for the rest."""
        span = re.fullmatch(r"bytes (\d+)-\d+/.+", self.headers.get("Content-Range", ""))
        kept = len(part) - len(part) % _UNIT_BYTES
        if span and kept:
            start = int(span.group(1))
            self.headers.replace_header("Content-Range", f"bytes {start}-{start + kept - 1}/*")
            self._pass_on(part[:kept])
            self.script.counts["kept_halves"] += 1

    def _breaks_off(self, content: bytes) -> bool:
        return self.command == "GET" and len(content) > 1 and self.script.hits("cut_downloads")

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, breaks_off: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if breaks_off:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self._cut()
        self.wfile.write(content)

    def _cut(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        raise ConnectionResetError("a fault that was asked for")


class _Server(ThreadingHTTPServer):
    """Serves a socket that listens already, of whatever network namespace."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[_Handler], context: ssl.SSLContext | None) -> None:
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

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, daemon=True).start()


def _serve(upstream: str, folder: Path, faults: Faults, *, tls: bool) -> None:
    context = _certified(folder / "ca.pem") if tls else None
    given = {"script": _Script(faults), "upstream": upstream.removeprefix("http://"), "tls": tls}
    handler = type("Handler", (_Handler,), given)
    listening = socket.create_server(("127.0.0.1", 0), backlog=100)
    _Server(listening, handler, context).start()
    if tls:
        adopting = socket.socket(socket.AF_UNIX)
        adopting.bind(str(folder / "adopting"))
        adopting.listen()
        threading.Thread(target=_adopt, args=(adopting, handler, context), daemon=True).start()
    print(listening.getsockname()[1], flush=True)
    sys.stdin.buffer.read()


def _adopt(adopting: socket.socket, handler: type[_Handler], context: ssl.SSLContext | None) -> None:
    while True:
        connection, _ = adopting.accept()
        with connection:
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
            _Server(socket.socket(fileno=descriptors[0]), handler, context).start()
            connection.sendall(b".")


def _certified(ca_file: Path) -> ssl.SSLContext:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(ca_file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*HOSTS, "127.0.0.1").configure_cert(context)
    return context


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("upstream")
    parser.add_argument("faults", type=json.loads)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    _serve(given.upstream, given.folder, Faults(**given.faults), tls=given.tls)


if __name__ == "__main__":
    _main()
