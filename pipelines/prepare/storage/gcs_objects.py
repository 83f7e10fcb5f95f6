"""Metadata, listings, uploads and deletes of objects on Google Cloud Storage, through google-cloud-storage.

    up to one block     one request, with a checksum that the service compares before the object appears
    more                a session of parts; the object appears with the last part, if it has the checksum

After an error the client sends the same part again; the service ignores bytes that it has
(https://cloud.google.com/storage/docs/performing-resumable-uploads). The client cannot continue after the service has
lost a session, or has kept less than a part without an error: the parts before are not in memory any more.

An upload may name the generation of the object that it replaces, 0 for none. If another one is there by then, the
service answers 412 (https://cloud.google.com/storage/docs/request-preconditions). That one may be our own, of a request
whose answer was lost, or the same content from another worker. So its checksum is compared.
"""

import base64
import contextlib
import errno
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c
from google.api_core.exceptions import GoogleAPICallError, PreconditionFailed
from google.cloud.storage.exceptions import DataCorruption

from pipelines.prepare.storage import gcs, object_storage, storage_errors
from pipelines.prepare.storage.storage_errors import library_retry
from tfrecord_io.errors import OutputError
from tfrecord_io.shown import cause_without_secrets

# The client keeps this many connections.
_REQUESTS_AT_ONCE = 10
# Answers to a part of an upload after which its session cannot be continued: unknown, or less was kept than was sent.
_SESSION_LOST = (308, 404, 410)


def info(path: str, *, passes: Callable[[BaseException], bool] = storage_errors.is_transient) -> dict[str, Any]:
    """Return the service's metadata of an object, or that a folder is there: a prefix of other names.

    Raises: FileNotFoundError; errors of the client, as do all functions here.
    """
    with gcs.bucket(path) as (bucket, key):
        options = _options(path, passes)
        if key and (blob := bucket.get_blob(key, **options)) is not None:
            checksums = {"md5Hash": blob.md5_hash, "crc32c": blob.crc32c, "etag": blob.etag}
            return {"type": "file", "size": blob.size, "generation": str(blob.generation), **checksums}
        if list(bucket.list_blobs(prefix=f"{key}/" if key else "", max_results=1, **options)) or not key:
            return {"type": "directory", "size": 0}
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def generations(paths: Sequence[str]) -> dict[str, int]:
    """Return the number that the service gave each object at its last upload, 0 for one that does not exist."""

    def request(path: str) -> int:
        with gcs.bucket(path) as (bucket, key):
            blob = bucket.get_blob(key, **_options(path))
        return 0 if blob is None else int(blob.generation)

    with ThreadPoolExecutor(min(_REQUESTS_AT_ONCE, len(paths))) as threads:
        return dict(zip(paths, threads.map(request, paths), strict=True))


def entries(path: str) -> dict[str, int | None]:
    """Return the bytes of each file in a folder by name; None for a folder, named `folder/`."""
    with gcs.bucket(path) as (bucket, key):
        prefix = f"{key}/" if key else ""
        listing = bucket.list_blobs(prefix=prefix, delimiter="/", **_options(path))
        found = {blob.name: blob.size for blob in listing} | dict.fromkeys(listing.prefixes)
    # A marker object of the folder has the prefix as its name.
    return {inner: size for name, size in found.items() if (inner := name.removeprefix(prefix)).strip("/")}


