"""Any row by number equals the written row in every client, and errors name the place of damage."""

import concurrent.futures
import contextlib
import functools
import pathlib
import pickle
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.support import frames, seams
from tests.support.imported import imported_by
from tests.tfrecord_io.conftest import CONCAT_SCHEMA, LENGTH, PAD_SCHEMA, WriteDataset, claim_rows, pad_rows, pad_shards
from tfrecord_io import random_access, records
from tfrecord_io.errors import CorruptRecordError, ReaderError
from tfrecord_io.random_access import Rows, storage

SIZES = (40, 1, 17)


@pytest.fixture(scope="module")
def root(write_dataset: WriteDataset) -> pathlib.Path:
    return write_dataset({"train": pad_shards(*SIZES), "test": pad_shards(3)})


@pytest.fixture
def rows(root: pathlib.Path) -> Rows:
    return random_access.open(root)["train"]


def assert_rows(columns: dict[str, np.ndarray], numbers: Any) -> None:
    expected = pad_rows(sum(SIZES))
    assert list(columns) == list(PAD_SCHEMA.names)
    for name, values in columns.items():
        assert values.dtype == np.int64
        np.testing.assert_array_equal(values, expected[name][numbers])


def test_every_row_is_the_one_that_was_written(rows: Rows) -> None:
    assert len(rows) == sum(SIZES)
    for number in range(-len(rows), len(rows)):
        assert_rows(rows[number], number)
    assert_rows(rows.batch([-2, 0]), [-2, 0])
    for index in (58, -59, 10**30):
        with pytest.raises(IndexError, match="'train', 58 rows"):
            rows[index]


def test_slices_and_batches_give_stacked_rows_in_the_order_of_their_indices(rows: Rows) -> None:
    for where in (slice(None), slice(10, 45), slice(-3, None), slice(50, 5, -7), slice(3, 3)):
        assert_rows(rows[where], np.arange(sum(SIZES))[where])
    numbers = np.random.default_rng(0).integers(0, len(rows), 200)
    assert_rows(rows.batch(numbers), numbers)
    assert_rows(rows.batch([7, np.int32(41), 7]), [7, 41, 7])


def test_lists_and_iterations_have_what_single_rows_are(rows: Rows) -> None:
    single = rows.__getitems__([50, 2, 2])
    for row, number in zip(single, [50, 2, 2], strict=True):
        assert {name: values.shape for name, values in row.items()} == {n: v.shape for n, v in rows[2].items()}
        assert_rows(row, number)
    assert rows.__getitems__([]) == []
    assert [int(row["row"]) for row in rows] == list(range(len(rows)))


@pytest.mark.parametrize("indices", [[0.5], np.zeros(2), np.zeros((2, 2), np.int64), ["1"]])
def test_what_is_no_list_of_integers_is_refused(rows: Rows, indices: Any) -> None:
    with pytest.raises((ReaderError, TypeError), match="integer"):
        rows.batch(indices)


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"index": False}])
def test_shards_without_an_index_are_read_all_the_same(write_dataset: WriteDataset, options: dict[str, Any]) -> None:
    rows = random_access.open(write_dataset({"train": pad_shards(*SIZES)}, **options))["train"]
    assert_rows(rows[41], 41)
    assert_rows(rows.batch([57, 0, 39]), [57, 0, 39])


