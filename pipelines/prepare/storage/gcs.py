"""Google Cloud Storage, with the user's credentials or anonymously.

    metadata, listings, uploads, deletes    `bucket`, of google-cloud-storage
    reading                                 `open_fs`, of gcsfs, like every remote file through fsspec

Both libraries are imported on first use. They share credentials, endpoint and the project to bill. `GCSFileSystem`
is that of `gcsfs.core`: the class that `gcsfs` exports may ask another service for the bucket's type, which reading
does not need.

An upload of up to one block is one request, with a checksum that the service compares before the object appears. A
larger one is a session of parts; the object appears with the last part, if its checksum is right. After an error the
client sends the same part again; the service ignores bytes that it has
(https://cloud.google.com/storage/docs/performing-resumable-uploads). The client cannot continue after the service has
lost a session, or has kept less than a part without an error: the earlier parts are no longer in memory.

An upload may name the generation of the object that it replaces, 0 for none. If another one is there by then, the
service answers 412 (https://cloud.google.com/storage/docs/request-preconditions). That object may be our own, from a
request whose answer was lost, or another worker's with the same content, so its checksum is compared.
"""

import base64
import contextlib
import errno
import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import google_crc32c

from pipelines.prepare.process.threads import ordered_map
from pipelines.prepare.storage import object_storage, storage_errors
from tfrecord_io.errors import ConfigError, OutputError
from tfrecord_io.shown import cause_without_secrets

EMULATOR = "STORAGE_EMULATOR_HOST"
KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"

_SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"
# Limits of a gcsfs request, which fetches one block at most; of silence on a connection; and of connecting.
_REQUEST_SECONDS = 300
_SILENCE_SECONDS = 60
_CONNECT_SECONDS = 20
TIMEOUT = (_CONNECT_SECONDS, _SILENCE_SECONDS)
# The number of connections that the client keeps.
_REQUESTS_AT_ONCE = 10
# Answers to a part of an upload that end its session: it is unknown, or the service kept less than was sent.
_SESSION_LOST = (308, 404, 410)

_lock = threading.Lock()


@contextlib.contextmanager
def bucket(path: str) -> Iterator[tuple[Any, str]]:
    """Yield the bucket of an address, and the object's name in it.

    The threads of a process share one client, as they do in the client's own `transfer_manager`.

    Raises: ConfigError for an invalid address or GOOGLE_APPLICATION_CREDENTIALS; FileNotFoundError in place of 404;
        other errors of the client.
    """
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
    """Return the gcsfs file system, shared by all threads of this process, and the BUCKET/KEY of an address.

    Raises: ConfigError without a bucket, or if GOOGLE_APPLICATION_CREDENTIALS names no credentials.
    """
    inner = path.partition("://")[2].strip("/")
    if not inner:
        raise ConfigError(f"{path}: no bucket in this address", remedy="give gs://BUCKET/FOLDER")
    with _lock:
        return _file_system(*_place()), inner


def forget() -> None:
    """Drop connections and credentials; the next use looks for credentials again."""
    _client.cache_clear()
    _file_system.cache_clear()


storage_errors.on_refusal.append(forget)


def find_credentials() -> Any | None:
    """Return the application default credentials; None if there are none or an emulator is set.

    Raises: ConfigError if GOOGLE_APPLICATION_CREDENTIALS names no credentials.
    """
    if os.environ.get(EMULATOR):
        return None
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        with warnings.catch_warnings():
            # google.auth warns if a user's credentials have no quota project, which storage does not need.
            warnings.simplefilter("ignore")
            credentials, _ = google.auth.default(scopes=[_SCOPE])
    except DefaultCredentialsError as error:
        if key_file := os.environ.get(KEY_FILE):
            raise ConfigError(
                f"{KEY_FILE}={key_file}: no credentials ({error.args[0]})",
                remedy="let it name a service account's key file, or unset it",
            ) from error
        return None
    return credentials


def configured() -> dict[str, Any]:
    """Return the user's settings for gcsfs in fsspec, such as FSSPEC_GS_REQUESTER_PAYS."""
    import fsspec

    return {**fsspec.config.conf.get("gs", {}), **fsspec.config.conf.get("gcs", {})}


def _place() -> tuple[int, str, str]:
    """Return the cache key of connections: process id, emulator and key file."""
    return os.getpid(), os.environ.get(EMULATOR, ""), os.environ.get(KEY_FILE, "")


@functools.lru_cache(maxsize=8)
def _client(process: int, emulator: str, key_file: str) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    fs = _file_system(process, emulator, key_file)
    # Even without tracing, the client would request the bucket's metadata for traces, beside the first request and
    # after a 404.
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
        # HTTPS_PROXY and NO_PROXY, which the other client follows by itself.
        "session_kwargs": {"trust_env": True, **configured().get("session_kwargs", {})},
        "requests_timeout": aiohttp.ClientTimeout(
            total=_REQUEST_SECONDS, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS
        ),
    }
    if "token" not in configured():
        options["token"] = find_credentials() or "anon"
    return GCSFileSystem(**options)


