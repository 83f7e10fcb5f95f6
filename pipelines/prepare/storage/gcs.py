"""Google Cloud Storage, with the user's credentials or anonymously.

Reads use gcsfs, all other requests google-cloud-storage. The `GCSFileSystem` is from `gcsfs.core`, because the one in
`gcsfs` may ask another service for the bucket's type.

An upload of more than one block is a session of parts. After an error, the client sends the same part again
(https://cloud.google.com/storage/docs/performing-resumable-uploads). It cannot continue if the service lost the session
or stored a part incompletely, because memory no longer holds earlier bytes.

The service answers 412 if the object's generation is not the one to replace
(https://cloud.google.com/storage/docs/request-preconditions). This is no error if the object has the same checksum: an
earlier answer was lost, or another worker has written the same content.

Functions raise FileNotFoundError, ConfigError for an invalid address or credentials, and errors of the client.
"""

import base64
import contextlib
import errno
import functools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import google_crc32c

from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.storage import gcs_account, object_storage, storage_errors
from pipelines.prepare.storage.gcs_account import EMULATOR, KEY_FILE, Check, configured, find_credentials
from pipelines.prepare.storage.gcs_account import explanation as explanation
from tfrecord_io.errors import ConfigError, OutputError
from tfrecord_io.shown import cause_without_secrets

_REQUEST_SECONDS = 300
_SILENCE_SECONDS = 60
_CONNECT_SECONDS = 20
TIMEOUT = (_CONNECT_SECONDS, _SILENCE_SECONDS)
_REQUESTS_AT_ONCE = 10
_SESSION_LOST = (308, 404, 410)

_lock = threading.Lock()


@contextlib.contextmanager
def bucket(path: str) -> Iterator[tuple[Any, str]]:
    """Yield google-cloud-storage's `Bucket` for an address, and the object's name. All threads share one client."""
    from google.api_core.exceptions import NotFound, RetryError

    fs, inner = open_fs(path)
    name, _, key = inner.partition("/")
    with _lock:
        client = _client(*_place())
    pays = fs.requester_pays
    try:
        yield client.bucket(name, user_project=pays if isinstance(pays, str) else fs.project if pays else None), key
    except NotFound as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from cause_without_secrets(error)
    except RetryError as error:
        raise error.cause from None


def open_fs(path: str) -> tuple[Any, str]:
    """Return the shared gcsfs file system, and the BUCKET/KEY of an address."""
    inner = path.partition("://")[2].strip("/")
    if not inner:
        raise ConfigError(f"{path}: no bucket in this address", remedy="give gs://BUCKET/FOLDER")
    with _lock:
        return _file_system(*_place()), inner


def forget() -> None:
    """Drop cached connections and credentials."""
    _client.cache_clear()
    _file_system.cache_clear()


def _place() -> tuple[int, str, str]:
    return os.getpid(), os.environ.get(EMULATOR, ""), os.environ.get(KEY_FILE, "")


@functools.lru_cache(maxsize=8)
def _client(process: int, emulator: str, key_file: str) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    fs = _file_system(process, emulator, key_file)
    # Without this, the client also requests the bucket's metadata.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    return storage.Client(
        project=None,
        credentials=fs.credentials.credentials or AnonymousCredentials(),
        client_options={"api_endpoint": fs.base.removesuffix("/storage/v1/")},
    )


@functools.lru_cache(maxsize=8)
def _file_system(process: int, emulator: str, key_file: str) -> Any:
    import aiohttp
    from gcsfs.core import GCSFileSystem

    options: dict[str, Any] = {
        "use_listings_cache": False,
        "skip_instance_cache": True,
        # Use HTTPS_PROXY and NO_PROXY, as google-cloud-storage does.
        "session_kwargs": {"trust_env": True, **configured().get("session_kwargs", {})},
        "requests_timeout": aiohttp.ClientTimeout(
            total=_REQUEST_SECONDS, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS
        ),
    }
    if "token" not in configured():
        options["token"] = find_credentials() or "anon"
    return GCSFileSystem(**options)


def info(path: str, *, retry_if: storage_errors.RetryIf = storage_errors.is_transient) -> dict[str, Any]:
    """Return the metadata of an object or a folder. A folder exists if an object's name begins with it."""
    with bucket(path) as (handle, key):
        options = _options(path, retry_if)
        if key and (blob := handle.get_blob(key, **options)) is not None:
            checksums = {"md5Hash": blob.md5_hash, "crc32c": blob.crc32c, "etag": blob.etag}
            return {"type": "file", "size": blob.size, "generation": str(blob.generation), **checksums}
        if list(handle.list_blobs(prefix=f"{key}/" if key else "", max_results=1, **options)) or not key:
            return {"type": "directory", "size": 0}
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def versions(paths: Sequence[str]) -> dict[str, int]:
    """Return each object's generation, which changes at every upload; 0 for a missing object."""

    def request(path: str) -> int:
        with bucket(path) as (handle, key):
            blob = handle.get_blob(key, **_options(path))
        return 0 if blob is None else int(blob.generation)

    return dict(zip(paths, ordered_map(request, paths, threads=_REQUESTS_AT_ONCE), strict=True))


def entries(path: str) -> dict[str, int | None]:
    with bucket(path) as (handle, key):
        prefix = f"{key}/" if key else ""
        listing = handle.list_blobs(prefix=prefix, delimiter="/", **_options(path))
        sizes = {blob.name: blob.size for blob in listing} | dict.fromkeys(listing.prefixes)
    return {inner: size for name, size in sizes.items() if (inner := name.removeprefix(prefix)).strip("/")}


