"""A build that a fault of its source has stopped goes on once the source has its content again.

The fingerprint covers the content; the plan has the addresses and times of the files, which follow the source.
"""

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.shards import shard_writer
from tests import building
from tests.prepare.append.appended import stop_at_second_shard
from tests.support import seams

ROWS = [{"text": f"this is row {number} of a small table"} for number in range(150)]
CHANGES = {"max_length": 16, "shard_size": "5kB"}

Fault = Callable[[Path], Callable[[], object]]


def touch(path: Path) -> Callable[[], object]:
    os.utime(path)
    return lambda: None


def copy_over(path: Path) -> Callable[[], object]:
    path.write_bytes(path.read_bytes())
    return lambda: None


def replace_by_a_copy(path: Path) -> Callable[[], object]:
    """Another inode with the same times, as backup programs restore it."""
    shutil.copy2(path, path.with_name("copy"))
    os.replace(path.with_name("copy"), path)
    return lambda: None


def change_owner_or_mode(path: Path) -> Callable[[], object]:
    path.chmod(0o600)
    return lambda: None


def move_away(path: Path) -> Callable[[], object]:
    away = path.parent.parent / "away"
    path.rename(away)
    return lambda: away.rename(path)


def delete(path: Path) -> Callable[[], object]:
    content = path.read_bytes()
    path.unlink()
    return lambda: path.write_bytes(content)


def change(path: Path) -> Callable[[], object]:
    content = path.read_bytes()
    path.write_bytes(b"#" + content[1:])
    return lambda: path.write_bytes(content)


def truncate(path: Path) -> Callable[[], object]:
    content = path.read_bytes()
    os.truncate(path, len(content) // 2)
    return lambda: path.write_bytes(content)


def grow(path: Path) -> Callable[[], object]:
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'{"text": "another row"}\n')
    return lambda: os.truncate(path, size)


def replace_the_folder(path: Path) -> Callable[[], object]:
    shutil.copytree(path.parent, path.parent.parent / "copy")
    shutil.rmtree(path.parent)
    (path.parent.parent / "copy").rename(path.parent)
    return lambda: None


CHANGED_IN_PLACE = [touch, copy_over, replace_by_a_copy, change_owner_or_mode, replace_the_folder]
FAULTS: list[Fault] = [*CHANGED_IN_PLACE, move_away, delete, change, truncate, grow]


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


@contextlib.contextmanager
def fault_at_second_shard(fault: Fault, path: Path) -> Iterator[list[Callable[[], object]]]:
    """The source has the fault when the second shard is made. Gives the function that puts it back."""
    write, back = shard_writer.write, list[Callable[[], object]]()
    calls: list[None] = []

    def watched(*arguments: object, **options: object) -> object:
        calls.append(None)
        if len(calls) == 2:
            back.append(fault(path))
        return write(*arguments, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        seams.put(patch, write_shard=watched)
        yield back


def build(path: Path, out: Path, **changes: object) -> building.Outcome:
    return building.command("build", path.parent, "--json", *building.options(out, **{**CHANGES, **changes}))


def check_complete(outcome: building.Outcome, out: Path, whole: Path) -> None:
    assert outcome.status == 0, outcome.err
    assert '"shards_kept": 0' not in outcome.out
    assert building.shard_bytes(out) == building.shard_bytes(whole)
    assert (out / "manifest.json").read_bytes() == (whole / "manifest.json").read_bytes()


def stopped(written: Callable[[Path], Path], folder: Path) -> tuple[Path, Path]:
    """The source and the output of a build that was stopped."""
    path, out = written(folder / "data"), folder / "out"
    with pytest.MonkeyPatch.context() as patch:
        stop_at_second_shard(patch)
        assert "stopped" in build(path, out).err
    return path, out


@functools.cache
def whole(written: Callable[[Path], Path]) -> Path:
    """A build that nothing stopped."""
    folder = building.new_folder()
    assert build(written(folder / "data"), folder / "out").status == 0
    return folder / "out"


@pytest.mark.parametrize("written", [parquet, json_lines], ids=lambda function: function.__name__)
@pytest.mark.parametrize("fault", [*CHANGED_IN_PLACE, delete], ids=lambda function: function.__name__)
def test_a_stopped_build_goes_on_after_the_fault(tmp_path: Path, fault: Fault, written: Callable[[Path], Path]) -> None:
    path, out = stopped(written, tmp_path)
    fault(path)()
    check_complete(build(path, out), out, whole(written))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda function: function.__name__)
def test_a_fault_during_a_build_ends_it_and_the_same_command_goes_on(tmp_path: Path, fault: Fault) -> None:
    path, out = parquet(tmp_path / "data"), tmp_path / "out"
    with fault_at_second_shard(fault, path) as back:
        cause, remedy = build(path, out).error
    assert cause.startswith(f"{path}: ")
    assert "run the same command again" in remedy
    back[0]()
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
