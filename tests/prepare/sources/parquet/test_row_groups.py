"""Row groups: facts from footers, for files in any place and state; and rows by piece, equal to the whole table's, in
the types of the split, or an error that names the file.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.table import table_cast
from hypothesis import given
from hypothesis import strategies as st

from pipelines.prepare.sources.parquet import row_groups
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.resolve.data_files import DataFile, stamp_of
from pipelines.prepare.storage import object_storage
from tests.prepare.sources.stored import data_file, in_place, parquet
from tests.support import seams
from tfrecord_io.errors import SourceError

COUNT = 95
TABLE = pa.table(
    {
        "number": range(COUNT),
        "text": [None if row % 7 == 0 else f"row {row}" for row in range(COUNT)],
        "topic": pa.array([f"topic {row % 3}" for row in range(COUNT)]).dictionary_encode(),
        "chat": [[{"role": "user", "content": f"hi {row}"}] * (row % 3) for row in range(COUNT)],
    }
)
PLAIN = TABLE.cast(TABLE.schema.set(2, pa.field("topic", pa.string())))
TYPES = PLAIN.schema
Ranges = list[tuple[int, int]]


def read(
    groups: Groups, row_ranges: Sequence[tuple[int, int]], columns: Sequence[str], *, types: pa.Schema = TYPES
) -> list[tuple[int, pa.RecordBatch]]:
    return list(row_groups.read_rows(groups.pieces(row_ranges), columns, types=types, addresses={}))


@pytest.fixture(scope="module", params=["parquet", "memory", "several"])
def groups(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Groups:
    """The table in groups of ten rows: one file or several, here or far away."""
    folder = tmp_path_factory.mktemp("rows")
    if request.param == "parquet":
        return in_place(parquet(folder / "a.parquet", TABLE))
    if request.param == "memory":
        return in_place(parquet("memory://rows/a.parquet", TABLE))
    files = [parquet(folder / f"{start}.parquet", TABLE.slice(start, 30)) for start in (0, 30, 60, 90)]
    return in_place(*files)


def some_ranges(total: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    bound = st.integers(0, total)
    return st.lists(st.tuples(bound, bound).map(lambda pair: (min(pair), max(pair))), max_size=8)


COLUMNS = st.lists(st.sampled_from(TYPES.names), min_size=1, unique=True)


@pytest.mark.slow
@given(row_ranges=some_ranges(COUNT), columns=COLUMNS)
def test_any_segments_give_the_rows_of_the_table(row_ranges: Ranges, columns: list[str], groups: Groups) -> None:
    batches = read(groups, row_ranges, columns)
    expected = pa.concat_tables([PLAIN.select(columns)[start:stop] for start, stop in row_ranges or [(0, 0)]])
    schema = pa.schema([TYPES.field(name) for name in columns])
    assert pa.Table.from_batches([batch for _, batch in batches], schema=schema).equals(expected)
    pieces = groups.pieces(row_ranges)
    assert [(first, batch.num_rows) for first, batch in batches] == list(
        zip(pieces.starts.tolist(), pieces.counts.tolist(), strict=True)
    )


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    ranges: Ranges = []
    fetch = object_storage.fetch

    def noted(get: Callable[[int, int], bytes], start: int, stop: int, *, path: str) -> bytes:
        ranges.append((start, stop))
        return fetch(get, start, stop, path=path)

    monkeypatch.setattr(object_storage, "fetch", noted)
    return ranges


WIDE = pa.table({"a": [f"{row}" * 20 for row in range(900)], "c": [os.urandom(1_000)] * 900, "b": range(900)})


def test_far_away_neighbouring_groups_take_one_request_and_the_footer_one(requests: Ranges) -> None:
    groups = in_place(parquet("memory://rows/counted.parquet", WIDE, rows=100, use_dictionary=False))
    requests.clear()
    batches = read(groups, [(0, 250), (300, 350), (600, 900)], ["a", "b"], types=WIDE.schema)
    assert len(requests) == 3, "footer, groups 0 to 3 and groups 6 to 8, with the bytes of the column between"
    assert [first for first, _ in batches] == [0, 100, 200, 300, 600, 700, 800]
    requests.clear()
    read(groups, [(400, 600)], ["a", "b"], types=WIDE.schema)
    assert len(requests) == 1, "the footer is kept"


def test_far_away_large_holes_and_large_groups_are_apart(requests: Ranges, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = in_place(parquet("memory://rows/holes.parquet", WIDE, rows=300, use_dictionary=False))
    seams.put(monkeypatch, hole_bytes=1_000)
    requests.clear()
    read(groups, [(0, 300)], ["a", "b"], types=WIDE.schema)
    assert len(requests) == 3, "footer, and each column"
    assert sum(stop - start for start, stop in requests[1:]) < 60_000, "what nobody asked for stays where it is"
    seams.put(monkeypatch, fetch_bytes=1_000)
    requests.clear()
    expected = pa.Table.from_batches([batch for _, batch in read(groups, [(0, 900)], ["c"], types=WIDE.schema)])
    assert len(requests) == 3, "one for each group"
    assert expected.equals(WIDE.select(["c"]))


def test_far_away_groups_that_unpack_to_much_are_apart(requests: Ranges, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text column that decodes to 2 GiB would arrive in two batches, after using as much memory per thread."""
    same = pa.table({"a": ["the same text" * 100] * 900})
    groups = in_place(parquet("memory://rows/same.parquet", same, rows=100, use_dictionary=False))
    seams.put(monkeypatch, decoded_bytes=300_000)  # 131 kB each, in the file 7 kB
    requests.clear()
    expected = pa.Table.from_batches([batch for _, batch in read(groups, [(0, 900)], ["a"], types=same.schema)])
    assert len(requests) == 6, "the footer, and two groups each"
    assert expected.equals(same)


