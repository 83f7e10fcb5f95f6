"""Where JAX keeps compiled programs: native code, which no model folder may bring along."""

import logging
from pathlib import Path

import pytest

from pipelines.train.on_jax import engine


def test_they_lie_in_the_users_own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = engine._own_cache()
    assert folder == str(tmp_path / "prep-tfrecords" / "jax")
    assert Path(folder).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("planted", ["others", "link", "file"])
def test_none_are_kept_where_others_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, planted: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "prep-tfrecords" / "jax"
    folder.parent.mkdir()
    if planted == "others":
        folder.mkdir()
        folder.chmod(0o777)
    elif planted == "link":
        (tmp_path / "theirs").mkdir()
        folder.symlink_to(tmp_path / "theirs")
    else:
        folder.touch()
    with caplog.at_level(logging.WARNING):
        assert engine._own_cache() is None
    assert "compiled programs are not kept" in caplog.text