def info(path: str, *, passes: Callable[[BaseException], bool] = storage_errors.is_transient) -> dict[str, Any]:
    """Return the metadata of an object or a folder; a folder exists if other objects have it as their prefix.

    Raises: FileNotFoundError; errors of the client, as do all functions here.
    """
    with bucket(path) as (found, key):
        options = _options(path, passes)
        if key and (blob := found.get_blob(key, **options)) is not None:
            checksums = {"md5Hash": blob.md5_hash, "crc32c": blob.crc32c, "etag": blob.etag}
            return {"type": "file", "size": blob.size, "generation": str(blob.generation), **checksums}
        if list(found.list_blobs(prefix=f"{key}/" if key else "", max_results=1, **options)) or not key:
            return {"type": "directory", "size": 0}
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def generations(paths: Sequence[str]) -> dict[str, int]:
    """Return the generation of each object, which the service sets at every upload; 0 for a missing object."""

    def request(path: str) -> int:
        with bucket(path) as (found, key):
            blob = found.get_blob(key, **_options(path))
        return 0 if blob is None else int(blob.generation)

    return dict(zip(paths, ordered_map(request, paths, threads=_REQUESTS_AT_ONCE), strict=True))


def entries(path: str) -> dict[str, int | None]:
    """Return the size in bytes of each file in a folder, by name; None for a subfolder, named `folder/`."""
    with bucket(path) as (found, key):
        prefix = f"{key}/" if key else ""
        listing = found.list_blobs(prefix=prefix, delimiter="/", **_options(path))
        sizes = {blob.name: blob.size for blob in listing} | dict.fromkeys(listing.prefixes)
    # A marker object of the folder has the prefix as its name.
    return {inner: size for name, size in sizes.items() if (inner := name.removeprefix(prefix)).strip("/")}


def write(path: str, chunks: Iterable[Any], *, replacing: int | None = None) -> None:
    """Upload buffers to an object that appears when all of them have arrived.

    replacing: the generation to replace, 0 for none, None for any.
    Raises: OutputError if an object of another generation has other content, or if the upload cannot be continued;
        errors of `chunks`.
    """
    from google.api_core.exceptions import GoogleAPICallError, PreconditionFailed
    from google.cloud.storage.exceptions import DataCorruption

    content = _Content(chunks)
    with bucket(path) as (found, key):
        try:
            found.blob(key, chunk_size=object_storage.BLOCK_BYTES).upload_from_file(
                content,
                size=content.size_of_one_block,
                content_type="application/octet-stream",
                if_generation_match=replacing,
                checksum="auto",
                **_options(path),
            )
            return
        except PreconditionFailed:
            pass  # raised below, outside of this error's context, which names the session
        except (DataCorruption, GoogleAPICallError, ValueError) as error:
            answer = getattr(error, "response", None)
            is_lost = answer is not None and answer.request.method == "PUT" and answer.status_code in _SESSION_LOST
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
    """Delete an object, and all objects below it if it is a folder; never delete a bucket."""
    with bucket(path) as (found, key):
        names = [blob.name for blob in found.list_blobs(prefix=f"{key}/" if key else "", **_options(path))]
        place = f"gs://{found.name}"
    delete_files([f"{place}/{name}" for name in ([key, *names] if key else names)])


def delete_files(paths: Sequence[str]) -> None:
    """Delete the objects that exist, by one request for each."""

    def delete_one(path: str) -> None:
        with contextlib.suppress(FileNotFoundError), bucket(path) as (found, key):
            found.delete_blob(key, **_options(path))

    list(ordered_map(delete_one, paths, threads=_REQUESTS_AT_ONCE))


@functools.lru_cache(maxsize=1024)
def require_bucket(name: str) -> None:
    """Check that the bucket of a missing object exists. Raises: OutputError if it does not."""
    try:
        info(f"gs://{name}")
    except FileNotFoundError as error:
        cause, remedy = storage_errors.no_bucket(name)
        raise OutputError(cause, remedy=remedy) from error
    except Exception:
        return  # an account that may not list a bucket may still read it


def _options(path: str, passes: Callable[[BaseException], bool] = storage_errors.is_transient) -> dict[str, Any]:
    return {"timeout": TIMEOUT, "retry": storage_errors.library_retry(path, passes=passes)}


class _Content:
    """File-like body of an upload: each `read` returns the next block and updates byte count and CRC-32C."""

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
        """Return the next block, whatever `size` is; empty at the end. Raises: errors of the chunks."""
        self._fill()
        block = bytes(self._pending[: object_storage.BLOCK_BYTES])
        del self._pending[: object_storage.BLOCK_BYTES]
        self._num_bytes += len(block)
        self._checksum.update(block)
        return block

    def tell(self) -> int:
        """Return the number of bytes read."""
        return self._num_bytes

    def is_same(self, metadata: dict[str, Any]) -> bool:
        """Return whether an object has the size and CRC-32C of this content, after reading its rest."""
        while self.read():
            pass  # adds to the checksum
        checksum = base64.b64encode(self._checksum.digest()).decode()
        return (metadata.get("size"), metadata.get("crc32c")) == (self._num_bytes, checksum)
