"""Row ranges over several Arrow files read as ranges of one table, without holding on to what was read."""

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
from pipelines.prepare.arrow_files import ArrowFiles, MappedFile, stamps_of
from tfrecord_io.errors import SourceError

ROWS = 60
FILE_ROWS = (0, 17, 1, 30, 0, 12)
TABLE = pa.table({"number": np.arange(ROWS), "text": [f"row {index}" * (index % 4) for index in range(ROWS)]})


def _write(path: Path, table: pa.Table, *, chunk: int = 7, stream: bool = True) -> str:
    opener = pa.ipc.new_stream if stream else pa.ipc.new_file
    with opener(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ArrowFiles:
    """ROWS rows over files of FILE_ROWS rows each, some of them empty, in both formats."""
    folder = tmp_path_factory.mktemp("arrow")
    starts = np.cumsum((0, *FILE_ROWS[:-1]))
    paths = [
        _write(folder / f"{index}.arrow", TABLE.slice(int(start), rows), stream=index % 2 == 0)
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


def test_a_batch_stays_readable_after_the_pages_were_released(tmp_path: Path) -> None:
    file = MappedFile(_write(tmp_path / "a.arrow", TABLE))
    file.release()
    assert pa.Table.from_batches(file.batches) == TABLE


@pytest.mark.parametrize("keep", [0, 5, 300, -40])
@pytest.mark.parametrize("stream", [True, False])
def test_a_truncated_file_is_an_error_that_names_it(tmp_path: Path, keep: int, stream: bool) -> None:
    path = Path(_write(tmp_path / "a.arrow", TABLE, stream=stream))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SourceError, match=r"a\.arrow: cannot be read as Arrow"):
        list(ArrowFiles((str(path),)).read([(0, ROWS)], ["text"]))


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone\.arrow: cannot be read as Arrow"):
        MappedFile(str(tmp_path / "gone.arrow"))


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
for _, batch in ArrowFiles((path,)).read([(0, rows)], ["text"]):
    read += pc.sum(pc.utf8_length(batch.column(0))).as_py()
    most = max(most, resident())
print(read, most - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_reading_a_file_does_not_make_the_process_grow_by_its_size(tmp_path: Path) -> None:
    text, rows = "x" * 1000, 50_000
    path = _write(tmp_path / "big.arrow", pa.table({"text": [text] * rows}), chunk=1000)
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
    path = Path(_write(tmp_path / "a.arrow", TABLE))
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
    path = Path(_write(tmp_path / "a.arrow", TABLE))
    stamps = stamps_of([str(path), str(tmp_path / "not there")])
    assert stamps.keys() == {str(path)}
    path.write_bytes(path.read_bytes())
    with pytest.raises(SourceError, match="was changed while"):
        list(ArrowFiles.of([str(path)], known=stamps).read([(0, ROWS)], ["text"]))
    assert _read(_known(str(path)), [(0, 1)]) == [(0, TABLE.slice(0, 1).to_pylist()[0])]


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(SourceError, match="no such file: cannot be read"):
        _known("no such file")


@pytest.mark.parametrize("part_bytes", [1, 200, 1 << 20])
def test_copied_rows_outlast_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    monkeypatch.setattr(arrow_files, "_COPY_BYTES", part_bytes)
    path = Path(_write(tmp_path / "a.arrow", TABLE))
    read = list(_known(str(path)).read([(3, 20), (30, 50)], ["text", "number"], copied=True))
    os.truncate(path, 100)  # to read a view now would end the process
    rows = [(first + index, row) for first, batch in read for index, row in enumerate(batch.to_pylist())]
    assert rows == [(row, TABLE.slice(row, 1).to_pylist()[0]) for row in (*range(3, 20), *range(30, 50))]
    if part_bytes == 1:
        assert {batch.num_rows for _, batch in read} == {1}
