"""The connection to Google Cloud Storage, and the credentials that it uses.

gcsfs signs the requests, and makes each up to six times, with pauses of 1 to 16 seconds, after 408, 429, 500 to 504
and lost connections. It sets no time limits: here a request has them. For what lasts longer, see `persistence`.

Without credentials requests are anonymous, which is enough to read what is open to everybody.

The class of gcsfs for zonal and hierarchical buckets is left out: it asks another service first what kind of bucket
it has to do with, which makes no difference to objects that are written whole.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from pipelines.prepare.storage import storage_errors
from tfrecord_io.errors import ConfigError, OutputError

__all__ = [
    "EMULATOR",
    "KEY_FILE",
    "configured",
    "file_system",
    "find_credentials",
    "forget",
    "generation",
    "info",
    "inner_path",
    "paths_below",
    "require_bucket",
]

EMULATOR = "STORAGE_EMULATOR_HOST"
KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"

_PROTOCOLS = ("gs", "gcs")
_SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"
# No request takes longer: the most it has to carry is one block. Without a word for a minute, a connection is dead.
_REQUEST_SECONDS = 300
_SILENCE_SECONDS = 60
_CONNECT_SECONDS = 20

_known_buckets: set[str] = set()
# Two threads that change the process's warnings at a time leave them changed.
_filtering = threading.Lock()


def file_system() -> Any:
    """The file system of this process for gs://, which all of its threads share.

    Raises: ConfigError if GOOGLE_APPLICATION_CREDENTIALS names no credentials.
    """
    return _file_system(os.getpid(), os.environ.get(EMULATOR, ""), os.environ.get(KEY_FILE, ""))


def forget() -> None:
    """Lets go of the connection and its credentials; the next use looks for them again."""
    _file_system.cache_clear()
    _known_buckets.clear()


def inner_path(path: str) -> str:
    """BUCKET/KEY of a gs:// address. Raises: ConfigError."""
    inner = path.partition("://")[2].strip("/")
    if not inner:
        raise ConfigError(f"{path}: no bucket in this address", remedy="give gs://BUCKET/FOLDER")
    return inner


def find_credentials() -> Any | None:
    """What Google's libraries find (application default credentials), or None. Nothing is asked of the emulator.

    Raises: ConfigError if GOOGLE_APPLICATION_CREDENTIALS names no credentials.
    """
    if os.environ.get(EMULATOR):
        return None
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        with _filtering, warnings.catch_warnings():
            # That users' own credentials have no quota project of their own is no matter here.
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
    """What the user has set for fsspec, such as FSSPEC_GS_REQUESTER_PAYS, which gcsfs is given as it is."""
    import fsspec

    return {name: value for protocol in _PROTOCOLS for name, value in fsspec.config.conf.get(protocol, {}).items()}


def info(inner: str) -> dict[str, Any]:
    """What the service says of an object, in one request, or of what is a folder by the names of others.

    Raises: FileNotFoundError; whatever gcsfs raises.
    """
    bucket, _, key = inner.partition("/")
    if key:
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = file_system().call("GET", "b/{}/o/{}", bucket, key, json_out=True)
            return {**found, "type": "file", "size": int(found["size"])}
    if not key or _page(bucket, f"{key}/", maxResults=1).get("items"):
        return {"type": "directory", "size": 0}
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"gs://{inner}")


def generation(inner: str) -> int:
    """The number that the service has given to the object as it is now, 0 if there is none: with each upload comes
    another one. Raises: whatever gcsfs raises.
    """
    bucket, _, key = inner.partition("/")
    try:
        return int(file_system().call("GET", "b/{}/o/{}", bucket, key, json_out=True)["generation"])
    except FileNotFoundError:
        return 0


def paths_below(inner: str) -> Iterator[str]:
    """BUCKET/KEY of every object in a folder, and in those below it."""
    bucket, _, key = inner.partition("/")
    token = None
    while True:
        page = _page(bucket, f"{key}/" if key else None, pageToken=token)
        yield from (f"{bucket}/{item['name']}" for item in page.get("items", ()))
        if (token := page.get("nextPageToken")) is None:
            return


def _page(bucket: str, prefix: str | None, **options: Any) -> dict[str, Any]:
    page: dict[str, Any] = file_system().call("GET", "b/{}/o", bucket, prefix=prefix, json_out=True, **options)
    return page


@functools.lru_cache(maxsize=8)
def _file_system(process: int, emulator: str, key_file: str) -> Any:
    import aiohttp
    from gcsfs.core import GCSFileSystem

    options: dict[str, Any] = {
        "use_listings_cache": False,
        "skip_instance_cache": True,
        "requests_timeout": aiohttp.ClientTimeout(
            total=_REQUEST_SECONDS, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS
        ),
    }
    if "token" not in configured():
        options["token"] = find_credentials() or "anon"
    return GCSFileSystem(**options)


def require_bucket(bucket: str) -> None:
    """For something that was not found: a bucket that was there once is not looked up again.

    Raises: OutputError if there is no such bucket.
    """
    if bucket in _known_buckets:
        return
    try:
        _page(bucket, None, maxResults=1)
    except FileNotFoundError as error:
        cause, remedy = storage_errors.no_bucket(bucket)
        raise OutputError(cause, remedy=remedy) from error
    except Exception:
        return  # who may not list it may read it all the same
    _known_buckets.add(bucket)
