"""The source where workers read it: the same rows and the same shards, only what is asked for, and no trace of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from pipelines.prepare import job, pipeline, shards, staged_files, staging, storage
from pipelines.prepare.arrow_files import ArrowFiles
from pipelines.prepare.config import LayoutConfig, OutputConfig, PrepareConfig, SourceConfig, TokenizerConfig
from pipelines.prepare.opened import SplitSource
from pipelines.prepare.staged_files import StagedFiles
from tests import building
from tests.building import REVIEWS, reviews
from tfrecord_io import manifest
from tfrecord_io.errors import OutputError, SourceError

ROOT = "memory://bucket/out"
ROWS = 4_321


@pytest.fixture
def store() -> Iterator[dict[str, Any]]:
    """What is in memory://, by path."""
    files: dict[str, Any] = fsspec.filesystem("memory").store
    try:
        yield files
    finally:
        files.clear()


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> SplitSource:
    """Rows in two Arrow files, of texts with some None, a label and vectors."""
    folder = tmp_path_factory.mktemp("arrow")
    rng = np.random.default_rng(0)
    texts = [None if row % 97 == 0 else "x" * int(rng.integers(0, 60)) + str(row) for row in range(ROWS)]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(ROWS * 2)), 2)
    table = pa.table({"text": texts, "unused": ["y" * 50] * ROWS, "label": range(ROWS), "vector": vectors})
    paths = []
    for start, stop in ((0, 2_500), (2_500, ROWS)):
        paths.append(str(folder / f"{start}.arrow"))
        part = table.slice(start, stop - start)
        with pa.OSFile(paths[-1], "wb") as file, pa.ipc.new_stream(file, part.schema) as stream:
            stream.write_table(part, max_chunksize=1000)
    return SplitSource(name="train", files=ArrowFiles(tuple(paths)), ranges=((0, ROWS),))


COLUMNS = ("text", "label", "vector")


def staged(split: SplitSource, folder: str = ROOT) -> SplitSource:
    return staging._stage_split(split, columns=COLUMNS, folder=folder, root=ROOT, there=storage.sizes(folder))