# What another file of the same split may hold.

CASTS: dict[str, tuple[pa.Array, pa.DataType]] = {
    "narrow": (pa.array([1, None], pa.int8()), pa.int64()),
    "dictionary": (pa.array(["a", None]).dictionary_encode(), pa.large_string()),
    "view": (pa.array(["a", None], pa.string_view()), pa.string()),
    "list": (pa.array([["a"], None], pa.large_list(pa.large_string())), pa.list_(pa.string())),
    "null": (pa.nulls(2), pa.list_(pa.struct([("a", pa.string())]))),
    "missing": (pa.array([{"a": 1}, None]), pa.struct([("a", pa.int64()), ("b", pa.string())])),
    "no json": (pa.array(["{}", None]).cast(pa.json_()), pa.string()),
}


@pytest.mark.parametrize("name", CASTS)
def test_a_type_that_can_become_the_splits_keeps_its_values(name: str, tmp_path: Path) -> None:
    column, kind = CASTS[name]
    groups = in_place(parquet(tmp_path / "a.parquet", pa.table({"column": column})))
    [(_, batch)] = read(groups, [(0, 2)], ["column"], types=pa.schema([("column", kind)]))
    batch.validate(full=True)
    # Like `datasets`, which casts a file with types other than the first file's.
    expected = table_cast(pa.table({"column": column}), pa.schema([("column", kind)]))
    assert pa.Table.from_batches([batch]).equals(expected)
    if name != "missing":
        assert batch.column(0).to_pylist() == column.to_pylist()


OTHERS: dict[str, tuple[pa.Array, pa.DataType]] = {
    "too wide": (pa.array([1, 300]), pa.int8()),
    "label": (pa.array(["neg"]), pa.int64()),
    "texts": (pa.array(["a"]), pa.list_(pa.string())),
    "extra": (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())])),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_type_is_refused_with_file_column_and_both_types(name: str, tmp_path: Path) -> None:
    column, kind = OTHERS[name]
    groups = in_place(parquet(tmp_path / "b.parquet", pa.table({"column": column})))
    with pytest.raises(SourceError) as caught:
        read(groups, [(0, len(column))], ["column"], types=pa.schema([("column", kind)]))
    # Parquet calls the items of lists its own way.
    message = str(caught.value).replace("<element: ", "<item: ")
    assert f"b.parquet: column 'column' holds {column.type}, expected {kind}" in message
    assert "\n" not in str(caught.value)


# Files that differ from the plan.


def refused(groups: Groups, row_ranges: Sequence[tuple[int, int]] = ((0, COUNT),)) -> str:
    with pytest.raises(SourceError) as caught:
        read(groups, row_ranges, ["text"])
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
    return str(caught.value)


def written(folder: Path) -> tuple[Groups, Path]:
    return in_place(parquet(folder / "a.parquet", TABLE, compression="none")), folder / "a.parquet"


def test_a_file_of_the_same_size_and_time_that_took_its_place_is_refused(tmp_path: Path) -> None:
    groups, path = written(tmp_path)
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)
    assert "has changed since the job was planned; run the same command again" in refused(groups)


def test_a_file_that_shrinks_while_it_is_decoded_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, path = written(tmp_path)
    iter_batches = pq.ParquetFile.iter_batches

    def shrinking(self: pq.ParquetFile, *arguments: object, **options: object) -> pa.Table:
        os.truncate(path, 40)
        return iter_batches(self, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", shrinking)
    assert "has changed since the job was planned" in refused(groups)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    groups, path = written(tmp_path)
    path.unlink()
    assert refused(groups).startswith(f"{path}: no longer exists")


def test_a_group_that_cannot_be_decoded_is_named_with_its_row(tmp_path: Path) -> None:
    groups, path = written(tmp_path)
    content = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(4).column(1)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)
    [before] = groups.files
    groups = dataclasses.replace(groups, files=(dataclasses.replace(before, stamp=stamp_of(path.stat())),))
    assert read(groups, [(0, 40)], ["text"])
    message = refused(groups, [(43, 44)])
    assert "row group 4" in message
    assert "row 43 of the split, cannot be decoded" in message


