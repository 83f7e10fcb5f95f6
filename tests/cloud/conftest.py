"""The Google Cloud Storage of these tests: one emulator for all of them, which is what gs:// means while they run."""

from __future__ import annotations

from collections.abc import Iterator

import fsspec
import pytest

from tests.cloud import emulator
from tests.cloud.emulator import Gcs


@pytest.fixture(scope="package")
def gcs() -> Iterator[Gcs]:
    """`gcs.bucket()` for a fresh bucket; gs:// in this process too is the emulator."""
    with emulator.running() as gcs, pytest.MonkeyPatch.context() as environment:
        for name in ("STORAGE_EMULATOR_HOST", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"):
            environment.setenv(name, gcs.environment()[name])
        forget_file_systems()
        yield gcs
    forget_file_systems()


def forget_file_systems() -> None:
    """fsspec keeps each file system it has opened, with the endpoint that the environment named at that time."""
    fsspec.get_filesystem_class("gs").clear_instance_cache()
