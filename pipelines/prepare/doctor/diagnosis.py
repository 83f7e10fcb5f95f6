"""What a doctor's check found, and how checks are made and follow each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.storage import storage_errors
from tfrecord_io.errors import OutputError
from tfrecord_io.shown import without_secrets

__all__ = ["PROBE", "Check", "HopelessError", "tried", "until_hopeless"]

# How the objects begin that checks make, in no listing and swept away by builds if a check is killed.
PROBE = f"{storage.PARTIAL}doctor-"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """`ok` is None where it cannot be told, or does not matter here. `found` and `remedy` hold no secret."""

    name: str
    ok: bool | None
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        for field in ("found", "remedy"):
            object.__setattr__(self, field, without_secrets(getattr(self, field)))


class HopelessError(Exception):
    """What comes after this check would fail for the same cause."""


def until_hopeless(found: Iterator[Check]) -> Iterator[Check]:
    """What was found counts, also if the rest cannot be looked at."""
    try:
        yield from found
    except HopelessError as error:
        yield Check(name="all else", ok=None, found=f"not tried: {error}")


def tried(name: str, attempt: Callable[[], Any] | None, *, path: str) -> Check:
    """Whether `attempt` succeeds; None is one that cannot be made."""
    if attempt is None:
        return Check(name=name, ok=None, found="not tried: there is no object to try it on")
    try:
        with storage_errors.explained(path):
            attempt()
    except OutputError as error:
        return Check(name=name, ok=False, found=error.cause, remedy=error.remedy)
    return Check(name=name, ok=True, found="allowed")
