"""Rows by number from a bucket: the rows of a local copy, by a few ranged requests, and damage that is named."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import building
from tests.cloud.emulator import Gcs
from tests.cloud.proxy import Proxy, refusal
from tests.support import processes
from tfrecord_io import random_access
from tfrecord_io.errors import ReaderError

# 2,048 tokens of at least two bytes: groups of 16 rows have at least 32 KB each, and gaps up to 256 KB are bridged.
LENGTH, ROWS = 2048, 320


def local() -> Path:
    return building.reviews(max_length=LENGTH, shard_size="1GB")


@pytest.fixture(scope="module")
def bucket(gcs: Gcs) -> str:
    """With the large dataset as out/, and one of several shards as small/."""
    name = gcs.bucket()
    for folder, root in (("out", local()), ("small", building.reviews())):
        for path, content in building.files(root).items():
            gcs.write(name, f"{folder}/{path}", content)
    return name


def ranges(machine: Proxy) -> list[tuple[int, int]]:
    """First and last byte of each ranged request so far, sorted, and forget all requests."""
    spans = [headers["Range"] for headers in machine.requests if "Range" in headers]
    machine.requests.clear()
    matches = [re.fullmatch(r"bytes=(\d+)-(\d+)", header) for header in spans]
    return sorted((int(match.group(1)), int(match.group(2))) for match in matches if match)


def assert_rows(columns: dict[str, np.ndarray], root: Path, numbers: Any) -> None:
    expected = building.read_rows(root, "train")
    assert set(columns) == set(expected)
    for name, values in columns.items():
        np.testing.assert_array_equal(values, expected[name][numbers])


@pytest.mark.parametrize("folder", ["out", "small"])
def test_rows_are_those_of_a_local_copy(bucket: str, folder: str) -> None:
    root = local() if folder == "out" else building.reviews()
    rows = random_access.open(f"gs://{bucket}/{folder}")["train"]
    assert len(rows) == ROWS
    numbers = np.random.default_rng(0).permutation(ROWS)
    assert_rows(rows.batch(numbers), root, numbers)
    assert_rows(rows[100:140], root, np.arange(100, 140))
    assert_rows(rows[-1], root, -1)


def test_opening_reads_the_manifest_and_lists_once(machine: Proxy, bucket: str) -> None:
    paths: list[str] = []
    machine.answer = lambda number, method, path: paths.append(path)
    random_access.open(f"gs://{bucket}/small")
    assert len(paths) <= 5, paths
    assert not [path for path in paths if "tfrecord" in path.partition("prefix=")[0]]


def test_neighbours_are_one_request_and_rows_far_apart_are_two(machine: Proxy, bucket: str) -> None:
    rows = random_access.open(f"gs://{bucket}/out")["train"]
    rows[0]  # the index is read now
    [shard] = building.read_manifest(local()).splits["train"].shards
    row_bytes = shard.num_bytes / ROWS
    assert 256_000 / row_bytes < 200, "there are rows that are further apart"
    machine.requests.clear()

    rows.batch([3, 60, 7, 20])
    [(start, last)] = ranges(machine)
    assert start == 0
    assert 60 * row_bytes < last < 70 * row_bytes, "no more than up to the group of the last row"

    rows.batch([0, ROWS - 1, 15])
    (start, last), (other_start, other_last) = ranges(machine)
    assert (start, other_last) == (0, shard.num_bytes - 1)
    assert last < 20 * row_bytes
    assert other_start > 300 * row_bytes


def test_a_batch_of_several_shards_is_a_request_for_each(machine: Proxy, bucket: str) -> None:
    shards = building.read_manifest(building.reviews()).splits["train"].shards
    rows = random_access.open(f"gs://{bucket}/small")["train"]
    rows.batch(np.arange(ROWS))
    machine.requests.clear()
    rows.batch(np.arange(ROWS))
    assert ranges(machine) == sorted((0, shard.num_bytes - 1) for shard in shards)


FORKING = """
import os, pickle, sys
from tfrecord_io import random_access
rows = random_access.open(sys.argv[1])["train"]
expected = rows[41]["input_ids"].tolist()
child = os.fork()
if not child:
    os._exit(0 if rows[41]["input_ids"].tolist() == expected else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert pickle.loads(pickle.dumps(rows))[41]["input_ids"].tolist() == expected
"""


@pytest.mark.slow
def test_a_fork_while_open_reads_on_in_both_processes(gcs: Gcs, bucket: str) -> None:
    command = [sys.executable, "-c", FORKING, f"gs://{bucket}/small"]
    ended = processes.run(command, env=gcs.environment())
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("status", [404, 416, 400, 410])
def test_a_refused_request_is_an_error_of_the_reader(machine: Proxy, bucket: str, status: int) -> None:
    """gcsfs raises its own errors for some of them, which are not OSErrors."""
    rows = random_access.open(f"gs://{bucket}/small")["train"]
    rows[0]
    machine.answer = lambda number, method, path: refusal(status, "refused")
    for read in (lambda: rows.batch([0, 5]), lambda: rows[0]):
        with pytest.raises(
            ReaderError, match=rf"small/.*tfrecord: cannot be read.*; .*verify gs://{bucket}/small --repair"
        ):
            read()
    with pytest.raises(ReaderError, match=rf"gs://{bucket}/small"):
        random_access.open(f"gs://{bucket}/small")
