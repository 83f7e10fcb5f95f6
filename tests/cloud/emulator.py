"""A Google Cloud Storage of our own: an emulator in a thread, in memory, on a free port of loopback."""

import contextlib
import dataclasses
import functools
import json
import logging
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, quote, urlsplit

from gcp_storage_emulator import server as emulator  # type: ignore[import-untyped]
from gcp_storage_emulator.storage import Storage  # type: ignore[import-untyped]

from tests.support import limits, processes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gcs:
    """A running emulator, spoken to without gcsfs. Object names are those below the bucket."""

    endpoint: str

    def bucket(self) -> str:
        """Makes a bucket that nobody else has; its name."""
        name = f"bucket-{uuid.uuid4().hex}"
        self._ask("POST", "/storage/v1/b?project=test", json.dumps({"name": name}).encode())
        return name

    def environment(self, **changes: str) -> dict[str, str]:
        """For processes that a test starts: gs:// is this emulator, and this repository's packages are there."""
        # The emulator says nothing of zonal and hierarchical buckets, which gcsfs asks of another service.
        here = {"STORAGE_EMULATOR_HOST": self.endpoint, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        return {**processes.environment(), **here, **changes}

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        listing = json.loads(self._ask("GET", f"/storage/v1/b/{bucket}/o?prefix={quote(prefix, safe='')}"))
        return sorted(item["name"] for item in listing.get("items", ()))

    def objects(self, bucket: str, prefix: str = "") -> dict[str, bytes]:
        return {name.removeprefix(prefix): self.read(bucket, name) for name in self.names(bucket, prefix)}

    def read(self, bucket: str, name: str) -> bytes:
        return self._ask("GET", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media")

    def write(self, bucket: str, name: str, content: bytes) -> None:
        self._ask("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}", content)

    def delete(self, bucket: str, name: str) -> None:
        self._ask("DELETE", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}")

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        headers = {"Content-Type": "application/json" if path.startswith("/storage") else "application/octet-stream"}
        request = urllib.request.Request(self.endpoint + path, method=method, data=body, headers=headers)
        # Whatever proxy the environment names has nothing to do with loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=limits.ANSWER) as response:
            content: bytes = response.read()
        return content


@contextlib.contextmanager
def running() -> Iterator[Gcs]:
    """Starts the emulator, and ends it whatever happens."""
    read_data = emulator._read_data

    def exact_data(handler: Any, query: Any) -> Any:
        """As the emulator's, which reads an upload as an e-mail: a content that ends in \\r would lose it."""
        content_type = handler.headers.get("Content-Type") or ""
        if query.get("uploadType") == ["media"]:
            return read_data(handler, query) or b""  # not None: its length is needed
        if not content_type.startswith("multipart/related"):
            return read_data(handler, query)
        boundary = content_type.partition("boundary=")[2].strip('"').encode()
        return _two_parts(handler.rfile.read(int(handler.headers["Content-Length"])), boundary)

    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    with (
        mock.patch.multiple(emulator, RequestHandler=_Handler, _read_data=exact_data),
        # After every change it would write down all buckets and objects, which nobody reads: most of its time.
        mock.patch.object(Storage, "_write_config_to_file"),
        emulator.create_server("127.0.0.1", 0, in_memory=True) as server,
    ):
        serving = server._api._httpd
        serving.handle_error = lambda *_: None  # of a connection that broke off
        yield Gcs(endpoint=f"http://127.0.0.1:{serving.server_address[1]}")


class _Handler(emulator.RequestHandler):
    """Handler that corrects the emulator's differences from the service.

    The emulator would store a truncated body as the whole object; the service stores nothing. It knows no
    preconditions. It refuses repeated parts; the service ignores bytes it already has, and answers a finished session
    with its object.
    """

    rfile: Any

    def setup(self) -> None:
        super().setup()
        self.rfile = _Whole(self.rfile)

    def do_POST(self) -> None:
        self._do_if_met(super().do_POST)

    def do_PUT(self) -> None:
        self._do_if_met(super().do_PUT)

    def _do_if_met(self, do: Callable[[], None]) -> None:
        # The address of an upload session has the precondition too, from the request that has begun it.
        query = parse_qs(urlsplit(self.path).query)
        (wanted,) = query.get("ifGenerationMatch", [None])
        (session,) = query.get("upload_id", [""])
        self.storage.create_file = functools.partial(_create_if, self.storage, wanted)
        self.storage.add_to_resumable_upload = functools.partial(_add_new, self.storage)
        if made := _ended_sessions(self.storage).get(session):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._say(200, made)
            return
        try:
            do()
        except _NotMetError:
            message = "At least one of the pre-conditions you specified did not hold."
            self._say(412, {"error": {"code": 412, "message": message}})

    def _say(self, status: int, document: Any) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class _NotMetError(Exception):
    """Another generation of the object is there than the one that was named, or none."""


def _create_if(storage: Any, wanted: str | None, bucket: str, name: str, *arguments: Any) -> None:
    """The emulator's `create_file`, if generation `wanted` of the object is there: 0 for none, None for any. It serves
    one request at a time, so that nothing comes in between.
    """
    there = storage.objects.get(bucket, {}).get(name, {}).get("generation", "0")
    if wanted not in (None, there):
        raise _NotMetError
    type(storage).create_file(storage, bucket, name, *arguments)
    _, made, *session = arguments
    _ended_sessions(storage).update(dict.fromkeys(session, made))


def _add_new(storage: Any, session: str, content: bytes, *, total_size: int | None, expected_start: int) -> Any:
    """Replace the emulator's `add_to_resumable_upload`: skip the bytes it already has."""
    there = max(expected_start, storage.get_resumable_byte_count(session))
    return type(storage).add_to_resumable_upload(
        storage, session, content[there - expected_start :], total_size=total_size, expected_start=there
    )


def _ended_sessions(storage: Any) -> dict[str, Any]:
    ended: dict[str, Any] = vars(storage).setdefault("ended_sessions", {})
    return ended


class _Whole:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, size: int) -> bytes:
        content: bytes = self._stream.read(size)
        if len(content) < size:
            raise ConnectionError(f"a body ended after {len(content)} bytes, expected {size}")
        return content


def _two_parts(body: bytes, boundary: bytes) -> dict[str, Any]:
    """What an object is uploaded with in one request: its metadata, and its content. Lines end as the first does."""
    newline = b"\r\n" if body.partition(b"\n")[0].endswith(b"\r") else b"\n"
    delimiter = newline + b"--" + boundary
    _, metadata, rest = (newline + body).split(delimiter + newline, maxsplit=2)
    headers, _, content = rest[: rest.rindex(delimiter + b"--")].partition(newline * 2)
    content_type = headers.decode().partition(":")[2].strip()
    return {
        "meta": json.loads(metadata.partition(newline * 2)[2]),
        "content": content,
        "content-type": content_type or "application/octet-stream",
    }
