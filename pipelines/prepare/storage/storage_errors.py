"""Retry transient storage errors, and explain all others.

Transient errors are logged and retried for three minutes, after random pauses of growing length.

Messages and tracebacks show no credentials.
"""

import contextlib
import errno
import importlib
import logging
import random
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from pipelines.prepare.options.addresses import STORES, bucket_of
from tfrecord_io.errors import OutputError, PrepError, SourceError
from tfrecord_io.shown import cause_without_secrets, is_web, without_secrets

Result = TypeVar("Result")
RetryIf = Callable[[BaseException], bool]

_PATIENCE_SECONDS = 180.0
_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 32.0

_log = logging.getLogger(__name__)

_AGAIN = "run the same command again to continue"
_MAY_WRITE = "choose an --output that you may write to"
_FREE = "free some space or quota, or choose an --output on another disk, and run the same command again to continue"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FREE),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _MAY_WRITE),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "choose an --output that is a folder"),
    errno.ENOENT: "choose an --output in a place where folders can be made",
    errno.ENAMETOOLONG: "choose a shorter --output or --name",
}
_TRANSIENT = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)
# Packages with their own connection errors.
_CLIENTS = ("aiohttp", "botocore", "httpx", "httpx2", "requests", "urllib3")

# Exceptions of asyncio before Python 3.11, of fsspec and of google.auth.
_NO_ANSWER = ("TimeoutError", "FSTimeoutError", "TransportError")


def store_of(path: str) -> ModuleType:
    """Import and return the storage module for a remote path."""
    return importlib.import_module(f"{__package__}.{STORES.get(path.partition('://')[0], 'object_storage')}")


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error reports, or None."""
    for owner, name in ((error, "status"), (error, "code"), (getattr(error, "response", None), "status_code")):
        if isinstance(status := getattr(owner, name, None), int) or (isinstance(status, str) and status.isdecimal()):
            return int(status)
    if type(error).__module__ == "google.auth.exceptions" and type(error).__name__ != "TransportError":
        return 401
    if type(error).__name__ == "ProxyError":
        return 502  # gcsfs raises ProxyError for status 502
    if isinstance(error, FileNotFoundError):
        return 404
    text = str(error)  # gcsfs reports some statuses only in words
    if text.startswith("Forbidden"):
        return 403
    return 400 if text.startswith("Bad Request") or "requester pays" in text else None


def is_transient(error: BaseException) -> bool:
    """Return whether the failed request may succeed later."""
    if getattr(error, "retryable", False):  # set by google.auth
        return True
    if (status := status_of(error)) is not None:
        return status in (408, 429) or 500 <= status < 600
    cause: BaseException | None = error
    for _ in range(8):  # clients wrap certificate errors in others
        if isinstance(cause, ssl.SSLCertVerificationError) or "Certificate" in type(cause).__name__:
            return False
        cause = cause and (cause.__cause__ or cause.__context__)
    kind = type(error)
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror) or kind.__name__ in _NO_ANSWER:
        return True
    if kind.__module__.partition(".")[0] in _CLIENTS and not isinstance(error, ValueError):
        return True
    return isinstance(error, OSError) and error.errno in _TRANSIENT


def retry_transient(attempt: Callable[[], Result], *, path: str, retry_if: RetryIf = is_transient) -> Result:
    """Return the result of `attempt`. For 3 minutes, log errors that `retry_if` accepts, with `path`, and try again."""
    longest, give_up = _FIRST_SECONDS, None
    while True:
        pause = longest * random.uniform(0.5, 1)
        try:
            return attempt()
        except Exception as error:
            give_up = give_up or time.monotonic() + _PATIENCE_SECONDS
            if not retry_if(error) or time.monotonic() + pause > give_up:
                raise
            _warn(path, error)
        time.sleep(pause)
        longest = min(_LONGEST_SECONDS, 2 * longest)


def library_retry(path: str, *, retry_if: RetryIf = is_transient) -> Any:
    """Return a `retry` argument for google-cloud-storage, with the limits of `retry_transient`."""
    from google.api_core.retry import Retry

    seconds = {"initial": _FIRST_SECONDS, "maximum": _LONGEST_SECONDS, "timeout": _PATIENCE_SECONDS}
    return Retry(predicate=retry_if, on_error=lambda error: _warn(path, error), **seconds)


def _warn(path: str, error: BaseException) -> None:
    cause = without_secrets(f"{path}: {message_of(error)}")
    _log.warning("%s; trying again for up to %.0f s", cause, _PATIENCE_SECONDS)


@contextlib.contextmanager
def as_output_error(path: str) -> Iterator[None]:
    """Within the context, turn errors of writing to `path` into OutputError."""
    try:
        yield
    except PrepError:
        raise
    except Exception as error:
        _raise(OutputError, path, error, done="written")


@contextlib.contextmanager
def reading(path: str, kind: type[PrepError] = OutputError) -> Iterator[None]:
    """Within the context, translate errors of reading from `path`.

    Raises: FileNotFoundError; OutputError if the bucket is missing; `kind` for all other errors.
    """
    try:
        yield
    except FileNotFoundError:
        if bucket := bucket_of(path):
            store_of(path).require_bucket(bucket)
        raise
    except PrepError:
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, path) from error
    except Exception as error:
        _raise(kind, path, error, done="read")


def _raise(kind: type[PrepError], path: str, error: Exception, *, done: str) -> NoReturn:
    if status_of(error) == 401 and bucket_of(path):
        store_of(path).forget()  # seek credentials again: a metadata server may be silent for a moment
    cause, remedy = _explanation(path, done, error)
    if kind is SourceError:
        remedy = remedy.replace(_MAY_WRITE, "read it as a user with permission")
    raise kind(f"{path}: cannot be {done}: {cause}", remedy=remedy) from cause_without_secrets(error)


def _explanation(path: str, done: str, error: Exception) -> tuple[str, str]:
    status, message = status_of(error), message_of(error)
    if bucket := bucket_of(path):
        special: tuple[str, str] | None = store_of(path).explanation(bucket, done, status, message)
        if special:
            return special
    host = urllib.parse.urlsplit(path).hostname if is_web(path) else None
    if host and status in (401, 403):
        remedy = "check that you may read this address; if it is signed, it may have expired, so get a new one"
        return f"{host} refuses access (status {status})", remedy
    if is_transient(error) or (host and status):
        service = host or "the service"
        cause = f"{service} answers with status {status}" if status else f"no connection to {service} ({message})"
        return cause, f"check the address, the network and the service, and {_AGAIN}"
    number, text = (error.errno, error.strerror) if isinstance(error, OSError) else (None, None)
    return text or message, _REMEDIES.get(number or 0, _AGAIN)


def message_of(error: BaseException) -> str:
    """Return an error's message, if possible as its service wrote it, on one line and without secrets."""
    try:
        message = str(error.response.json()["error"]["message"])  # type: ignore[attr-defined]
    except (AttributeError, KeyError, TypeError, ValueError):
        message = str(error)
    return " ".join(without_secrets(message).split()) or type(error).__name__