def write(path: str, chunks: Iterable[Any], *, replacing: int | None = None) -> None:
    """Upload buffers to an object, which appears when all of them have arrived.

    replacing: the generation to replace, 0 for none, None for any.
    Raises: OutputError if an object of another generation has other content, or if the upload cannot be continued;
        errors of `chunks`.
    """
    content = _Content(chunks)
    with gcs.bucket(path) as (bucket, key):
        blob = bucket.blob(key, chunk_size=object_storage.BLOCK_BYTES)
        try:
            blob.upload_from_file(
                content,
                size=content.size_of_one_block,
                content_type="application/octet-stream",
                if_generation_match=replacing,
                checksum="auto",
                **_options(path),
            )
            return
        except PreconditionFailed:
            """Handled below: this error names the session, which the context of another error would show."""
        except (DataCorruption, GoogleAPICallError, ValueError) as error:
            response = getattr(error, "response", None)
            is_lost = (
                response is not None and response.request.method == "PUT" and response.status_code in _SESSION_LOST
            )
            # The client raises a plain ValueError if the service has kept less than a part.
            is_plain = type(error) in (DataCorruption, ValueError)
            if not is_lost and not is_plain and "doesn't match calculated" not in str(error):
                raise
            raise OutputError(
                f"{path}: the upload broke off: {storage_errors.words(error)}",
                remedy="run the same command again; only what is missing is made",
            ) from cause_without_secrets(error)
    there: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError):
        there = info(path)
    if not content.is_same(there):
        since = "another job has written it" if there else "it was deleted"
        raise OutputError(
            f"{path}: not written, since {since} while this job was at work: expected generation "
            f"{replacing or 'none'}, got {there.get('generation', 'none')}",
            remedy="let one job at a time write to this folder, and run the same command again to go on",
        )


def delete(path: str) -> None:
    """Delete an object, and all objects below it as a folder; never a bucket."""
    with gcs.bucket(path) as (bucket, key):
        names = [blob.name for blob in bucket.list_blobs(prefix=f"{key}/" if key else "", **_options(path))]

    def delete_one(name: str) -> None:
        with contextlib.suppress(FileNotFoundError), gcs.bucket(path) as (bucket, _):
            bucket.delete_blob(name, **_options(path))

    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
        list(threads.map(delete_one, [key, *names] if key else names))


@functools.lru_cache(maxsize=1024)
def require_bucket(name: str) -> None:
    """Check the bucket of an object that was not found. Raises: OutputError if it does not exist."""
    path = f"gs://{name}"
    try:
        with gcs.bucket(path) as (bucket, _):
            list(bucket.list_blobs(max_results=1, **_options(path)))
    except FileNotFoundError as error:
        cause, remedy = storage_errors.no_bucket(name)
        raise OutputError(cause, remedy=remedy) from error
    except Exception:
        return  # an account that may not list a bucket may still read it


def _options(path: str, passes: Callable[[BaseException], bool] = storage_errors.is_transient) -> dict[str, Any]:
    return {"timeout": gcs.TIMEOUT, "retry": library_retry(path, passes=passes)}


class _Content:
    """A file for the client, of which each `read` gives the next block; counts bytes and sums them up."""

    def __init__(self, chunks: Iterable[Any]) -> None:
        blocks = _blocks(chunks)
        first = [next(blocks), *itertools.islice(blocks, 1)]
        self.size_of_one_block = len(first[0]) if len(first) == 1 else None
        self._blocks = itertools.chain(first, blocks)
        self._num_bytes = 0
        self._checksum = google_crc32c.Checksum()

    def read(self, size: int = -1) -> bytes:
        """Return the next block, whatever the size; empty at the end. Raises: errors of the chunks."""
        block = next(self._blocks, b"")
        self._num_bytes += len(block)
        self._checksum.update(block)
        return block

    def tell(self) -> int:
        """Return the number of bytes read."""
        return self._num_bytes

    def is_same(self, metadata: dict[str, Any]) -> bool:
        """Return whether an object has this content; reads what is left of it."""
        while self.read():
            """Only summed up."""
        checksum = base64.b64encode(self._checksum.digest()).decode()
        return (metadata.get("size"), metadata.get("crc32c")) == (self._num_bytes, checksum)


def _blocks(chunks: Iterable[Any]) -> Iterator[bytes]:
    """Cut buffers into blocks of BLOCK_BYTES; the last one may be shorter, and empty if it is the only one."""
    pending = bytearray()
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while view:
            if len(pending) == object_storage.BLOCK_BYTES:
                yield bytes(pending)
                pending.clear()
            taken = min(len(view), object_storage.BLOCK_BYTES - len(pending))
            pending += view[:taken]
            view = view[taken:]
    yield bytes(pending)
