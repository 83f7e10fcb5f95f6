"""The index that DALI reads: the bytes of NVIDIA's tfrecord2idx for every shard, verified and repaired as any file."""

import shutil
import struct
from pathlib import Path

import pytest

from pipelines.prepare.audit import verify
from tests import building
from tests.building import REVIEWS, command, read_manifest


def tfrecord2idx(shard: Path) -> bytes:
    """What NVIDIA's script writes (tools/tfrecord2idx of DALI): a line "offset size" for each record."""
    lines: list[str] = []
    with shard.open("rb") as stream:
        while True:
            begin = stream.tell()
            length = stream.read(8)
            if not length:
                return "".join(lines).encode()
            stream.seek(4 + struct.unpack("<q", length)[0] + 4, 1)
            lines.append(f"{begin} {stream.tell() - begin}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return shutil.copytree(building.reviews(index="dali"), tmp_path / "out")


def shards_of(root: Path) -> list[str]:
    return [shard.name for split in read_manifest(root).splits.values() for shard in split.shards]


def test_every_shard_has_the_index_that_tfrecord2idx_gives(root: Path) -> None:
    assert len(shards_of(root)) > 3
    for name in shards_of(root):
        assert (root / "index" / f"{name}.idx").read_bytes() == tfrecord2idx(root / name)


def test_rows_of_several_lengths_have_one_for_each_file() -> None:
    root = building.reviews(index="dali", max_length=None, bucket_lengths="16,32")
    for name in shards_of(root):
        assert (root / "index" / f"{name}.idx").read_bytes() == tfrecord2idx(root / name)


def test_without_the_option_there_is_none() -> None:
    assert not list(building.reviews().glob("index/*.idx"))


def test_one_that_is_damaged_or_gone_is_found_and_made_again(root: Path) -> None:
    first, second, *_ = (f"index/{name}.idx" for name in shards_of(root))
    expected = [(root / name).read_bytes() for name in (first, second)]
    (root / first).write_bytes(expected[0][:-1])
    (root / second).unlink()
    damaged = [each for each in verify.verify_files(str(root), read_manifest(root)) if each.problem]
    assert [(each.part, each.file) for each in damaged] == [("index", first), ("index", second)]
    assert [name for name, _ in verify.repair(str(root), read_manifest(root), damaged)] == [first, second]
    assert [(root / name).read_bytes() for name in (first, second)] == expected


def test_one_of_a_shard_that_is_made_again_is_made_again(root: Path) -> None:
    name = shards_of(root)[0]
    expected = (root / "index" / f"{name}.idx").read_bytes()
    (root / name).unlink()
    (root / "index" / f"{name}.idx").unlink()
    outcome = command("verify", root, "--repair")
    assert outcome.status == 0, outcome.err
    assert (root / "index" / f"{name}.idx").read_bytes() == expected


def test_a_finished_dataset_without_one_is_not_the_same(tmp_path: Path) -> None:
    root = shutil.copytree(building.reviews(), tmp_path / "out")
    options = building.options(root, label_column="label", index="dali")
    cause, remedy = command("build", REVIEWS, *options).error
    assert "index" in cause
    assert "--overwrite" in remedy
    assert command("build", REVIEWS, *options, "--overwrite").status == 0
    assert (root / f"index/{shards_of(root)[0]}.idx").exists()
    assert command("build", REVIEWS, *building.options(root, label_column="label"), "--overwrite").status == 0
    assert not list(root.glob("index/*.idx"))


def test_compressed_shards_have_none(tmp_path: Path) -> None:
    options = building.options(tmp_path / "out", index="dali", compression="gzip")
    assert "--index dali with --compression gzip" in command("build", REVIEWS, *options).error[0]
