"""Checks of the doctor: their results, and how they are made one after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.storage import storage_errors
from tfrecord_io.errors import OutputError
from tfrecord_io.shown import without_secrets

__all__ = ["PROBE", "Check", "StopChecksError", "attempt", "until_stopped"]

# Prefix of the objects that checks make. Listings skip such objects, and builds delete them if a check was killed.
PROBE = f"{storage.PARTIAL}doctor-"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check. `ok` is None if it cannot be known, or does not matter; `found` is the result in words.

    Secrets are removed from `found` and `remedy`.
    """

    name: str
    ok: bool | None
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        for field in ("found", "remedy"):
            object.__setattr__(self, field, without_secrets(getattr(self, field)))


class StopChecksError(Exception):
    """Raised where all further checks would fail for the same reason."""


def until_stopped(checks: Iterator[Check]) -> Iterator[Check]:
    """Yield checks until StopChecksError, then one check that says why the others were not made."""
    try:
        yield from checks
    except StopChecksError as error:
        yield Check(name="all else", ok=None, found=f"not tried: {error}")


def attempt(name: str, action: Callable[[], Any] | None, *, path: str) -> Check:
    """Check whether `action` succeeds; None for an action that has no object to try it on."""
    if action is None:
        return Check(name=name, ok=None, found="not tried: there is no object to try it on")
    try:
        with storage_errors.as_output_error(path):
            action()
    except OutputError as error:
        return Check(name=name, ok=False, found=error.cause, remedy=error.remedy)
    return Check(name=name, ok=True, found="allowed")
