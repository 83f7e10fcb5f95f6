"""Rows and columns of a record batch, and no other bytes of it: whatever the types, equal to what pyarrow reads."""

from __future__ import annotations

import decimal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.prepare import arrow_batches
from pipelines.prepare.arrow_files import ArrowFiles
from pipelines.prepare.columns import sizes_of
from tests.prepare.arrow_writing import reads, write
from tfrecord_io.errors import SourceError

INTEGERS = st.integers(-100, 100)
WORDS = st.text(max_size=5)


def _lists(values: st.SearchStrategy[Any], *, least: int = 0, most: int = 4) -> st.SearchStrategy[Any]:
    return st.lists(st.none() | values, min_size=least, max_size=most)


# What a column of each type may hold, besides None.
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): WORDS,
    pa.large_string(): WORDS,
    pa.binary(): st.binary(max_size=5),
    pa.string_view(): st.text(max_size=20),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.bool_(): st.booleans(),
    pa.int8(): INTEGERS,
    pa.int64(): INTEGERS,
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.decimal128(5, 1): st.integers(-999, 999).map(lambda number: decimal.Decimal(number) / 10),
    pa.null(): st.none(),
    pa.list_(pa.int32()): _lists(INTEGERS),
    pa.large_list(pa.float64()): _lists(st.floats(allow_nan=False)),
    pa.list_(pa.int16(), 2): _lists(INTEGERS, least=2, most=2),
    pa.list_(pa.string()): _lists(WORDS),
    pa.list_(pa.list_(pa.int8())): _lists(_lists(INTEGERS)),
    pa.struct({"a": pa.string(), "b": pa.int8()}): st.fixed_dictionaries({"a": WORDS, "b": INTEGERS}),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(WORDS, INTEGERS, max_size=3).map(
        lambda found: list(found.items())
    ),
    pa.dictionary(pa.int8(), pa.string()): WORDS,
    pa.list_view(pa.int8()): _lists(INTEGERS),
}


@st.composite
def _tables(draw: st.DrawFn) -> pa.Table:
    num_rows = draw(st.integers(1, 40))
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    columns = {}
    for index, kind in enumerate(kinds):
        values = draw(st.lists(st.none() | VALUES[kind], min_size=num_rows, max_size=num_rows))
        columns[f"column {index}"] = pa.array(values, kind)
    return pa.table(columns)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    table=_tables(),
    chunk=st.integers(1, 40),
    stream=st.booleans(),
    options=st.sampled_from([{}, {"compression": "lz4"}, {"compression": "zstd"}, {"use_legacy_format": True}]),
    data=st.data(),
)
def test_any_rows_and_columns_are_those_of_the_table(
    tmp_path: Path, table: pa.Table, chunk: int, stream: bool, options: dict[str, Any], data: st.DataObject
) -> None:
    path = write(tmp_path / "a.arrow", table, chunk=chunk, stream=stream, **options)
    start = data.draw(st.integers(0, table.num_rows - 1))
    stop = data.draw(st.integers(start + 1, table.num_rows))
    columns = data.draw(st.lists(st.sampled_from(table.column_names), min_size=1, unique=True))
    found = pa.Table.from_batches([batch for _, batch in ArrowFiles((path,)).read([(start, stop)], columns)])
    found.validate(full=True)
    opened = pa.ipc.open_stream(path) if stream else pa.ipc.open_file(path)
    assert found.to_pylist() == opened.read_all().select(columns).slice(start, stop - start).to_pylist()


def test_dictionaries_that_change_in_a_stream_are_followed(tmp_path: Path) -> None:
    words = [["a", "b", None], ["c", "a"], ["c", "b", "b", "d"]]
    path = str(tmp_path / "a.arrow")
    with pa.ipc.new_stream(path, pa.schema([("word", pa.dictionary(pa.int8(), pa.string()))])) as writer:
        for part in words:
            array = pa.array(part, pa.dictionary(pa.int8(), pa.string()))
            writer.write_batch(pa.RecordBatch.from_arrays([array], ["word"]))
    read = [batch.column(0).to_pylist() for _, batch in ArrowFiles((path,)).read([(0, 9)], ["word"])]
    assert read == words