# Footers

FOOTED = pa.table(
    {
        "text": [None if row % 7 == 0 else f"row {row}" for row in range(95)],
        "chat": [[{"role": "user", "content": "hi", "extra": None}]] * 95,
        "chat.role": range(95),
        "number": pa.array(range(95)),
    }
)


def footer(file: DataFile, columns: list[str] | None = None) -> row_groups.Footer:
    [read_footer] = row_groups.read_footers([file], columns)
    return read_footer


def test_rows_and_bytes_are_those_of_the_row_groups(tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", FOOTED.drop_columns(["chat.role"]))
    groups, metadata = footer(file, ["text", "chat"]).groups, pq.read_metadata(file.path)
    assert groups.num_rows.tolist() == [10] * 9 + [5]
    for index in range(10):
        group = metadata.row_group(index)
        chunks = [group.column(leaf) for leaf in range(metadata.num_columns)]
        some = [chunk for chunk in chunks if chunk.path_in_schema.startswith(("text", "chat"))]
        assert groups.num_bytes[index] == sum(chunk.total_uncompressed_size for chunk in some)
        assert groups.stored_bytes[index] == sum(chunk.total_compressed_size for chunk in some)
    assert (footer(file).groups.num_bytes > groups.num_bytes).all(), "without names those of all columns"
    assert footer(file).schema.equals(FOOTED.drop_columns(["chat.role"]).schema)


def test_nulls_are_known_of_flat_columns_with_statistics(tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", FOOTED)
    assert set(footer(file).groups.nulls) == {"text", "number", "chat.role"}
    counted = footer(file, ["text", "chat"]).groups.nulls["text"].tolist()
    assert counted == [FOOTED["text"][start : start + 10].null_count for start in range(0, 95, 10)]
    assert footer(parquet(tmp_path / "b.parquet", FOOTED, write_statistics=False), ["text"]).groups.nulls == {}


@pytest.mark.parametrize(("rows", "fits"), [(4_000, True), (4_001, False)])
def test_row_groups_of_many_rows_are_not_read_in_place(rows: int, fits: bool, tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", pa.table({"n": range(rows)}), rows=rows)
    assert footer(file).is_in_place is fits


def test_row_groups_of_many_bytes_are_not_read_in_place(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2], "blob": [bytes(9 << 20)] * 2})
    packed = parquet(tmp_path / "a.parquet", table, use_dictionary=False)
    assert packed.size < 1 << 20
    assert not footer(packed, ["n"]).is_in_place


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-3],
        lambda content: content[:-8] + (1 << 30).to_bytes(4, "little") + b"PAR1",
        lambda content: content[:-108] + b"\xff" * 100 + content[-8:],
        lambda content: b"",
        lambda content: b"PAR1",
    ],
    ids=["without its end", "a long footer", "a damaged footer", "empty", "magic alone"],
)
@pytest.mark.parametrize("remote", [False, True])
def test_a_footer_that_cannot_be_read_names_its_file(damage: object, remote: bool, tmp_path: Path) -> None:
    place = "memory://footers/broken.parquet" if remote else str(tmp_path / "broken.parquet")
    parquet(place, FOOTED)
    with fsspec.open(place, "rb") as stream:
        content = stream.read()
    with fsspec.open(place, "wb") as stream:
        stream.write(damage(content))  # type: ignore[operator]
    with pytest.raises(SourceError, match=r"broken.parquet: cannot be read as a Parquet file") as caught:
        footer(data_file(place))
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_groups_have_no_credentials() -> None:
    known = DataFile(path="https://me:hush@host/secret.parquet?sig=hush", name="secret.parquet", size=1)
    assert known.as_planned.path == "https://host/secret.parquet"


# Segments of a split are cut where groups end.


def counted(*counts: int, name: str = "a") -> Groups:
    many = len(counts)
    return Groups(
        files=(DataFile(path=f"/{name}", size=1),),
        num_rows=np.array(counts, np.int64),
        file=np.zeros(many, np.int32),
        at=np.arange(many, dtype=np.int64),
        num_bytes=np.array(counts, np.int64) * 10,
        stored_bytes=np.array(counts, np.int64) * 5,
        source_rows=np.array([sum(counts)], np.int64),
        nulls={"text": np.ones(many, np.int64), name: np.ones(many, np.int64)},
    )


