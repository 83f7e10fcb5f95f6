"""The parts of Flink's job server are those that its script pins."""

import shutil
from pathlib import Path

import pytest

from scripts import get_flink_job_server as script
from scripts.get_flink_job_server import NotFetchedError
from tests.support import seams


def test_a_changed_part_is_refused_before_it_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [tmp_path / "b.jar", tmp_path / "a.jar"]
    for part in parts:
        part.write_text(part.name)
    monkeypatch.setattr(shutil, "which", lambda program: program)
    seams.put(monkeypatch, flink_parts=lambda: parts)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # sha256sum a.jar b.jar | sha256sum
    monkeypatch.setattr(script, "SHA256", "f9666ef476abd67878901c213c9ef099bb191c84bf7c05aac201faaee747ca4a")
    jar = script.fetch()
    assert script.fetch() == jar, "and once more from the cache"
    parts[0].write_text("of somebody else")
    with pytest.raises(NotFetchedError, match="sha256 of the 2 jars"):
        script.fetch()
    jar.unlink()
    with pytest.raises(NotFetchedError, match="sha256 of the 2 jars"):
        script.fetch()
    assert not jar.exists()