def test_an_address_is_read_through_fsspec(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    ranges_of_calls: list[int] = []

    def counted(self: Any, paths: list[str], *rest: Any, **more: Any) -> Any:
        ranges_of_calls.append(len(paths))
        return ranges(self, paths, *rest, **more)

    memory = fsspec.filesystem("memory")
    memory.put(f"{root}/", "/random_access/data", recursive=True)
    try:
        rows = random_access.open("memory://random_access/data")["train"]
        ranges = type(memory).cat_ranges
        monkeypatch.setattr(type(memory), "cat_ranges", counted)
        numbers = [57, 3, 39, 20, 3]
        assert_rows(rows.batch(numbers), numbers)
        assert ranges_of_calls == [2], "neighbours together: one range of each of two shards, in one call"
        assert_rows(rows[12], 12)
        memory.pipe("/random_access/data/tiny-train-00000-of-00003.tfrecord", b"cut")
        with pytest.raises(CorruptRecordError, match=r"memory://random_access/data/tiny-train-00000.*cut off"):
            rows[12]
    finally:
        memory.rm("/random_access", recursive=True)


def test_rows_can_be_pickled_and_say_which_they_are(rows: Rows, root: pathlib.Path) -> None:
    rows[0]
    copied = pickle.loads(pickle.dumps(rows))
    assert_rows(copied.batch([5, 41]), [5, 41])
    assert repr(copied) == repr(rows) == f"Rows({str(root)!r}, 'train', 58 rows, {'f' * 12})"


@pytest.mark.slow
def test_threads_read_at_the_same_time(rows: Rows) -> None:
    def read(seed: int) -> None:
        numbers = np.random.default_rng(seed).integers(0, len(rows), 30)
        for _ in range(20):
            assert_rows(rows.batch(numbers), numbers)
            assert_rows(rows[int(numbers[0])], numbers[0])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


def test_many_shards_take_few_open_files(write_dataset: WriteDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, open_files=3)
    root = write_dataset({"train": pad_shards(*[2] * 20)})
    rows = random_access.open(root)["train"]
    before = len(list(pathlib.Path("/proc/self/fd").iterdir()))
    numbers = [int(rows[number]["row"]) for number in (*range(40), *range(40))]
    assert numbers == [*range(40), *range(40)]
    assert len(list(pathlib.Path("/proc/self/fd").iterdir())) <= before + 3


READING = """
import os, sys
for name in ("google_crc32c", "fsspec"):
    sys.modules[name] = None
from tfrecord_io import objectives, random_access
rows = random_access.open(sys.argv[1])["train"]
assert int(rows[41]["row"]) == 41
inputs, labels, weights = objectives.masked_lm().bind(rows.manifest)(rows[10:20])
child = os.fork()
if not child:
    os._exit(0 if [int(row["row"]) for row in rows.__getitems__([3, 50])] == [3, 50] else 1)
assert int(rows[50]["row"]) == 50
assert os.waitpid(child, 0)[1] == 0, "a forked process reads on, too"
"""


@pytest.mark.slow
def test_reading_needs_numpy_and_numba_and_nothing_else(root: pathlib.Path) -> None:
    modules = imported_by(READING, root)
    assert {"numpy", "numba"} <= modules
    assert not modules & {"tensorflow", "keras", "pyarrow", "apache_beam", "datasets", "transformers", "pipelines"}


SHARD = "tiny-train-00000-of-00003.tfrecord"
INDEX = f"index/{SHARD}.offsets"
HUGE = struct.pack("<Q", 2**63)
HUGE += struct.pack("<I", records.masked_crc32c(HUGE))


class TestDamage:
    @pytest.fixture
    def root(self, write_dataset: WriteDataset) -> pathlib.Path:
        return write_dataset({"train": pad_shards(*SIZES)})

    def shard(self, root: pathlib.Path, number: int = 0) -> pathlib.Path:
        return root / f"tiny-train-{number:05d}-of-00003.tfrecord"

    def test_a_changed_byte_names_shard_record_and_remedy(self, root: pathlib.Path) -> None:
        rows, path = random_access.open(root)["train"], self.shard(root)
        content = bytearray(path.read_bytes())
        start = int(_offsets(bytes(content))[20])
        content[start + 30] ^= 1
        path.write_bytes(content)
        with pytest.raises(CorruptRecordError, match=rf"{path}, record 20 at byte .*: data crc") as caught:
            rows.batch([3, 20, 4])
        assert f"prep-tfrecords verify {root} --repair" in caught.value.remedy
        assert_rows(rows[19], 19)
        assert_rows(rows[21], 21)

    def test_no_byte_of_a_record_can_change_unseen(self, root: pathlib.Path) -> None:
        rows, path = random_access.open(root)["train"], self.shard(root, 2)
        content = path.read_bytes()
        offsets = _offsets(content)
        for at in range(int(offsets[2]), int(offsets[3])):
            path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
            with pytest.raises(CorruptRecordError, match="record 2"):
                rows[sum(SIZES[:2]) + 2]

    def test_without_checks_any_bytes_give_a_row_or_an_error(self, root: pathlib.Path) -> None:
        path = self.shard(root)
        content = path.read_bytes()
        offsets = _offsets(content)
        last = int(offsets[1]) - 5  # the last value of record 0
        path.write_bytes(content[:last] + bytes([content[last] ^ 1]) + content[last + 1 :])
        random_access.open(root, check=False)["train"][0]
        with pytest.raises(CorruptRecordError, match="record 0"):
            random_access.open(root)["train"][0]
        rng = np.random.default_rng(0)
        for _ in range(200):
            changed = bytearray(content)
            for at in rng.integers(offsets[1], offsets[2], 3).tolist():
                changed[at] = int(rng.integers(256))
            path.write_bytes(changed)
            rows = random_access.open(root, check=False)["train"]
            with contextlib.suppress(CorruptRecordError):
                assert rows[1]["input_ids"].shape == (LENGTH,)

    @pytest.mark.parametrize(
        ("file", "change", "row", "words"),
        [
            (SHARD, lambda old: old[:-1], 39, "ends before byte .* cut off"),
            (SHARD, None, 0, "cannot be read"),
            (INDEX, None, 0, "cannot be read"),
            (INDEX, lambda old: b"", 0, "0 bytes, expected 24 for 40 examples"),
            (INDEX, lambda old: old[:16], 0, "16 bytes, expected 24 for 40 examples"),
            (INDEX, lambda old: old + bytes(8), 0, "25 bytes, expected 24 for 40 examples"),
            # Another shard's.
            (INDEX, lambda old: (np.frombuffer(old, "<u8") + np.arange(3, dtype="<u8")).tobytes(), 16, "record 16"),
            # With its crc, and the data's: only the end of the group says that the first record's size is wrong.
            (SHARD, lambda old: HUGE + old[12:], 0, "record 0 at byte 0: 9,223,372,036,854,775,808 bytes"),
        ],
    )
    def test_changed_files_are_named(self, root: pathlib.Path, file: str, change: Any, row: int, words: str) -> None:
        rows, path = random_access.open(root)["train"], root / file
        content = path.read_bytes()
        path.unlink()
        if change:
            path.write_bytes(change(content))
        for read in (lambda: rows[row], lambda: rows.batch([row, 57])):
            with pytest.raises((CorruptRecordError, ReaderError), match=words) as caught:
                read()
            assert path.name.removesuffix(".offsets") in caught.value.cause

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda old: old[:-1], ": ends before byte"),
            (lambda old: old + b"x", ": bytes follow the gzip data"),
            (lambda old: old[:50] + bytes([old[50] ^ 0xFF]) + old[51:], ".*gzip"),
        ],
    )
    def test_a_compressed_shard_that_is_damaged(self, write_dataset: WriteDataset, change: Any, words: str) -> None:
        root = write_dataset({"train": pad_shards(40)}, compression="gzip")
        rows, path = random_access.open(root)["train"], root / "tiny-train-00000-of-00001.tfrecord.gz"
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(CorruptRecordError, match=rf"{path}{words}"):
            rows[0]


