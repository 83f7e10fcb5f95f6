"""Row ranges over several Arrow files read as ranges of one table, whatever becomes of the files meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.prepare import arrow_files
from pipelines.prepare.arrow_files import ArrowFiles, num_rows, stamps_of
from tests.prepare.arrow_writing import write
from tfrecord_io.errors import SourceError

ROWS = 60
FILE_ROWS = (0, 17, 1, 30, 0, 12)
TABLE = pa.table({"number": np.arange(ROWS), "text": [f"row {index}" * (index % 4) for index in range(ROWS)]})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ArrowFiles:
    """ROWS rows over files of FILE_ROWS rows each, some of them empty, in both formats."""
    folder = tmp_path_factory.mktemp("arrow")
    starts = np.cumsum((0, *FILE_ROWS[:-1]))
    paths = [
        write(folder / f"{index}.arrow", TABLE.slice(int(start), rows), stream=index % 2 == 0)
        for index, (start, rows) in enumerate(zip(starts, FILE_ROWS, strict=True))
    ]
    return ArrowFiles(tuple(paths))


def _read(files: ArrowFiles, segments: Sequence[tuple[int, int]]) -> list[tuple[int, dict[str, object]]]:
    return [
        (first + index, row)
        for first, batch in files.read(segments, ["text", "number"])
        for index, row in enumerate(batch.to_pylist())
    ]


@st.composite
def _ascending(draw: st.DrawFn) -> list[tuple[int, int]]:
    edges = sorted(draw(st.lists(st.integers(0, ROWS), min_size=2, max_size=12)))
    return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=False) if start < stop]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(segments=_ascending())
def test_any_ascending_segments_are_the_slices_of_the_whole_table(
    files: ArrowFiles, segments: list[tuple[int, int]]
) -> None:
    expected = [(row, TABLE.slice(row, 1).to_pylist()[0]) for start, stop in segments for row in range(start, stop)]
    assert _read(files, segments) == expected


def test_columns_come_in_the_order_asked_for(files: ArrowFiles) -> None:
    _, batch = next(files.read([(3, 5)], ["text", "number"]))
    assert batch.schema.names == ["text", "number"]


def test_no_segment_reads_no_file() -> None:
    assert list(ArrowFiles(("no such file",)).read([], ["text"])) == []


def test_files_behind_the_last_segment_are_not_opened(files: ArrowFiles) -> None:
    with_missing = ArrowFiles((*files.paths, "no such file"))
    assert len(_read(with_missing, [(ROWS - 1, ROWS)])) == 1


def test_rows_beyond_the_files_are_an_error_that_says_the_source_changed(files: ArrowFiles) -> None:
    with pytest.raises(SourceError, match=r"rows 60 to 61 were planned, but the files have only 60 rows.*--overwrite"):
        _read(files, [(50, 61)])


@pytest.mark.parametrize("keep", [0, 5, 300, -40])
@pytest.mark.parametrize("stream", [True, False])
def test_a_truncated_file_is_an_error_that_names_it(tmp_path: Path, keep: int, stream: bool) -> None:
    path = Path(write(tmp_path / "a.arrow", TABLE, stream=stream))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SourceError, match=r"a\.arrow: cannot be read as Arrow"):
        list(ArrowFiles((str(path),)).read([(0, ROWS)], ["text"]))


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone\.arrow: cannot be read as Arrow"):
        num_rows(str(tmp_path / "gone.arrow"))


_READ_ALL = """
import sys
import pyarrow.compute as pc
from pipelines.prepare import arrow_files
from pipelines.prepare.arrow_files import ArrowFiles

def resident():
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Rss:")) << 10

path, rows = sys.argv[1], int(sys.argv[2])
for _ in ArrowFiles((path,)).read([(0, 1)], ["text"]):
    pass
before, most, read = resident(), 0, 0
for _, batch in ArrowFiles((path,)).read([(0, rows)], ["text"], in_parts=True):
    read += pc.sum(pc.utf8_length(batch.column(0))).as_py()
    most = max(most, resident())
print(read, most - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("chunk", [1000, 50_000], ids=["batches", "one batch"])
def test_reading_a_file_does_not_make_the_process_grow_by_its_size(tmp_path: Path, chunk: int) -> None:
    text, rows = "x" * 1000, 50_000
    path = write(tmp_path / "big.arrow", pa.table({"text": [text] * rows}), chunk=chunk)
    done = subprocess.run(
        [sys.executable, "-c", _READ_ALL, path, str(rows)], capture_output=True, text=True, check=True, timeout=60
    )
    read, grown = map(int, done.stdout.split())
    assert read == rows * len(text) == 50_000_000
    assert grown < 15_000_000


def _known(path: str) -> ArrowFiles:
    return ArrowFiles.of([path], known={})


@pytest.mark.parametrize("when", ["before", "between two batches"])
@pytest.mark.parametrize("change", ["touched", "cut off", "longer", "gone"])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, when: str, change: str) -> None:
    path = Path(write(tmp_path / "a.arrow", TABLE))
    reading = _known(str(path)).read([(0, ROWS)], ["text"])
    if when != "before":
        next(reading)
    if change == "touched":
        path.write_bytes(path.read_bytes())
    elif change == "cut off":
        os.truncate(path, 100)
    elif change == "longer":
        path.write_bytes(path.read_bytes() + b"\0")
    else:
        path.unlink()
    with pytest.raises(SourceError, match="cannot be read any more" if change == "gone" else "was changed while"):
        list(reading)


