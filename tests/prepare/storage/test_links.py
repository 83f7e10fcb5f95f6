"""Neither a dataset's author nor another writer to its folder can make us read, change or delete files elsewhere: we
follow no link in place of our own files, and open only plain files.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.prepare import storage
from pipelines.prepare.storage.local_storage import locked
from tests import building
from tests.building import REVIEWS
from tfrecord_io.errors import FormatError, OutputError


def moved_out(root: Path, name: str, *, with_link: bool = True) -> Path:
    """Replace one of the dataset's files or folders with a link, and return the link's target."""
    (own,) = root.glob(name)
    outside = root.parent / "outside" / own.name
    outside.parent.mkdir()
    own.rename(outside)
    if with_link:
        own.symlink_to(outside)
    return outside


OWN = [
    *("manifest.json", "tokenizer", "tokenizer/tokenizer.json", "index", "index/*train-00000*", ".prep", ".prep/*"),
    *(".prep/*/tokenizer", ".prep/*/source.json", ".prep/*/train", ".prep/*/train/plan.json", "dataset_info.json"),
    "*-train-00000-*",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_link_in_the_place_of_our_own_is_named_and_nothing_behind_it_is_touched(finished: Path, name: str) -> None:
    outside = moved_out(finished, name)
    (outside / "mine" if outside.is_dir() else outside).write_bytes(b"somebody's data")
    before = building.files(finished.parent)
    (link,) = (path for path in finished.rglob("*") if path.is_symlink())
    commands = [
        ("verify", finished, "--repair"),
        ("inspect", finished),
        ("trace", finished, "--split=train", "--shard=0", "--record=0"),
        ("build", REVIEWS, *building.options(finished, label_column="label", overwrite=True)),
    ]
    for arguments in commands if name in ("tokenizer", ".prep") else commands[:1]:
        cause, remedy = building.command(*arguments).error
        assert cause.startswith(f"{link}: a link, expected a file or folder of the dataset itself")
        assert "cp -rL" in remedy
    assert building.files(finished.parent) == before


@pytest.mark.slow
def test_the_folder_itself_may_be_a_link_and_so_may_what_leads_to_it(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "parent").symlink_to(tmp_path)
    (tmp_path / "out").symlink_to("finished")
    root = tmp_path / "parent" / "out"
    before = building.files(finished)
    shutil.rmtree(finished / "tokenizer")
    next(finished.glob("*-train-00000-*")).unlink()
    assert building.command("verify", root, "--repair").status == 0
    assert building.files(finished) == before
    assert building.command("build", REVIEWS, *building.options(root, label_column="label")).status == 0


def test_what_is_not_our_own_may_be_a_link(finished: Path) -> None:
    (finished / "README.md").symlink_to("/nowhere")
    assert building.command("verify", finished).status == 0


# Another user may put a link there after the first look. Below the folder that is ours none is followed at any time.

CHANGES: dict[str, Callable[[str, str], None]] = {
    "write": lambda path, root: storage.write_bytes(path, b"x", inside=root),
    "delete": lambda path, root: storage.delete(path, inside=root),
    "sweep": lambda path, root: storage.sweep(os.path.dirname(path), inside=root, below=True),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
@pytest.mark.parametrize("link", ["a", "a/b"])
def test_a_folder_that_became_a_link_is_not_followed(tmp_path: Path, change: str, link: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "a", outside / "b"):
        folder.mkdir(parents=True)
    for name in (f"{storage.PARTIAL}1", f"b/{storage.PARTIAL}1", "b/file", "file"):
        (outside / name).write_bytes(b"theirs")
    if link == "a":
        (root / "a").rmdir()
    (root / link).symlink_to(outside if link == "a" else outside / "b")
    before = building.files(outside)
    with pytest.raises(OutputError, match=f"root/{link}: a link"):
        CHANGES[change](str(root / "a" / "b" / "file"), str(root))
    assert building.files(outside) == before


def test_deleting_a_folder_deletes_links_and_not_what_they_lead_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"theirs")
    (tmp_path / "root" / "own" / "deep").mkdir(parents=True)
    for name in ("own/folder", "own/deep/folder", "link"):
        (tmp_path / "root" / name).symlink_to(outside)
    (tmp_path / "root" / "own" / "file").symlink_to(outside / "file")
    for name in ("own", "link"):
        storage.delete(str(tmp_path / "root" / name), inside=str(tmp_path / "root"))
    assert list((tmp_path / "root").iterdir()) == []
    assert building.files(outside) == {"file": b"theirs"}


def test_a_file_is_replaced_and_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "own").symlink_to("theirs")
    storage.write_bytes(str(tmp_path / "own"), b"mine", inside=str(tmp_path))
    assert building.files(tmp_path) == {"own": b"mine", "theirs": b"theirs"}
    assert not (tmp_path / "own").is_symlink()


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_a_lock_that_is_another_file_is_left_alone(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / ".prep").mkdir()
    make(tmp_path / "theirs", tmp_path / ".prep" / "lock")
    with pytest.raises(OutputError, match=r"\.prep/lock: a link"), locked(str(tmp_path)):
        pass
    assert (tmp_path / "theirs").read_bytes() == b"theirs"


def test_a_work_folder_that_is_a_link_holds_no_lock(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / ".prep").symlink_to("theirs")
    with pytest.raises(OutputError, match=r"\.prep: a link"), locked(str(tmp_path)):
        pass
    assert list((tmp_path / "theirs").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("manifest.json", ("inspect",), "a pipe or a device, expected a file"),
        ("*-train-00000-*", ("inspect",), "0 bytes, expected "),
        (".prep/*/source.json", ("trace", "--split=train", "--shard=0", "--record=0"), "a pipe or a device, expected"),
    ],
)
def test_a_pipe_does_not_keep_us_waiting(finished: Path, name: str, arguments: tuple[str, ...], message: str) -> None:
    (path,) = finished.glob(name)
    path.unlink()
    os.mkfifo(path)
    cause, _ = building.command(*arguments, finished).error
    assert cause.startswith(f"{path}: {message}")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="sparse: more than 268,435,456 bytes"):
        storage.read_bytes(str(tmp_path / "sparse"))
    with pytest.raises(FormatError, match="more than 10 bytes"):
        storage.read_bytes(str(tmp_path / "sparse"), most_bytes=10)
