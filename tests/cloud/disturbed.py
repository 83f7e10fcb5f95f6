"""gs:// as tests disturb it: behind a proxy that fails at times, and with short pauses before a request is repeated."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import Iterator

import pytest
from gcsfs import retry

from pipelines.prepare.storage import storage_errors
from tests.cloud import proxy
from tests.cloud.emulator import Gcs
from tests.cloud.faults import Faults
from tests.cloud.proxy import Proxy


def shorten_pauses(monkeypatch: pytest.MonkeyPatch, *, ours: float, theirs: float) -> None:
    """Our first pause takes `ours` seconds at most, and the longest four times as long; those of gcsfs take `theirs`
    times what they would take.
    """
    monkeypatch.setattr(storage_errors, "_FIRST_SECONDS", ours)
    monkeypatch.setattr(storage_errors, "_LONGEST_SECONDS", 4 * ours)
    monkeypatch.setattr(retry, "asyncio", types.SimpleNamespace(sleep=lambda wait: asyncio.sleep(theirs * wait)))


@contextlib.contextmanager
def through(gcs: Gcs, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """gs:// is the emulator behind a proxy."""
    with proxy.running(gcs.endpoint, faults=faults) as running, monkeypatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", running.endpoint)
        yield running
