"""Datasets for the tests of these rooms."""

import shutil
from pathlib import Path

import pytest

from tests.building import reviews


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A private copy of a finished build."""
    return Path(shutil.copytree(reviews(), tmp_path / "finished"))