def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The byte ranges that are asked for from now on."""
    asked: list[tuple[str, int, int]] = []
    read = staged_files._read_range

    def spy(path: str, start: int, stop: int) -> bytes:
        asked.append((path, start, stop))
        return read(path, start, stop)

    monkeypatch.setattr(staged_files, "_read_range", spy)
    return asked


def rows(split: SplitSource, *segments: tuple[int, int]) -> list[tuple[int, Any]]:
    """Each row with its number."""
    found = []
    for first, batch in split.read(segments, COLUMNS):
        found += [(first + at, row) for at, row in enumerate(batch.to_pylist())]
    return found


@pytest.mark.parametrize(
    "segments",
    [
        [(0, ROWS)],
        [(0, 1)],
        [(999, 1001)],
        [(2_499, 2_501), (4_320, 4_321)],
        [(5, 6), (7, 8), (8, 9), (1_000, 2_000), (3_000, 3_001)],
        [(4_000, 4_100), (10, 20), (15, 2_600)],
    ],
    ids=str,
)
@pytest.mark.parametrize("batch_bytes", [1 << 20, 1_000], ids=["whole", "cut"])
def test_staged_rows_are_those_of_the_source(
    split: SplitSource,
    store: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    segments: list[tuple[int, int]],
    batch_bytes: int,
) -> None:
    monkeypatch.setattr(staging, "_BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(staging, "_FILE_BYTES", 40_000)
    found = staged(split)
    assert len(store) > 3
    assert rows(found, *segments) == rows(split, *segments)


def test_staged_rows_come_whole_whatever_of_them_is_not_needed(split: SplitSource, store: dict[str, Any]) -> None:
    found = staged(split)
    read = list(found.read([(500, 1_500)], COLUMNS, unread=COLUMNS, in_parts=True))
    numbered = [(first + at, row) for first, batch in read for at, row in enumerate(batch.to_pylist())]
    assert numbered == rows(split, (500, 1_500))


def test_only_the_columns_and_rows_that_are_asked_for_are_written(split: SplitSource, store: dict[str, Any]) -> None:
    part = dataclasses.replace(split, ranges=((3_000, 3_100), (50, 60), (55, 70)))
    found = staged(part)
    table = pa.ipc.open_stream(store["/bucket/out/train-00000.arrow"].getvalue()).read_all()
    assert table.column_names == list(COLUMNS)
    assert table["label"].to_pylist() == [*range(50, 70), *range(3_000, 3_100)]
    assert rows(found, (3_000, 3_100), (50, 60), (55, 70)) == rows(split, (3_000, 3_100), (50, 60), (55, 70))
    with pytest.raises(SourceError, match="row 70 was planned"):
        rows(found, (60, 71))


def test_a_shard_reads_the_bytes_of_its_own_batches(
    split: SplitSource, store: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_BATCH_BYTES", 2_000)
    found = staged(split)
    asked = fetched(monkeypatch)
    assert len(rows(found, (100, 110), (2_000, 2_200), (4_000, 4_001))) == 211
    assert sum(stop - start for _, start, stop in asked) < 0.15 * len(store["/bucket/out/train-00000.arrow"].getvalue())
    assert len(asked) == 3, "neighbours are fetched together"


def test_a_second_run_writes_only_what_is_missing(
    split: SplitSource, store: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_FILE_BYTES", 40_000)
    staged(split)
    before = {path: file.getvalue() for path, file in store.items()}
    del store["/bucket/out/train-00001.arrow"]
    store["/bucket/out/train-00003.arrow"].truncate(100)
    written: list[str] = []
    write = storage.write_atomic

    def spy(path: str, chunks: Any, **kwargs: Any) -> None:
        written.append(path)
        write(path, chunks, **kwargs)

    monkeypatch.setattr(storage, "write_atomic", spy)
    staged(split)
    assert sorted(written) == [f"{ROOT}/train-0000{number}.arrow" for number in (1, 3)] + [f"{ROOT}/train.index"]
    assert {path: file.getvalue() for path, file in store.items()} == before
    written.clear()
    staged(split)
    assert not written


def test_files_are_cut_by_size_and_each_can_be_read_by_itself(
    split: SplitSource, store: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_FILE_BYTES", 40_000)
    monkeypatch.setattr(staging, "_BATCH_BYTES", 4_000)
    staged(split)
    sizes = [len(file.getvalue()) for path, file in sorted(store.items()) if path.endswith(".arrow")]
    assert len(sizes) > 3
    assert all(40_000 <= size < 46_000 for size in sizes[:-1])
    tables = [
        pa.ipc.open_stream(file.getvalue()).read_all() for path, file in sorted(store.items()) if path.endswith("arrow")
    ]
    assert pa.concat_tables(tables)["label"].to_pylist() == list(range(ROWS))


def test_an_error_of_one_writer_ends_the_others(
    split: SplitSource, store: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_FILE_BYTES", 20_000)

    def fail(path: str, chunks: Any, **kwargs: Any) -> None:
        if path.endswith("3.arrow"):
            raise OutputError("full", remedy="more")
        write(path, chunks, **kwargs)

    write = storage.write_atomic
    monkeypatch.setattr(storage, "write_atomic", fail)
    with pytest.raises(OutputError, match="full"):
        staged(split)
    assert "/bucket/out/train.index" not in store


@pytest.mark.parametrize(
    ("harm", "cause"),
    [
        (lambda store: store.pop("/bucket/out/train-00000.arrow"), "the source is not there any more"),
        (lambda store: store["/bucket/out/train-00000.arrow"].truncate(5_000), "bytes from .* on, expected"),
        (lambda store: store.pop("/bucket/out/train.index"), "the source is not there any more"),
        (lambda store: store["/bucket/out/train.index"].write(b"!"), "was replaced since this job began"),
    ],
)
def test_what_is_gone_or_damaged_is_an_error_that_says_so(
    split: SplitSource, store: dict[str, Any], harm: Any, cause: str
) -> None:
    found = staged(split)
    harm(store)
    staged_files._read_index.cache_clear()
    with pytest.raises(SourceError, match=cause):
        rows(found, (0, ROWS))


def test_damaged_bytes_are_an_error_that_says_so(split: SplitSource, store: dict[str, Any]) -> None:
    found = staged(split)
    content = bytearray(store["/bucket/out/train-00000.arrow"].getvalue())
    first = int(staged_files.Index.parse(store["/bucket/out/train.index"].getvalue()).offsets[0])
    content[first : first + 50] = b"x" * 50
    fsspec.filesystem("memory").pipe("/bucket/out/train-00000.arrow", bytes(content))
    with pytest.raises(SourceError, match="damaged at byte"):
        rows(found, (0, 10))


def test_what_travels_is_an_address(split: SplitSource, store: dict[str, Any]) -> None:
    found = staged(split)
    assert isinstance(found.files, StagedFiles)
    assert found.files == dataclasses.replace(found.files, folder=ROOT)
    assert len(found.files.index_sha256) == 64


def build(output: str, **changes: object) -> building.Outcome:
    return building.command("build", REVIEWS, "--json", *building.options(output, label_column="label", **changes))


@pytest.mark.slow
def test_a_build_from_staged_rows_has_the_same_bytes_and_leaves_no_copy(
    store: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_is_staged", lambda *_: True)
    read = fetched(monkeypatch)
    outcome = build(ROOT, workers=2)
    assert outcome.status == 0, outcome.err
    assert read
    assert json.loads(outcome.out)["manifest_sha256"] == manifest.digest(building.read_manifest(reviews()))
    got = {path.removeprefix("/bucket/out/"): file.getvalue() for path, file in store.items()}
    assert got == building.files(reviews())


@pytest.mark.slow
def test_after_a_failure_the_copy_is_kept_for_the_next_run(
    store: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OutputError("full", remedy="more")

    monkeypatch.setattr(pipeline, "_is_staged", lambda *_: True)
    monkeypatch.setattr(shards, "write", fail)
    assert build(ROOT).error == ("full", "more")
    kept = {path: file.getvalue() for path, file in store.items() if "/source/" in path}
    assert [path.rpartition("/")[2] for path in sorted(kept)] == [
        "train-00000.arrow",
        "train.index",
        "validation-00000.arrow",
        "validation.index",
    ]
    monkeypatch.undo()
    assert build(ROOT).status == 0
    assert not [path for path in store if "/source/" in path]


def test_a_folder_that_cannot_be_deleted_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: str, **_: object) -> None:
        raise OutputError(f"{path}: not allowed", remedy="x")

    config = PrepareConfig(
        source=SourceConfig(dataset=str(REVIEWS)),
        tokenizer=TokenizerConfig(name=str(building.tokenizer())),
        output=OutputConfig(root=str(tmp_path), name="reviews", shard_bytes=20_000),
        layout=LayoutConfig(max_length=32),
    )
    monkeypatch.setattr(storage, "delete", refuse)
    staging.remove(job.resolve(config).job)
    assert "could not be deleted" in caplog.text
