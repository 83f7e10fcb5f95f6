"""Trying again, for what passes by itself: a service that is overloaded, a connection that was lost.

Bounded in time: from the first failure on for three minutes, with pauses that grow and are drawn at random, so that
a thousand workers do not come back all at once. Whoever waits is told.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from pipelines.prepare.storage import storage_errors
from tfrecord_io.shown import without_secrets

__all__ = ["persist"]

Result = TypeVar("Result")

_PATIENCE_SECONDS = 180.0
_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 32.0

_log = logging.getLogger(__name__)


def persist(
    attempt: Callable[[], Result],
    *,
    path: str,
    passes: Callable[[BaseException], bool] = storage_errors.is_transient,
) -> Result:
    """`attempt()`, repeated while it fails for a cause that `passes`. It must be one that can be repeated.

    Raises: what it raised last.
    """
    give_up = None
    for failures in itertools.count():
        pause = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2**failures) * random.uniform(0.5, 1)
        try:
            return attempt()
        except Exception as error:
            now = time.monotonic()
            give_up = now + _PATIENCE_SECONDS if give_up is None else give_up
            if not passes(error) or now + pause > give_up:
                raise
            said = without_secrets(f"{path}: {str(error) or type(error).__name__}")
            _log.warning("%s; trying again for up to %.0f s", said, give_up - now)
        time.sleep(pause)
    raise AssertionError("unreachable")