def test_what_is_known_of_a_file_is_compared_however_late_it_is_opened(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a.arrow", TABLE))
    stamps = stamps_of([str(path), str(tmp_path / "not there")])
    assert stamps.keys() == {str(path)}
    path.write_bytes(path.read_bytes())
    with pytest.raises(SourceError, match="was changed while"):
        list(ArrowFiles.of([str(path)], known=stamps).read([(0, ROWS)], ["text"]))
    assert _read(_known(str(path)), [(0, 1)]) == [(0, TABLE.slice(0, 1).to_pylist()[0])]


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(SourceError, match="no such file: cannot be read"):
        _known("no such file")


def test_no_row_of_a_file_without_batches(tmp_path: Path) -> None:
    without, other = write(tmp_path / "a.arrow", TABLE.slice(0, 0)), write(tmp_path / "b.arrow", TABLE)
    assert num_rows(without) == 0
    assert _read(ArrowFiles((without, other)), [(0, 2)]) == list(enumerate(TABLE.slice(0, 2).to_pylist()))


@pytest.mark.parametrize("stream", [True, False])
def test_batches_without_rows_are_passed_over(tmp_path: Path, stream: bool) -> None:
    path = str(tmp_path / "a.arrow")
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(path, TABLE.schema) as writer:
        for rows in (0, 20, 0, 0, 40, 0):
            writer.write_table(TABLE.slice(0, rows) if rows != 40 else TABLE.slice(20))
            writer.write_batch(pa.RecordBatch.from_pylist([], TABLE.schema))
    assert num_rows(path) == ROWS
    assert _read(_known(path), [(0, ROWS)]) == list(enumerate(TABLE.to_pylist()))


def test_a_batch_owns_its_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", TABLE)
    reading = _known(path).read([(3, 20), (30, 50)], ["text", "number"])
    first, batch = next(reading)
    with open(path, "wb") as file:
        file.write(b"\xff" * 10_000)
    assert batch.to_pylist() == TABLE.slice(first, batch.num_rows).to_pylist()


class TestParts:
    @pytest.mark.parametrize("part_bytes", [1, 200, 1 << 20])
    @pytest.mark.parametrize("compression", [None, "lz4"])
    def test_are_the_rows_of_the_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int, compression: str | None
    ) -> None:
        monkeypatch.setattr(arrow_files, "_PART_BYTES", part_bytes)
        path = write(tmp_path / "a.arrow", TABLE, compression=compression)
        read = list(_known(path).read([(3, 20), (30, 50)], ["text", "number"], in_parts=True))
        rows = [(first + index, row) for first, batch in read for index, row in enumerate(batch.to_pylist())]
        assert rows == [(row, TABLE.slice(row, 1).to_pylist()[0]) for row in (*range(3, 20), *range(30, 50))]
        if part_bytes == 1:
            assert {batch.num_rows for _, batch in read} == {1}

    def test_have_as_many_rows_as_their_bytes_allow_on_average(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(arrow_files, "_PART_BYTES", 1000)
        table = pa.table({"text": ["x" * 96] * 10 + ["x"] * 95})  # 1,055 bytes of text, and offsets of 4
        path = write(tmp_path / "a.arrow", table, chunk=1000)
        (_, batch), *_ = _known(path).read([(0, 105)], ["text"])
        sizes = [part.num_rows for _, part in _known(path).read([(0, 105)], ["text"], in_parts=True)]
        assert sizes == [105 * 1000 // batch.nbytes, 105 - 105 * 1000 // batch.nbytes]

    def test_of_other_calls_are_what_segments_have_of_batches(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.arrow", pa.table({"text": ["x" * 1_000_000] * 9}), chunk=9)
        assert [batch.num_rows for _, batch in _known(path).read([(0, 9)], ["text"])] == [9]
        assert [batch.num_rows for _, batch in _known(path).read([(0, 9)], ["text"], in_parts=True)] == [4, 4, 1]


_CUT_OFF = """
import os, random, sys, threading, time
from pipelines.prepare.arrow_files import ArrowFiles
from tfrecord_io.errors import SourceError

path, rows, times, seed = sys.argv[1], *map(int, sys.argv[2:])
draw = random.Random(seed)
with open(path, "rb") as file:
    content = file.read()

def read(files):
    for first, batch in files.read([(0, rows)], ["text"]):
        assert batch.column(0).to_pylist() == [str(row) * 100 for row in range(first, first + batch.num_rows)]

def meddled(after, keep):
    with open(path, "wb") as file:
        file.write(content)
    files = ArrowFiles.of([path], known={})
    meddler = threading.Thread(target=lambda: (time.sleep(after), os.truncate(path, keep)))
    meddler.start()
    try:
        while True:
            read(files)
    except SourceError as error:
        return str(error)
    finally:
        meddler.join()

began = time.perf_counter()
read(ArrowFiles.of([path], known={}))
took = time.perf_counter() - began
for _ in range(times):
    print(meddled(draw.uniform(0, 2 * took), draw.randrange(len(content))))
"""


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_file_that_is_cut_off_at_any_moment_is_an_error_and_never_the_end_of_the_process(
    tmp_path: Path, stream: bool
) -> None:
    rows, times = 2_000, 100
    table = pa.table({"text": [str(row) * 100 for row in range(rows)]})
    path = write(tmp_path / "a.arrow", table, chunk=200, stream=stream)
    words = [path, str(rows), str(times), "0"]
    done = subprocess.run([sys.executable, "-c", _CUT_OFF, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    errors = done.stdout.splitlines()
    assert len(errors) == times
    assert all("a.arrow: was changed while the job was reading it" in error for error in errors)