def write(path: str, chunks: Iterable[Any], *, inside: str | None = None, replacing: int | None = None) -> None:
    """Upload buffers to an object that appears when all have arrived.

    replacing: the generation to replace; 0 if there must be no object, None for any.
    Raises: OutputError if an object of another generation has different content; errors of `chunks`.
    """
    from google.api_core.exceptions import GoogleAPICallError, PreconditionFailed
    from google.cloud.storage.exceptions import DataCorruption

    content = _Content(chunks)
    with bucket(path) as (handle, key):
        try:
            handle.blob(key, chunk_size=object_storage.BLOCK_BYTES).upload_from_file(
                content,
                size=content.size_of_one_block,
                content_type="application/octet-stream",
                if_generation_match=replacing,
                checksum="auto",
                **_options(path),
            )
            return
        except PreconditionFailed:
            pass  # replaced below, because this error shows the session
        except (DataCorruption, GoogleAPICallError, ValueError) as error:
            answer = getattr(error, "response", None)
            is_lost = answer is not None and answer.request.method == "PUT" and answer.status_code in _SESSION_LOST
            # The client raises ValueError if the service stored a part incompletely.
            is_plain = type(error) in (DataCorruption, ValueError)
            if not is_lost and not is_plain and "doesn't match calculated" not in str(error):
                raise
            raise OutputError(
                f"{path}: the upload was interrupted: {storage_errors.message_of(error)}",
                remedy="run the same command again; only the missing files are made",
            ) from cause_without_secrets(error)
    stored: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError):
        stored = info(path)
    if not content.is_same(stored):
        reason = "another job has written this file" if stored else "this file was deleted"
        raise OutputError(
            f"{path}: not written, since {reason} in the meantime (found version "
            f"{stored.get('generation', 'none')}, expected {replacing or 'none'})",
            remedy="let one job at a time write to this folder, and run the same command again to continue",
        )


def pinned(version: str) -> dict[str, str]:
    return {"generation": version} if version.isdecimal() else {}


def delete(path: str, *, inside: str | None = None) -> None:
    """Delete an object, or a folder with its content; never delete a bucket."""
    with bucket(path) as (handle, key):
        names = [blob.name for blob in handle.list_blobs(prefix=f"{key}/" if key else "", **_options(path))]
        place = f"gs://{handle.name}"
    delete_files([f"{place}/{name}" for name in ([key, *names] if key else names)])


def delete_files(paths: Sequence[str], *, inside: str | None = None) -> None:
    def delete_one(path: str) -> None:
        with contextlib.suppress(FileNotFoundError), bucket(path) as (handle, key):
            handle.delete_blob(key, **_options(path))

    list(ordered_map(delete_one, paths, threads=_REQUESTS_AT_ONCE))


@functools.lru_cache(maxsize=1024)
def require_bucket(name: str) -> None:
    """Raise OutputError if the service answers that there is no bucket `name`."""
    try:
        info(f"gs://{name}")
    except FileNotFoundError as error:
        cause, remedy = explanation(name, "read", 404, "") or ("", "")
        raise OutputError(cause, remedy=remedy) from error
    except Exception:
        return  # the account may lack permission to list


def checks(output: str, *, region: str | None) -> Iterator[Check]:
    """Yield checks of credentials and the bucket of the address `output`, and of its location if `region` is given."""
    yield gcs_account.credentials_check()
    try:
        with storage_errors.as_output_error(output), bucket(output) as (described, _):
            described.reload(timeout=TIMEOUT, retry=storage_errors.library_retry(output))
    except OutputError as error:
        if error.__context__ is None or storage_errors.status_of(error.__context__) != 403:
            yield Check("bucket", False, error.cause, error.remedy)
            return
        remedy = error.remedy.replace("storage.objectAdmin", "storage.legacyBucketReader")
        yield Check("bucket", None, f"its metadata cannot be read: {error.cause}", remedy)
        return
    kind = described.location_type or "region"
    yield Check("bucket", True, f"{described.location}, {kind}, {described.storage_class or ''}")
    if region is not None:
        yield gcs_account.region_check(described, region)


def _options(path: str, retry_if: storage_errors.RetryIf = storage_errors.is_transient) -> dict[str, Any]:
    return {"timeout": TIMEOUT, "retry": storage_errors.library_retry(path, retry_if=retry_if)}


class _Content:
    def __init__(self, chunks: Iterable[Any]) -> None:
        self._chunks = iter(chunks)
        self._pending = bytearray()
        self._num_bytes = 0
        self._checksum = google_crc32c.Checksum()
        self._fill()
        self.size_of_one_block = len(self._pending) if len(self._pending) <= object_storage.BLOCK_BYTES else None

    def _fill(self) -> None:
        while len(self._pending) <= object_storage.BLOCK_BYTES and (chunk := next(self._chunks, None)) is not None:
            self._pending += memoryview(chunk).cast("B")

    def read(self, size: int = -1) -> bytes:
        self._fill()
        block = bytes(self._pending[: object_storage.BLOCK_BYTES])
        del self._pending[: object_storage.BLOCK_BYTES]
        self._num_bytes += len(block)
        self._checksum.update(block)
        return block

    def tell(self) -> int:
        return self._num_bytes

    def is_same(self, metadata: dict[str, Any]) -> bool:
        while self.read():
            pass  # reads the rest to update the checksum
        checksum = base64.b64encode(self._checksum.digest()).decode()
        return (metadata.get("size"), metadata.get("crc32c")) == (self._num_bytes, checksum)
