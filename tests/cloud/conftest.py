"""The Google Cloud Storage of these tests: one emulator for all of them, which is what gs:// means while they run."""

import asyncio
import types
from collections.abc import Iterator

import fsspec
import pytest
from gcsfs import retry

from pipelines.prepare.storage import gcs as connection
from tests.cloud import emulator, proxy
from tests.cloud.emulator import Gcs
from tests.cloud.proxy import Proxy
from tests.support import seams


@pytest.fixture(scope="package")
def gcs() -> Iterator[Gcs]:
    """`gcs.bucket()` for a fresh bucket; gs:// in this process too is the emulator."""
    with emulator.running() as gcs, pytest.MonkeyPatch.context() as environment:
        for name in ("STORAGE_EMULATOR_HOST", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"):
            environment.setenv(name, gcs.environment()[name])
        forget_file_systems()
        yield gcs
    forget_file_systems()


@pytest.fixture
def bucket(gcs: Gcs) -> str:
    """A fresh bucket."""
    return gcs.bucket()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between retries."""
    seams.put(monkeypatch, first_retry_seconds=0.01, longest_retry_seconds=0.04)
    monkeypatch.setattr(retry, "asyncio", types.SimpleNamespace(sleep=lambda wait: asyncio.sleep(0.001 * wait)))


@pytest.fixture
def machine(gcs: Gcs, short_pauses: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """gs:// is an answering machine before the emulator."""
    with proxy.running(gcs.endpoint) as answers, monkeypatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", answers.endpoint)
        forget_file_systems()
        yield answers
    forget_file_systems()


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if there were no emulator; nothing is sent."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    connection.forget()
    yield
    connection.forget()


def forget_file_systems() -> None:
    fsspec.get_filesystem_class("gs").clear_instance_cache()
