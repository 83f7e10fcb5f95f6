"""Loss of power: a file counts only once everything it depends on would survive on the disk."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests import building

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc to tell what is synced")


class Disk:
    """Follows what would outlast a loss of power at each moment, by the rules of POSIX.

    The content of a file does once the file is synced; a name in a folder (a new file, a rename, a new folder) does
    once that folder is synced, if all folders above have lasting names too.
    """

    def __init__(self, top: Path, patch: pytest.MonkeyPatch) -> None:
        self.top = str(top)
        self.moments: list[tuple[str, set[str]]] = []
        self._synced_files: set[int] = set()
        self._lasting = {str(top)}
        self._fsync, self._replace = os.fsync, os.replace
        patch.setattr(os, "fsync", self.fsync)
        patch.setattr(os, "replace", self.replace)

    def fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            folder = os.readlink(f"/proc/self/fd/{descriptor}")
            self._lasting |= {os.path.join(folder, name) for name in os.listdir(folder)}
        else:
            self._synced_files.add(status.st_ino)

    def replace(
        self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        source, target = whole(source, src_dir_fd), whole(target, dst_dir_fd)
        if not target.startswith(self.top):  # a library's own cache, such as Numba's
            self._replace(source, target)
            return
        assert os.stat(source).st_ino in self._synced_files, f"{target} appears before its content is on the disk"
        self.moments.append((target, {path for path in self._lasting if self.would_be_found(path)}))
        self._replace(source, target)
        self._lasting.discard(target)

    def would_be_found(self, path: str) -> bool:
        while path != self.top:
            if path not in self._lasting:
                return False
            path = os.path.dirname(path)
        return True

    def when(self, name: str) -> dict[str, set[str]]:
        return {target: synced for target, synced in self.moments if name in os.path.basename(target)}


def whole(path: Any, folder: int | None) -> str:
    return os.fspath(path) if folder is None else os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)


@pytest.mark.slow
def test_whatever_appears_what_it_counts_on_would_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": None if row % 9 == 0 else f"this is row {row}"} for row in range(200)]
    data = building.source(tmp_path / "data", train=rows)
    disk, output = Disk(tmp_path, monkeypatch), tmp_path / "deep" / "out"
    options = building.options(output, max_error_rate=0.5, shard_size="10kB")
    assert building.command("build", data, *options).status == 0

    (plan,) = output.glob(".prep/*/train/plan.json")
    for synced in disk.when(".tfrecord").values():
        assert {str(plan), str(plan.parents[1] / "job.json")} <= synced
    receipts = disk.when("receipt-")
    assert len(receipts) > 2
    for path, synced in receipts.items():
        number = os.path.basename(path).split("-")[1]
        (shard,) = output.glob(f"*-{number}-of-*")
        wanted = {str(shard), f"{output}/index/{shard.name}.offsets", f"{output}/rejected/train-{number}.jsonl"}
        assert wanted <= synced, wanted - synced
    (synced,) = disk.when("manifest.json").values()
    every = {str(path) for path in output.rglob("*") if path.is_file()} - {str(output / "manifest.json")}
    assert every <= synced, every - synced