def _offsets(content: bytes) -> np.ndarray:
    payloads = frames.messages_of(content, place="here")
    return payloads.offsets + np.arange(len(payloads.offsets)) * records.FRAME_BYTES


def test_splits_are_those_of_the_manifest(root: pathlib.Path) -> None:
    data = random_access.open(root)
    assert {name: len(rows) for name, rows in data.items()} == {"train": 58, "test": 3}
    with pytest.raises(ReaderError, match="no split 'dev', expected one of"):
        data["dev"]
    with pytest.raises(ReaderError, match="no such file, expected the manifest"):
        random_access.open("memory://nothing/here")


def test_datasets_that_do_not_go_together_are_not_mixed(write_dataset: WriteDataset) -> None:
    rows = random_access.open(write_dataset({"train": [pad_rows(30)]}))["train"]
    columns = {"input_ids": np.ones((2, LENGTH), np.int64), "num_tokens": np.full(2, 8)}
    other = random_access.open(write_dataset({"train": [columns]}, schema=CONCAT_SCHEMA))["train"]
    with pytest.raises(ReaderError, match="but missing in dataset"):
        random_access.global_batches({"w": rows, "other": other}, global_batch_size=4)
    with pytest.raises(ReaderError, match="expected at least one row in each"):
        random_access.global_batches({}, global_batch_size=4)
    with pytest.raises(ReaderError, match="weights and temperature are given together"):
        random_access.global_batches({"w": rows}, weights={"w": 1}, temperature=2.0, global_batch_size=4)


def test_the_last_decompressed_shards_are_kept(write_dataset: WriteDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_dataset({"train": pad_shards(*SIZES)}, compression="gzip")
    read: list[str] = []
    opened = type(storage.at(root)).read

    def counted(self: Any, name: str, *, most: int) -> bytes:
        read.append(name)
        return opened(self, name, most=most)

    rows = random_access.open(root)["train"]
    monkeypatch.setattr(type(storage.at(root)), "read", counted)
    for number in (0, 40, 0, 40, 41, 41):
        assert_rows(rows[number], number)
    assert len(read) == 3


def test_a_compressed_shard_of_more_records_than_its_manifest_says(write_dataset: WriteDataset) -> None:
    root = write_dataset({"train": pad_shards(40)}, compression="gzip")
    claim_rows(root, 39)
    with pytest.raises(CorruptRecordError, match="more records, expected 39 according to the manifest"):
        random_access.open(root)["train"][0]


@pytest.mark.parametrize("order", [range(40), [39, 0, 20, 19, 39, 3]])
def test_of_an_unpacked_shard_only_the_newest_messages_are_kept(
    write_dataset: WriteDataset, monkeypatch: pytest.MonkeyPatch, order: Sequence[int]
) -> None:
    root = write_dataset({"train": pad_shards(40)}, compression="gzip")
    seams.put(monkeypatch, read_payloads=functools.partial(records.read_payloads, batch_bytes=512), unpacked_bytes=1024)
    rows = random_access.open(root)["train"]
    for number in order:
        assert_rows(rows[number], number)
        kept = rows._whole(0)._kept
        assert sum(len(payloads.data) for _, payloads in kept) <= 1024
        assert kept[0][0] <= number < kept[-1][0] + len(kept[-1][1])
