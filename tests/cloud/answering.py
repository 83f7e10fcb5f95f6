"""An answering machine: says for Google Cloud Storage what an emulator never says, and passes the rest on to it."""

import contextlib
import dataclasses
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_SECONDS = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Status and body of an answer."""

    status: int = 200
    content: bytes = b""


@dataclasses.dataclass(kw_only=True)
class Machine:
    """`answer(number, method, path)` is asked for each request, counted from 1; None is left to the emulator."""

    endpoint: str = ""
    answer: Callable[[int, str, str], Answer | None] = lambda number, method, path: None
    requests: list[dict[str, str]] = dataclasses.field(default_factory=list)
    """The headers of each."""


def refusal(status: int, message: str = "") -> Answer:
    """An error, in the form in which the service tells it."""
    return Answer(status=status, content=json.dumps({"error": {"code": status, "message": message}}).encode())


@contextlib.contextmanager
def answering(upstream: str) -> Iterator[Machine]:
    """A machine before the emulator at `upstream`, in a thread of this process."""
    machine = Machine()
    handler = type("Handler", (_Handler,), {"machine": machine, "upstream": upstream.removeprefix("http://")})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    machine.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield machine
    server.shutdown()
    server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    timeout = _SECONDS
    machine: Machine
    upstream: str

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.machine.requests.append(dict(self.headers))
        answer = self.machine.answer(len(self.machine.requests), self.command, self.path)
        if answer is None:
            self._pass_on(body)
        else:
            self._say(answer.status, {}, answer.content)

    do_POST = do_PUT = do_DELETE = do_GET

    def _pass_on(self, body: bytes) -> None:
        with contextlib.closing(http.client.HTTPConnection(self.upstream, timeout=_SECONDS)) as connection:
            connection.request(self.command, self.path, body=body or None, headers=dict(self.headers))
            got = connection.getresponse()
            kept = {name: got.headers[name] for name in ("Content-Type", "Location", "Range") if name in got.headers}
            self._say(got.status, kept, got.read())

    def _say(self, status: int, headers: dict[str, Any], content: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
