"""What a packager gets: the whole project, with its tests, documents and examples."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.building import REPOSITORY

# For version control and the service that runs scripts/check; nobody builds or tests with them.
LEFT_OUT = {".ci/run", ".gitignore"}
# What setuptools writes into every sdist.
METADATA = ("PKG-INFO", "setup.cfg", "prep_tfrecords.egg-info/")


def sources() -> set[str]:
    """The files of this checkout, or of the unpacked sdist that this is."""
    if (REPOSITORY / "PKG-INFO").exists():
        listed = (REPOSITORY / "prep_tfrecords.egg-info" / "SOURCES.txt").read_text(encoding="utf-8")
    else:
        command = ["git", "ls-files"]
        listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    return {name for name in listed.splitlines() if not name.startswith(METADATA)}


@pytest.mark.slow
def test_an_sdist_is_all_that_is_under_version_control(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in sources():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, checkout / name)
    (checkout / "tests" / "__pycache__").mkdir()
    (checkout / "tests" / "__pycache__" / "conftest.pyc").touch()

    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(tmp_path / "dist")]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True, timeout=60)

    [sdist] = (tmp_path / "dist").iterdir()
    with tarfile.open(sdist) as packed:
        names = {member.name.partition("/")[2] for member in packed if member.isfile()}
    assert {name for name in names if not name.startswith(METADATA)} == sources() - LEFT_OUT
