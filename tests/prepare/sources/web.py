"""A web server in this process with answers from the test. It records requests."""

import contextlib
import dataclasses
import http.server
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

# Status, body and headers for method, path and query, and for POST the request's body. A body of status 200 is
# served in ranges, unless the headers have Accept-Ranges: none.
Answer = Callable[..., tuple[int, bytes, dict[str, str]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Web:
    """The server's address, and the requests so far: `GET /path`."""

    address: str
    requests: list[str] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[Web]:
    """Gives the server, until the test is done."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Keeps quiet."""

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            path = unquote(address.path)
            web.requests.append(f"{self.command} {path}")
            sent = (self.rfile.read(int(self.headers["Content-Length"])),) if self.command == "POST" else ()
            status, body, headers = answer(self.command, path, address.query, *sent)
            wanted = self.headers.get("Range", "").removeprefix("bytes=")
            if status == 200 and wanted and headers.get("Accept-Ranges") != "none":
                start, _, stop = wanted.partition("-")
                headers = {**headers, "Content-Range": f"bytes {wanted}/{len(body)}"}
                status, body = 206, body[int(start) : int(stop) + 1 if stop else None]
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_POST = do_GET

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        web = Web(address=f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield web
        server.shutdown()
