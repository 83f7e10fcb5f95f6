"""One object on its way to Google Cloud Storage, in one piece or in parts.

    up to one block     POST …?uploadType=multipart     {"name", "crc32c"} and the content: checked before it is seen
    more                POST …?uploadType=resumable     a session
                        PUT SESSION  bytes 0-8388607/*                 308, Range: what the service has by now
                        PUT SESSION  bytes 8388608-9999999/10000000    200, the object: seen from now on

A request whose answer was lost may have been done or not. So after an error the session is asked what it has, and the
upload goes on from there (https://cloud.google.com/storage/docs/performing-resumable-uploads).

An upload may name the generation of the object that it replaces, 0 for none. If another one is there by then, the
service answers with 412 and leaves it (https://cloud.google.com/storage/docs/request-preconditions). The one in the way
may be our own, of a request whose answer was lost, or the same content from another worker: so it is compared first.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import io
import json
import uuid
from typing import Any
from urllib.parse import quote

from pipelines.prepare.storage import gcs, storage_errors
from pipelines.prepare.storage.persistence import persist
from tfrecord_io.errors import OutputError

__all__ = ["Sum", "Upload"]

# Sessions take parts of whole multiples of this.
_UNIT_BYTES = 1 << 18
_BINARY = "application/octet-stream"
# Answers in a row by which the service has taken nothing.
_MOST_IDLE = 3


class Upload:
    """One object, block by block. Until the last block is sent there is no such object, or the one before."""

    def __init__(self, inner: str, *, path: str, replacing: int | None = None) -> None:
        self._path = path
        self._replacing = replacing
        self._bucket, _, self._key = inner.partition("/")
        self._fs = gcs.file_system()
        base = self._fs.base.replace("/storage/v1/", "/upload/storage/v1/")
        self._url = f"{base}b/{quote(self._bucket, safe='')}/o"
        self._sum = Sum()
        self._session = ""
        self._stored = 0
        self._refused = False

    def send(self, block: bytes, *, last: bool) -> None:
        """Blocks are of whole multiples of 256 KiB, but for the last. Raises: OutputError; whatever gcsfs raises."""
        self._sum.update(block)
        made = None if self._refused else self._send_unless_refused(block, last=last)
        if last and self._refused:
            self._require_same_there()
        elif made is not None:
            self._check(made)

    def abandon(self) -> None:
        """An unfinished session costs nothing, and ends by itself."""

    def _send_unless_refused(self, block: bytes, *, last: bool) -> dict[str, Any] | None:
        """Returns: the finished object, after the last block."""
        try:
            if last and not self._session:
                return persist(lambda: self._send_whole(block), path=self._path)
            if not self._session:
                self._session = persist(self._begin, path=self._path)
            return self._send_part(block, last=last)
        except FileExistsError:  # what gcsfs makes of 412
            self._refused = True
        return None

    def _send_whole(self, content: bytes) -> dict[str, Any]:
        boundary = uuid.uuid4().hex
        told = json.dumps({"name": self._key, self._sum.field: self._sum.text})
        head = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{told}\r\n"
        body = b"".join(
            (
                head.encode(),
                f"--{boundary}\r\nContent-Type: {_BINARY}\r\n\r\n".encode(),
                content,
                f"\r\n--{boundary}--\r\n".encode(),
            )
        )
        headers = {"Content-Type": f'multipart/related; boundary="{boundary}"'}
        try:
            made: dict[str, Any] = self._fs.call(
                "POST",
                self._url,
                uploadType="multipart",
                ifGenerationMatch=self._replacing,
                headers=headers,
                data=_Body(body),
                json_out=True,
            )
        except Exception as error:
            if "doesn't match calculated" in str(error):
                raise self._changed(f"the service has refused it ({error})") from error
            raise
        return made

    def _begin(self) -> str:
        # The precondition is part of the session, and counts when the object is made.
        headers, _ = self._fs.call(
            "POST",
            self._url,
            uploadType="resumable",
            ifGenerationMatch=self._replacing,
            headers={"X-Upload-Content-Type": _BINARY},
            json={"name": self._key},
        )
        return str(headers["Location"])

    def _send_part(self, block: bytes, *, last: bool) -> dict[str, Any] | None:
        """Sends until the service has all of it. Returns: the finished object, after the last part."""
        start = self._stored
        end = start + len(block)
        idle = 0
        while True:
            before = self._stored
            headers, content = self._put(block[before - start :], end=end, last=last)
            if content:
                made: dict[str, Any] = json.loads(content)
                return made
            self._stored = max(start, _stored_bytes(headers, end=end))
            if self._stored == end and not last:
                return None
            idle = 0 if self._stored > before else idle + 1
            if idle > _MOST_IDLE:
                raise self._lost(f"it takes no more than {self._stored} bytes")

    def _put(self, part: bytes, *, end: int, last: bool) -> tuple[Any, bytes]:
        start = end - len(part)
        span = f"{start}-{end - 1}" if part else "*"
        try:
            return persist(lambda: self._ask(f"bytes {span}/{end if last else '*'}", part), path=self._path)
        except Exception as error:
            final = isinstance(error, FileExistsError) or storage_errors.status_of(error) in (401, 403)
            if final or storage_errors.is_transient(error):
                raise
        # Part of a request that was repeated had been done, or all of it: the session knows. (Asked outside of the
        # handler: the error names the session, which nothing raised from here on is to be chained to.)
        return self._progress(last=last)

    def _progress(self, *, last: bool) -> tuple[Any, bytes]:
        try:
            return persist(lambda: self._ask("bytes */*", b""), path=self._path)
        except Exception as error:
            if storage_errors.status_of(error) not in (400, 404, 410):
                raise
        if last:
            with contextlib.suppress(FileNotFoundError):
                there = persist(self._look, path=self._path)
                if self._is_same(json.loads(there)):
                    return {}, there
        raise self._lost("the service knows its session no longer")

    def _ask(self, content_range: str, part: bytes) -> tuple[Any, bytes]:
        headers = {"Content-Range": content_range, "Content-Type": _BINARY}
        answer: tuple[Any, bytes] = self._fs.call("PUT", self._session, headers=headers, data=_Body(part))
        return answer

    def _look(self) -> bytes:
        _, content = self._fs.call("GET", "b/{}/o/{}", self._bucket, self._key)
        return bytes(content)

    def _is_same(self, made: dict[str, Any]) -> bool:
        return int(made.get("size", -1)) == self._sum.num_bytes and made.get(self._sum.field) in (None, self._sum.text)

    def _check(self, made: dict[str, Any]) -> None:
        if self._is_same(made):
            return
        field = self._sum.field
        with contextlib.suppress(Exception):
            # This upload, and not one that somebody else has made since.
            self._fs.call("DELETE", "b/{}/o/{}", self._bucket, self._key, generation=made.get("generation"))
        raise self._changed(f"the service has {made.get('size')} bytes with {field} {made.get(field)}; it was deleted")

    def _require_same_there(self) -> None:
        """Raises: OutputError if the object in the way has another content than the one that was to be sent."""
        there: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError):
            there = json.loads(persist(self._look, path=self._path))
        if there.get(self._sum.field) == self._sum.text and self._is_same(there):
            return
        since = "another job has written it" if there else "it was deleted"
        raise OutputError(
            f"{self._path}: not written, since {since} while this job was at work: expected generation "
            f"{self._replacing or 'none'}, got {there.get('generation', 'none')}",
            remedy="let one job at a time write to this folder, and run the same command again to go on",
        )

    def _changed(self, what: str) -> OutputError:
        return OutputError(
            f"{self._path}: {self._sum.num_bytes} bytes with {self._sum.field} {self._sum.text} were sent, but {what}",
            remedy="run the same command again; if this happens again, something on the way changes what is sent",
        )

    def _lost(self, why: str) -> OutputError:
        return OutputError(
            f"{self._path}: the upload broke off: {why}",
            remedy="run the same command again; only what is missing is made",
        )


class Sum:
    """Counts and sums up what is sent, as the service does with what it receives."""

    def __init__(self) -> None:
        crc32c = importlib.import_module("google_crc32c")
        self.num_bytes = 0
        self.field = "crc32c"
        self._sum: Any = crc32c.Checksum()
        if crc32c.implementation != "c":  # in Python it takes minutes for a shard
            self.field, self._sum = "md5Hash", hashlib.md5(usedforsecurity=False)

    def update(self, content: bytes) -> None:
        """Of the content that follows."""
        self.num_bytes += len(content)
        self._sum.update(content)

    @property
    def text(self) -> str:
        """As the service writes it."""
        return base64.b64encode(self._sum.digest()).decode()


class _Body(io.BytesIO):
    """Of a request that may be repeated: the HTTP client closes a body when it is sent."""

    def close(self) -> None:
        self.seek(0)


def _stored_bytes(headers: Any, *, end: int) -> int:
    """What a session has, of at most `end` bytes, in whole units or all of them."""
    stored = min(end, int(headers["Range"].rpartition("-")[2]) + 1) if "Range" in headers else 0
    return stored if stored == end else stored - stored % _UNIT_BYTES
