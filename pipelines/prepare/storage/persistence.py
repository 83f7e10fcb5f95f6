"""Retry transient errors, such as of an overloaded service or a lost connection, for three minutes, and log it.

Pauses grow, and are random, so that a thousand workers do not retry at the same moment. google-cloud-storage retries
its requests itself, with the same limits.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pipelines.prepare.storage import storage_errors
from tfrecord_io.shown import without_secrets

__all__ = ["library_retry", "retry_transient"]

Result = TypeVar("Result")

_PATIENCE_SECONDS = 180.0
_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 32.0

_log = logging.getLogger(__name__)


def retry_transient(
    attempt: Callable[[], Result],
    *,
    path: str,
    passes: Callable[[BaseException], bool] = storage_errors.is_transient,
) -> Result:
    """Return `attempt()`, retried while `passes` is true of its error, for three minutes from the first error.

    Raises: its last error.
    """
    give_up = None
    for failures in itertools.count():
        pause = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2**failures) * random.uniform(0.5, 1)
        try:
            return attempt()
        except Exception as error:
            give_up = give_up or time.monotonic() + _PATIENCE_SECONDS
            if not passes(error) or time.monotonic() + pause > give_up:
                raise
            _tell(path, error)
        time.sleep(pause)
    raise AssertionError("unreachable")


def library_retry(path: str, *, passes: Callable[[BaseException], bool] = storage_errors.is_transient) -> Any:
    """Return a `retry` option for google-cloud-storage."""
    from google.api_core.retry import Retry

    return Retry(
        predicate=passes,
        initial=_FIRST_SECONDS,
        maximum=_LONGEST_SECONDS,
        timeout=_PATIENCE_SECONDS,
        on_error=lambda error: _tell(path, error),
    )


def _tell(path: str, error: BaseException) -> None:
    said = without_secrets(f"{path}: {storage_errors.words(error)}")
    _log.warning("%s; trying again for up to %.0f s", said, _PATIENCE_SECONDS)
