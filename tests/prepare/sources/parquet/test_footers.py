"""What footers say of row groups, wherever the files are and whatever state they are in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.sources.parquet import row_groups
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.storage import object_storage
from tests.prepare.sources.stored import data_file, parquet
from tfrecord_io.errors import SourceError

TABLE = pa.table(
    {
        "text": [None if row % 7 == 0 else f"row {row}" for row in range(95)],
        "chat": [[{"role": "user", "content": "hi", "extra": None}]] * 95,
        "chat.role": range(95),
        "number": pa.array(range(95)),
    }
)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """[start, stop) of each range that is asked for."""
    asked: list[tuple[int, int]] = []
    fetch = object_storage.fetch

    def counted(get: Callable[[int, int], bytes], start: int, stop: int, *, path: str) -> bytes:
        asked.append((start, stop))
        return fetch(get, start, stop, path=path)

    monkeypatch.setattr(object_storage, "fetch", counted)
    return asked


def footer(file: DataFile, columns: list[str] | None = None) -> row_groups.Footer:
    [found] = row_groups.read_footers([file], columns)
    return found


def chunk_bytes(path: Path, name: str, *, packed: bool) -> list[int]:
    """Of all leaves of a column, by row group, one by one."""
    metadata = pq.read_metadata(path)
    field = "total_compressed_size" if packed else "total_uncompressed_size"
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    chunks = [[group.column(leaf) for leaf in range(metadata.num_columns)] for group in groups]
    return [
        sum(getattr(chunk, field) for chunk in some if chunk.path_in_schema.split(".")[0] == name) for some in chunks
    ]


def test_rows_and_bytes_are_those_of_the_row_groups(tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", TABLE.drop_columns(["chat.role"]))
    found = footer(file, ["text", "chat"])
    assert found.num_rows.tolist() == [10] * 9 + [5]
    for field, packed in (("num_bytes", False), ("stored_bytes", True)):
        text, chat = (chunk_bytes(tmp_path / "a.parquet", name, packed=packed) for name in ("text", "chat"))
        assert getattr(found, field).tolist() == np.add(text, chat).tolist()
    assert (found.all_bytes > found.num_bytes).all()
    assert found.schema.equals(TABLE.drop_columns(["chat.role"]).schema)


def test_all_columns_are_counted_if_none_is_named(tmp_path: Path) -> None:
    found = footer(parquet(tmp_path / "a.parquet", TABLE))
    assert found.num_bytes.tolist() == found.all_bytes.tolist()
    assert set(found.nulls) == {"text", "number", "chat.role"}


def test_nulls_are_known_of_flat_columns_with_statistics(tmp_path: Path) -> None:
    found = footer(parquet(tmp_path / "a.parquet", TABLE), ["text", "chat"])
    assert found.nulls["text"].tolist() == [TABLE["text"][start : start + 10].null_count for start in range(0, 95, 10)]
    assert "chat" not in found.nulls
    assert footer(parquet(tmp_path / "b.parquet", TABLE, write_statistics=False), ["text"]).nulls == {}


@pytest.mark.parametrize(("rows", "fits"), [(4_000, True), (4_001, False)])
def test_row_groups_of_many_rows_are_not_read_in_place(rows: int, fits: bool, tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", pa.table({"n": range(rows)}), rows=rows)
    assert row_groups.is_in_place(footer(file)) is fits


def test_row_groups_of_many_bytes_are_not_read_in_place(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2], "blob": [bytes(9 << 20)] * 2})
    packed = parquet(tmp_path / "a.parquet", table, use_dictionary=False)
    assert packed.size < 1 << 20
    assert not row_groups.is_in_place(footer(packed, ["n"]))


def test_far_away_one_small_read_is_enough(requests: list[tuple[int, int]]) -> None:
    table = pa.table({"text": [f"{row} " * 50 for row in range(2_000)]})
    file = parquet("memory://footers/a.parquet", table, rows=500, compression="none")
    assert footer(file, ["text"]).num_rows.tolist() == [500] * 4
    assert requests == [(file.size - 8_192, file.size)]


def test_a_long_footer_takes_a_second_read_of_what_is_missing(requests: list[tuple[int, int]]) -> None:
    file = parquet("memory://footers/long.parquet", pa.table({"n": range(500)}), rows=1)
    assert len(footer(file, ["n"]).num_rows) == 500
    assert len(requests) == 2
    assert requests[1][1] == requests[0][0], "no byte is asked for twice"


def _without_end(content: bytes) -> bytes:
    return content[:-3]


def _long_footer(content: bytes) -> bytes:
    return content[:-8] + (1 << 30).to_bytes(4, "little") + b"PAR1"


def _damaged_footer(content: bytes) -> bytes:
    return content[:-108] + b"\xff" * 100 + content[-8:]


@pytest.mark.parametrize(
    "damage", [_without_end, _long_footer, _damaged_footer, lambda content: b"", lambda content: b"PAR1"]
)
@pytest.mark.parametrize("remote", [False, True])
def test_a_footer_that_cannot_be_read_names_its_file(damage: object, remote: bool, tmp_path: Path) -> None:
    place = "memory://footers/broken.parquet" if remote else str(tmp_path / "broken.parquet")
    parquet(place, TABLE)
    with fsspec.open(place, "rb") as stream:
        content = stream.read()
    with fsspec.open(place, "wb") as stream:
        stream.write(damage(content))  # type: ignore[operator]
    with pytest.raises(SourceError, match=r"broken.parquet: cannot be read as a Parquet file") as caught:
        footer(data_file(place))
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_groups_have_no_credentials() -> None:
    file = parquet("memory://footers/secret.parquet", TABLE)
    known = dataclasses.replace(file, path="https://me:hush@host/secret.parquet?sig=hush")
    [found] = row_groups.read_footers([file], ["text"])
    [at] = row_groups.groups_of(known, found).files
    assert at.path == "https://host/secret.parquet"


def test_files_with_the_same_columns_share_their_schema(tmp_path: Path) -> None:
    files = [parquet(tmp_path / f"{index}.parquet", TABLE) for index in range(3)]
    read = row_groups.read_footers(files, None)
    assert read[0].schema is read[1].schema is read[2].schema