@given(st.data())
def test_pieces_are_the_rows_of_the_segments_in_their_order(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.lists(st.integers(0, 6), max_size=5), max_size=4))
    joined = Groups.joined([counted(*some, name=str(index)) for index, some in enumerate(counts)])
    # Each row by the file, the group and its number in there.
    lies = [(file, at, row) for file, some in enumerate(counts) for at, many in enumerate(some) for row in range(many)]
    wanted = data.draw(some_ranges(len(lies)))
    pieces = joined.pieces(wanted)
    fields = zip(*(getattr(pieces, name).tolist() for name in ("starts", "counts", "skips", "file", "at")), strict=True)
    rows = [(start + row, (file, at, skip + row)) for start, count, skip, file, at in fields for row in range(count)]
    assert rows == [(row, lies[row]) for start, stop in wanted for row in range(start, stop)]
    assert pieces.num_rows == sum(stop - start for start, stop in wanted)
    assert (pieces.counts > 0).all()


def test_rows_that_are_not_there_are_refused() -> None:
    with pytest.raises(SourceError, match="rows up to 6 were planned, but the source has only 5"):
        counted(2, 3).pieces([(0, 6)])
    with pytest.raises(SourceError):
        counted(2, 3).pieces([(-1, 2)])


def test_joined_groups_have_the_files_of_all_and_the_nulls_that_all_know() -> None:
    joined = Groups.joined([counted(2, 3, name="a"), counted(4, name="b")])
    assert [file.path for file in joined.files] == ["/a", "/b"]
    assert joined.file.tolist() == [0, 0, 1]
    assert joined.ends.tolist() == [2, 5, 9]
    assert {name: nulls.tolist() for name, nulls in joined.nulls.items()} == {"text": [1, 1, 1]}


@pytest.mark.slow
def test_a_dictionary_that_decodes_to_too_much_is_refused_and_its_first_rows_are_read(tmp_path: Path) -> None:
    """Equal values of 400 kB, in a file of about 100 kB."""
    value = "".join("alpha " if bit else "beta " for bit in np.random.default_rng(0).random(75_000) < 0.5)
    table = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array(np.zeros(2_000, np.int32)), pa.array([value]))})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", write_statistics=False, store_schema=False)
    assert (tmp_path / "a.parquet").stat().st_size < 200_000
    file = data_file(tmp_path / "a.parquet")
    (footer_read,) = row_groups.read_footers([file], None)
    schema = pa.schema([("text", pa.string())])
    ((_, batch),) = read(footer_read.groups, [(0, 5)], ["text"], types=schema)
    assert batch.column(0).to_pylist() == [value] * 5
    with pytest.raises(SourceError, match=r"decoded rows?, expected at most 536,870,912 bytes") as caught:
        read(footer_read.groups, [(0, 2_000)], ["text"], types=schema)
    assert "row_group_size=10" in caught.value.remedy


# Row groups that take few bytes in a file and many in memory.

REPEATED = pa.DictionaryArray.from_arrays(pa.array([None, *[0, 1] * 1_000], pa.int32()), ["x" * 400_000, "y" * 400_000])
HUGE: dict[str, pa.Array] = {
    "text": REPEATED,
    "list": pa.ListArray.from_arrays(pa.array([0, 0, *range(2, 2_002, 2)], pa.int32()), REPEATED.slice(1)),
    "struct": pa.StructArray.from_arrays([REPEATED, pa.array(range(2_001))], ["a", "b"]),
}
# Its memory may be freed after the test.
COUNTED = pa.proxy_memory_pool(pa.default_memory_pool())


def written_huge(folder: Path, column: pa.Array) -> DataFile:
    table = pa.table({"column": column})
    return parquet(folder / "huge.parquet", table, rows=len(table), store_schema=False, compression="zstd")


@pytest.mark.parametrize("name", HUGE)
def test_equal_values_of_a_large_group_are_decoded_in_parts(name: str, tmp_path: Path) -> None:
    """0.8 GB when decoded; `datasets` decodes them at once."""
    file = written_huge(tmp_path, HUGE[name])
    assert file.size < 100_000
    schema = pq.read_schema(file.path)
    before = pa.default_memory_pool()
    pa.set_memory_pool(COUNTED)
    try:
        num_bytes = rows = 0
        for table in row_groups.read_group(file, 0, schema):
            assert table.schema == schema
            num_bytes, rows = num_bytes + table.nbytes, rows + table.num_rows
    finally:
        pa.set_memory_pool(before)
    assert rows == len(HUGE[name])
    assert num_bytes > 750_000_000
    assert COUNTED.max_memory() < 400_000_000


def test_the_parts_of_a_large_group_are_its_rows_in_the_types_of_the_split(tmp_path: Path) -> None:
    column = HUGE["list"].slice(0, 9)
    file, kind = written_huge(tmp_path, column), pa.large_list(pa.large_string())
    tables = list(row_groups.read_group(file, 0, pa.schema([("column", kind)])))
    assert pa.concat_tables(tables).column(0).to_pylist() == column.to_pylist()