ROWS = 2_000
TEXT = "some words that are long enough to be told from all else " * 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One batch: two columns of ROWS long texts, numbers, and vectors."""
    table = pa.table(
        {
            "unused": [TEXT[::-1]] * ROWS,
            "text": [None if row % 9 == 0 else TEXT for row in range(ROWS)],
            "label": range(ROWS),
            "vector": [[float(row)] * 4 for row in range(ROWS)],
        }
    )
    return write(tmp_path_factory.mktemp("large") / "a.arrow", table, chunk=ROWS)


def _num_bytes(path: str, *args: Any, **kwargs: Any) -> int:
    with reads() as seen:
        assert list(ArrowFiles((path,)).read(*args, **kwargs))
    return sum(stop - start for start, stop in seen)


def test_columns_that_are_not_asked_for_are_not_read(large: str) -> None:
    text_bytes = ROWS * len(TEXT)
    assert _num_bytes(large, [(0, ROWS)], ["label"]) < 8 * ROWS + 10_000
    assert text_bytes * 8 // 9 <= _num_bytes(large, [(0, ROWS)], ["text"]) < text_bytes


def test_rows_that_are_not_asked_for_are_not_read(large: str) -> None:
    assert _num_bytes(large, [(700, 710)], ["text", "label", "vector"]) < 10 * len(TEXT) + 30_000


def test_of_unread_texts_lengths_are_right_and_only_offsets_are_read(large: str) -> None:
    ((_, batch),) = ArrowFiles((large,)).read([(5, ROWS)], ["text", "label"], unread=["text"])
    expected = [0 if row % 9 == 0 else len(TEXT) for row in range(5, ROWS)]
    assert sizes_of(batch, ["text"]).tolist() == expected
    assert batch.column("text").null_count == expected.count(0)
    assert batch.column("label").to_pylist() == list(range(5, ROWS))
    assert _num_bytes(large, [(5, ROWS)], ["text", "label"], unread=["text"]) < 12 * ROWS + 30_000


def test_of_unread_vectors_only_lengths_are_read(large: str) -> None:
    ((_, batch),) = ArrowFiles((large,)).read([(0, ROWS)], ["vector"], unread=["vector"])
    assert pc.list_value_length(batch.column(0)).to_pylist() == [4] * ROWS
    assert _num_bytes(large, [(0, ROWS)], ["vector"], unread=["vector"]) < 4 * ROWS + 20_000


def test_headers_are_all_that_is_read_of_batches_without_wanted_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"text": [TEXT] * ROWS}), chunk=100)
    num_bytes = _num_bytes(path, [(100, 101)], ["text"])
    assert num_bytes < 20 * 4096 + len(TEXT) + 10_000
    assert num_bytes < 0.1 * Path(path).stat().st_size


def test_a_column_that_a_file_lacks_is_an_error_that_names_both(large: str) -> None:
    with pytest.raises(SourceError, match=r'a\.arrow: cannot be read as Arrow \(.*"title" does not exist'):
        list(ArrowFiles((large,)).read([(0, 1)], ["title"]))


_FLIP = """
import sys
from pathlib import Path
from pipelines.prepare.arrow_files import ArrowFiles
from tfrecord_io.errors import SourceError

path = Path(sys.argv[1])
content = path.read_bytes()
read = refused = 0
for place in range(len(content)):
    damaged = bytearray(content)
    damaged[place] ^= (0x01, 0x80, 0xFF, 0x10)[place % 4]
    path.write_bytes(damaged)
    for unread in ((), ("text",)):
        try:
            for _, batch in ArrowFiles((str(path),)).read([(2, 9)], ["text", "label", "vector"], unread=unread):
                read += 1
                batch.drop_columns(["text"]).to_pylist()
                [text and len(text) for text in batch.column("text").cast("binary").to_pylist()]
        except SourceError:
            refused += 1
print(read, refused)
"""


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("stream", [True, False])
def test_damage_to_any_byte_is_an_error_or_other_rows_and_never_the_end_of_the_process(
    tmp_path: Path, stream: bool, compression: str | None
) -> None:
    table = pa.table({"text": ["ab", None, "c"] * 4, "label": range(12), "vector": [[1.0] * 2] * 12})
    path = write(tmp_path / "a.arrow", table, chunk=12, stream=stream, compression=compression)
    done = subprocess.run([sys.executable, "-c", _FLIP, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    read, refused = map(int, done.stdout.split())
    assert read > 100
    assert refused > 100


@pytest.mark.parametrize("offsets", [[0, 5, 3, 8], [-1, 2, 3, 4], [0, 2, 3, 900]])
def test_texts_that_lie_where_none_can_be_are_an_error(tmp_path: Path, offsets: list[int]) -> None:
    path = Path(write(tmp_path / "a.arrow", pa.table({"text": ["ab", "cde", "fgh"]})))
    right, wrong = np.array([0, 2, 5, 8], "<i4").tobytes(), np.array(offsets, "<i4").tobytes()
    assert path.read_bytes().count(right) == 1
    path.write_bytes(path.read_bytes().replace(right, wrong))
    with pytest.raises(SourceError, match="cannot be read as Arrow"):
        list(ArrowFiles((str(path),)).read([(0, 3)], ["text"]))


def test_memory_is_zero_whatever_was_there_before() -> None:
    for _ in range(3):
        used = pa.allocate_buffer(5_000)
        np.asarray(memoryview(used).cast("B")).fill(255)
        del used
        assert not np.frombuffer(arrow_batches._allocate(5_000), np.uint8).any()
