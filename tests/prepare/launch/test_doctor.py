"""The doctor reports problems of a folder before a build does, and leaves nothing in it."""

import errno
import os
import shutil
import types
from pathlib import Path

import fsspec
import pytest

from pipelines.prepare.launch import doctor
from pipelines.prepare.storage.gcs_account import Check
from tests.support import seams
from tfrecord_io.errors import ConfigError

OPERATIONS = ("write", "read", "list", "delete")


def checks_of(output: object) -> dict[str, Check]:
    checks = list(doctor.diagnose(str(output)))
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


def verdicts(checks: dict[str, Check]) -> dict[str, bool | None]:
    return {name: check.ok for name, check in checks.items()}


def test_a_good_folder_passes_and_stays_as_it_was(tmp_path: Path) -> None:
    assert verdicts(checks_of(tmp_path)) == dict.fromkeys(("folder", *OPERATIONS, "space"), True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    checks = checks_of(tmp_path / "new" / "out")
    assert all(verdicts(checks).values())
    assert checks["folder"].found == f"will be made in {tmp_path}"
    assert list(tmp_path.iterdir()) == []


def test_below_a_file_there_can_be_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for output in ("file", "file/out"):
        checks = checks_of(tmp_path / output)
        assert verdicts(checks) == {"folder": False}
        assert checks["folder"].remedy == "choose another --output"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_says_why(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", seams.raising(OSError(number, os.strerror(number))))
    checks = checks_of(tmp_path)
    assert verdicts(checks) == {"folder": True, "write": False, "space": True}
    assert os.strerror(number) in checks["write"].found
    assert checks["write"].remedy
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=10_000_000))
    space = checks_of(tmp_path)["space"]
    assert (space.ok, space.found) == (False, "0.0 GB free")
    assert "free some space" in space.remedy


def test_any_other_store_is_written_read_listed_and_deleted() -> None:
    assert verdicts(checks_of("memory://doctor/out")) == dict.fromkeys(OPERATIONS, True)
    assert not any("doctor/out/" in name for name in fsspec.filesystem("memory").store)


def test_an_address_that_nothing_can_open_is_a_wrong_option() -> None:
    with pytest.raises(ConfigError, match="cannot be opened"):
        list(doctor.diagnose("nothing://bucket/out"))
