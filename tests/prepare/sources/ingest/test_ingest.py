"""Ingested parts: small row groups, the same bytes whoever makes them, and no work that is done twice."""

import functools
import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.runners import here
from pipelines.prepare.sources.ingest import ingest
from pipelines.prepare.sources.ingest.ingest import MOST_BYTES, MOST_ROWS, IngestSource, even_tables
from pipelines.prepare.sources.parquet import row_groups
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.rows import opening
from pipelines.prepare.sources.rows.opening import OpenedSource
from pipelines.prepare.sources.rows.reading import RowReader
from tests import building
from tests.support import seams
from tfrecord_io.errors import SourceError

SHORT: list[dict[str, Any]] = [{"text": f"row {row}", "label": row if row % 7 else None} for row in range(2500)]
LONG: list[dict[str, Any]] = [{"text": "x" * random.Random(row).randrange(20_000), "label": row} for row in range(300)]
LARGE: dict[str, Any] = {"text": "y" * 3_000_000, "label": 1}


def json_lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def opened(folder: Path) -> OpenedSource:
    return opening.open_source(SourceConfig(dataset=str(folder)), columns=None)


def some(folder: Path, monkeypatch: pytest.MonkeyPatch | None = None) -> IngestSource:
    """Three files, in two parts with `monkeypatch`."""
    data = folder / "data"
    data.mkdir(parents=True)
    for name, rows in {"a": SHORT, "b": [*LONG, LARGE], "c": SHORT[:9]}.items():
        (data / f"{name}.jsonl").write_text(json_lines(*rows))
    if monkeypatch is not None:
        seams.put(monkeypatch, ingest_part_bytes=4_000_000)
    return IngestSource(streams=opened(data).streams(["train"]), folder=str(folder / "rows"))


def made(source: IngestSource) -> None:
    for task in source.tasks():
        ingest.run(source, task)


def located(source: IngestSource, columns: list[str]) -> Groups:
    return Groups.joined(list(ingest.read_groups(source, source.tasks(), columns, run_tasks=ingest.run_here).values()))


def test_parts_have_the_rows_in_small_groups_with_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = some(tmp_path, monkeypatch)
    made(source)
    rows = []
    for task in source.tasks():
        with pq.ParquetFile(source.path(task), page_checksum_verification=True) as part:
            for group in range(part.num_row_groups):
                table = part.read_row_group(group)
                assert table.num_rows <= MOST_ROWS
                assert table.nbytes <= 1.25 * MOST_BYTES or table.num_rows == 1
                rows += table.to_pylist()
    assert rows == [*SHORT, *LONG, LARGE, *SHORT[:9]] == read_all(source)
    assert located(source, ["text"]).source_rows.tolist() == [2500, 301, 9]


def test_small_tables_are_put_together() -> None:
    tables = list(even_tables(pa.table({"a": [number]}) for number in range(2500)))
    assert [table.num_rows for table in tables] == [833, 833, 834]
    assert pa.concat_tables(tables)["a"].to_pylist() == list(range(2500))


@pytest.mark.slow
def test_parts_are_the_same_whoever_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for processes in (0, 2):
        source = some(tmp_path / str(processes), monkeypatch)
        here.run(functools.partial(ingest.run, source), source.tasks(), processes=processes)
        files = sorted(Path(source.folder).iterdir())
        assert len(files) == 2
        digests.append([(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files])
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_damage_to_a_part_is_an_error_that_names_it_and_never_other_rows(tmp_path: Path) -> None:
    source = some(tmp_path)
    made(source)
    path = Path(source.path(source.tasks()[0]))
    whole, expected = path.read_bytes(), read_all(source)
    rng = random.Random(0)
    places = [rng.randrange(len(whole)) for _ in range(12)] + [-rng.randrange(1, 9000) % len(whole) for _ in range(40)]
    errors: list[SourceError] = []
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        row_groups._footers.clear()
        try:
            assert read_all(source) == expected
        except SourceError as error:
            errors.append(error)
    assert len(errors) > 12
    assert all(path.name in str(error) and "delete" in error.remedy for error in errors)


def read_all(source: IngestSource) -> list[Any]:
    groups = located(source, ["text", "label"])
    reader = RowReader(split="train", types=source.streams["train"].types)
    read = reader.read(groups.pieces([(0, groups.total_rows)]), ["text", "label"])
    return [row for _, batch in read for row in batch.to_pylist()]


@pytest.mark.parametrize("change", ["size", "same size and time", "gone"])
def test_a_file_that_has_changed_is_an_error(change: str, tmp_path: Path) -> None:
    source = some(tmp_path)
    file = tmp_path / "data/b.jsonl"
    before, text = file.stat(), file.read_text()
    file.unlink()
    if change == "size":
        file.write_text(text[:-10])
    elif change != "gone":
        file.write_text(text.replace("x", "z"))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SourceError, match=r"b\.jsonl: (has changed|no longer exists)"):
        made(source)
    assert not list(tmp_path.glob("rows/*"))


def test_the_folder_is_that_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    for name, text in (("one", "a"), ("same", "a"), ("other", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text(json_lines({"text": text}))
    one, same, other = (opened(tmp_path / name).copy_folder("/out/.prep") for name in ("one", "same", "other"))
    assert one.startswith("/out/.prep/rows-")
    assert one == same != other


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "where"), [(0, r"a\.jsonl"), (400_000, r"a\.jsonl or one of the next 1 file")], ids=["head", "later"]
)
def test_a_row_that_crashes_the_reader_is_an_error_that_names_the_file(tmp_path: Path, before: int, where: str) -> None:
    nested = '{"text": "b", "x": ' + "[" * 20_000 + "]" * 20_000 + "}\n"
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.jsonl").write_text('{"text": "some words for a row"}\n' * before + nested)
    (tmp_path / "data/b.jsonl").write_text(json_lines({"text": "b"}))
    with pytest.raises(SourceError, match=rf"{where}: the process that read this file crashed \(SIGSEGV\)"):
        building.opened(SourceConfig(dataset=str(tmp_path / "data")))
