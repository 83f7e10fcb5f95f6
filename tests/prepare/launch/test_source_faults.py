"""A build that a fault of its source has stopped goes on once the source has its content again.

The fingerprint covers the content; the plan has the addresses and times of the files, which follow the source.
"""

import functools
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.shards import shard_writer
from tests import building
from tests.prepare.append.appended import stop_at_second_shard
from tests.support import seams

ROWS = [{"text": f"this is row {number} of a small table"} for number in range(150)]
CHANGES = {"max_length": 16, "shard_size": "5kB"}

# Faults that keep the content; backup programs restore files as another inode with the same times.
CHANGED_IN_PLACE: dict[str, Callable[[Path], object]] = {
    "touched": os.utime,
    "copied over": lambda path: path.write_bytes(path.read_bytes()),
    "replaced by a copy": lambda path: os.replace(shutil.copy2(path, path.with_name("copy")), path),
    "of another mode": lambda path: path.chmod(0o600),
    "in another folder of that name": lambda path: replace_the_folder(path.parent),
}
FAULTS: dict[str, Callable[[Path], object]] = {
    **CHANGED_IN_PLACE,
    "moved away": lambda path: path.rename(path.parent.parent / "away"),
    "deleted": Path.unlink,
    "changed": lambda path: path.write_bytes(b"#" + path.read_bytes()[1:]),
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "grown": lambda path: path.write_bytes(path.read_bytes() + b'{"text": "another row"}\n'),
}


def replace_the_folder(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "copy")
    shutil.rmtree(folder)
    (folder.parent / "copy").rename(folder)


def put_back(path: Path, content: bytes) -> None:
    away = path.parent.parent / "away"
    if away.exists():
        away.rename(path)
    elif not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)


def parquet(folder: Path) -> Path:
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "train.parquet", row_group_size=25)
    return folder / "train.parquet"


def two_files(folder: Path) -> Path:
    path = parquet(folder)
    shutil.copy(path, path.with_name("train-2.parquet"))
    return path


def json_lines(folder: Path) -> Path:
    return building.source(folder, train=ROWS) / "train.jsonl"


def build(path: Path, out: Path, **changes: object) -> building.Outcome:
    return building.command("build", path.parent, "--json", *building.options(out, **{**CHANGES, **changes}))


def check_complete(outcome: building.Outcome, out: Path, whole: Path) -> None:
    assert outcome.status == 0, outcome.err
    assert '"shards_kept": 0' not in outcome.out
    assert building.shard_bytes(out) == building.shard_bytes(whole)
    assert (out / "manifest.json").read_bytes() == (whole / "manifest.json").read_bytes()


def stopped(written: Callable[[Path], Path], folder: Path) -> tuple[Path, Path]:
    path, out = written(folder / "data"), folder / "out"
    with pytest.MonkeyPatch.context() as patch:
        stop_at_second_shard(patch)
        assert "stopped" in build(path, out).err
    return path, out


@functools.cache
def whole(written: Callable[[Path], Path]) -> Path:
    folder = building.new_folder()
    assert build(written(folder / "data"), folder / "out").status == 0
    return folder / "out"


@pytest.mark.parametrize("fault", [*CHANGED_IN_PLACE, "deleted"])
def test_a_stopped_build_of_ingested_rows_goes_on_after_the_fault(tmp_path: Path, fault: str) -> None:
    path, out = stopped(json_lines, tmp_path)
    content = path.read_bytes()
    FAULTS[fault](path)
    put_back(path, content)
    check_complete(build(path, out), out, whole(json_lines))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_during_a_build_ends_it_and_the_same_command_goes_on(tmp_path: Path, fault: str) -> None:
    path, out = parquet(tmp_path / "data"), tmp_path / "out"
    content, write, calls = path.read_bytes(), shard_writer.write, itertools.count(1)

    def watched(*arguments: Any, **options: Any) -> object:
        if next(calls) == 2:
            FAULTS[fault](path)
        return write(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        seams.put(patch, write_shard=watched)
        cause, remedy = build(path, out).error
    assert cause.startswith(f"{path}: ")
    assert "run the same command again" in remedy
    put_back(path, content)
    check_complete(build(path, out), out, whole(parquet))


def test_a_source_that_has_moved_is_read_from_its_new_place(tmp_path: Path) -> None:
    path, out = stopped(parquet, tmp_path)
    moved = tmp_path / "elsewhere" / path.parent.name
    moved.parent.mkdir()
    path.parent.rename(moved)
    check_complete(build(moved / path.name, out), out, whole(parquet))


@pytest.mark.slow
def test_a_plan_of_several_files_follows_them_and_worker_processes_too(tmp_path: Path) -> None:
    path, out = stopped(two_files, tmp_path)
    os.utime(path)
    check_complete(build(path, out, workers=2), out, whole(two_files))
