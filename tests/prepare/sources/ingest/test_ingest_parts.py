"""Parts of a large file have the rows of the whole, wherever it is cut."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.prepare.sources.files import byte_ranges
from pipelines.prepare.sources.files.data_files import DataFile, FileKind
from pipelines.prepare.sources.formats import json_lines as json_lines_module
from pipelines.prepare.sources.formats import text_readers
from pipelines.prepare.sources.ingest import ingest, ingest_tasks
from pipelines.prepare.sources.ingest.ingest_tasks import IngestTask
from tests.prepare.sources.ingest.ingesting import ingested, json_lines, rows_of, tasks, written

LINES = st.lists(st.sampled_from(["", "a", "bb\r", "\r", "ccc\r\r", "\ufeff", "\u2028é", "x" * 40]), max_size=12)


def parts_of(task: IngestTask, cuts: Sequence[int]) -> list[IngestTask]:
    bounds = list(itertools.pairwise([0, *sorted(cuts), task.file.size]))
    return [
        dataclasses.replace(task, part=part, parts=len(bounds), start=start, stop=stop)
        for part, (start, stop) in enumerate(bounds)
    ]


def assert_parts_are_the_whole(file: DataFile, cuts: Sequence[int], folder: Path) -> None:
    whole = ingested([file], folder / "whole")
    (task,) = tasks([file], folder / "parts")
    found = [ingest.run(part) for part in parts_of(task, cuts)]
    assert rows_of(found).to_pylist() == whole.to_pylist()


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, end=st.sampled_from(["", "\n", "\r\n"]), data=st.data())
def test_lines_of_text(
    lines: list[str], end: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = ("first\n" + "\n".join(lines) + end).encode()
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=5))
    folder = tmp_path_factory.mktemp("parts")
    assert_parts_are_the_whole(written(folder / "a.txt", content, "text"), cuts, folder)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(max_size=20), min_size=1, max_size=8), data=st.data())
def test_lines_of_json(texts: list[str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = "\n".join(json.dumps({"text": text}) for text in texts).encode()
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=5))
    folder = tmp_path_factory.mktemp("parts")
    assert_parts_are_the_whole(written(folder / "a.jsonl", content), cuts, folder)


def test_every_line_belongs_to_the_part_that_it_begins_in(tmp_path: Path) -> None:
    file = written(tmp_path / "a.txt", b"aa\nbbbb\n\ncc", "text")
    expected = {0: b"aa\n", 3: b"bbbb\n", 8: b"\n", 9: b"cc"}
    for at in range(file.size):
        with byte_ranges.open_lines(file, at, at + 1, addresses={}) as stream:
            assert stream.read() == expected.get(at, b"")


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_lines_longer_than_a_chunk_are_read_whole(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines_module, "_CHUNK_BYTES", size)
    lines = [b"x" * length + b"\n" for length in (0, 5, 63, 64, 65, 300, 1, 2)] + [b"end"]
    with text_readers.in_memory(b"".join(lines)) as stream:
        chunks = [bytes(chunk) for chunk in json_lines_module.chunks(stream)]
    assert b"".join(chunks) == b"".join(lines)
    assert all(chunk.endswith(b"\n") for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("name", "kind", "parts"), [("a.jsonl", "json", 4), ("a.jsonl.gz", "json", 1), ("a.txt", "text", 4)]
)
def test_large_plain_files_are_cut(
    name: str, kind: FileKind, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_tasks, "_LARGE_BYTES", 100)
    monkeypatch.setattr(ingest_tasks, "part_bytes", lambda _: 1000)
    content = json_lines(*({"text": f"row {row:03}"} for row in range(180)))
    found = tasks([written(tmp_path / name, content, kind)], tmp_path / "rows")
    assert [(task.part, task.parts) for task in found] == [(part, parts) for part in range(parts)]
    assert found[0].start == 0
    assert found[-1].stop == found[0].file.size
    assert all(before.stop == after.start for before, after in itertools.pairwise(found))


def test_a_large_file_with_one_document_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_tasks, "_LARGE_BYTES", 10)
    rows = [{"text": f"row {row}"} for row in range(50)]
    (task,) = tasks([written(tmp_path / "a.json", json.dumps(rows, indent=1).encode())], tmp_path / "rows")
    assert rows_of([ingest.run(task)]).to_pylist() == rows


@pytest.mark.parametrize(
    ("total", "expected"),
    [(10**9, 16_000_000), (10**11, 50_000_000), (10**13, 256_000_000)],
)
def test_parts_grow_with_the_source(total: int, expected: int) -> None:
    assert ingest_tasks.part_bytes(total) == expected
