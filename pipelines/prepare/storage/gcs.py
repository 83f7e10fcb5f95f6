"""Connect to Google Cloud Storage, with the user's credentials or anonymously.

    metadata, listings, uploads, deletes    `bucket`, of google-cloud-storage    see `gcs_objects`
    reading                                 `file_system`, of gcsfs              like every remote file, through fsspec

Both libraries are imported on first use. They share credentials, endpoint and the project to bill.

GCSFileSystem is taken from `gcsfs.core`: the class that `gcsfs` exports may ask a further service for the kind of the
bucket, which makes no difference to reading.
"""

import contextlib
import errno
import functools
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from tfrecord_io.errors import ConfigError
from tfrecord_io.shown import cause_without_secrets

EMULATOR = "STORAGE_EMULATOR_HOST"
KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"

_PROTOCOLS = ("gs", "gcs")
_SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"
# Limits of a request of gcsfs, which fetches one block at most, and of a connection on which nothing arrives.
_REQUEST_SECONDS = 300
_SILENCE_SECONDS = 60
_CONNECT_SECONDS = 20
TIMEOUT = (_CONNECT_SECONDS, _SILENCE_SECONDS)

_lock = threading.Lock()
# Two threads that change the process's warnings at a time leave them changed.
_filtering = threading.Lock()


@contextlib.contextmanager
def bucket(path: str) -> Iterator[tuple[Any, str]]:
    """Give the bucket of an address, and the object's name in it.

    The threads of a process share one client, as they do in the client's own `transfer_manager`.

    Raises: ConfigError for an invalid address or GOOGLE_APPLICATION_CREDENTIALS; FileNotFoundError in place of 404;
        other errors of the client.
    """
    from google.api_core.exceptions import NotFound, RetryError

    name, _, key = inner_path(path).partition("/")
    fs = file_system()
    with _lock:
        client = _client(*_place())
    pays = fs.requester_pays
    try:
        yield client.bucket(name, user_project=pays if isinstance(pays, str) else fs.project if pays else None), key
    except NotFound as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from cause_without_secrets(error)
    except RetryError as error:
        raise error.cause from None


def file_system() -> Any:
    """Return the gcsfs file system that the threads of this process share.

    Raises: ConfigError if GOOGLE_APPLICATION_CREDENTIALS names no credentials.
    """
    with _lock:
        return _file_system(*_place())


def forget() -> None:
    """Drop connections and credentials; the next use looks for credentials again."""
    _client.cache_clear()
    _file_system.cache_clear()


def inner_path(path: str) -> str:
    """Return BUCKET/KEY of a gs:// address. Raises: ConfigError without a bucket."""
    inner = path.partition("://")[2].strip("/")
    if not inner:
        raise ConfigError(f"{path}: no bucket in this address", remedy="give gs://BUCKET/FOLDER")
    return inner


def find_credentials() -> Any | None:
    """Return the application default credentials, or None if there are none, or an emulator is set.

    Raises: ConfigError if GOOGLE_APPLICATION_CREDENTIALS names no credentials.
    """
    if os.environ.get(EMULATOR):
        return None
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        with _filtering, warnings.catch_warnings():
            # It warns of a user's credentials without a quota project, which storage does not need.
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

    return {name: value for protocol in _PROTOCOLS for name, value in fsspec.config.conf.get(protocol, {}).items()}


def _place() -> tuple[int, str, str]:
    """Return what connections depend on: the process, and settings of its environment."""
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
        "requests_timeout": aiohttp.ClientTimeout(
            total=_REQUEST_SECONDS, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS
        ),
    }
    if "token" not in configured():
        options["token"] = find_credentials() or "anon"
    return GCSFileSystem(**options)
