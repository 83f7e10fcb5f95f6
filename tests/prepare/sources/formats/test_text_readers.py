"""The readers of `datasets` leave nothing behind, and say nothing of addresses that no user knows."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.prepare.sources.files.data_files import FileKind
from pipelines.prepare.sources.formats import text_readers
from tests.prepare.sources.ingest.ingesting import json_lines

CONTENT: dict[FileKind, bytes] = {
    "json": json_lines({"text": "row"}),
    "csv": b"text\nrow\n",
    "tsv": b"text\nrow\n",
    "text": b"row\n",
}
PROGRAM = """
import sys
from pipelines.prepare.sources.formats import text_readers
kind, content = sys.argv[1], sys.argv[2].encode()
types = text_readers.infer_schema(kind, lambda: text_readers.in_memory(content))
print([table.to_pylist() for table in text_readers.tables(kind, lambda: text_readers.in_memory(content), types)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONTENT)
def test_nothing_is_written_to_the_caches(kind: FileKind, tmp_path: Path) -> None:
    homes = {name: str(tmp_path / name) for name in ("HOME", "HF_HOME", "HF_DATASETS_CACHE")}
    # Without a value of its own this would be kept from the test's process.
    environment = {**os.environ, **homes, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-c", PROGRAM, kind, CONTENT[kind].decode()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[[{'text': 'row'}]]\n"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", CONTENT)
def test_threads_read_side_by_side(kind: FileKind) -> None:
    def read(number: int) -> object:
        content = CONTENT[kind].replace(b"row", str(number).encode() + b"!")
        types = text_readers.infer_schema(kind, lambda: text_readers.in_memory(content))
        assert types is not None
        (table,) = text_readers.tables(kind, lambda: text_readers.in_memory(content), types)
        return table["text"].to_pylist()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(24))) == [[f"{number}!"] for number in range(24)]


def test_errors_of_readers_are_not_logged_as_well(caplog: pytest.LogCaptureFixture) -> None:
    types = pa.schema({"text": pa.string()})
    with pytest.raises(Exception, match="Expected 1 fields"):
        list(text_readers.tables("csv", lambda: text_readers.in_memory(b"text\nx\n1,2\n"), types))
    assert not caplog.records


@pytest.mark.parametrize(
    ("kind", "content"), [("json", b""), ("json", b"\n \n"), ("csv", b""), ("csv", b"text\n"), ("text", b"")]
)
def test_a_file_without_rows_has_no_columns(kind: FileKind, content: bytes) -> None:
    assert text_readers.infer_schema(kind, lambda: text_readers.in_memory(content)) is None
    types = pa.schema({"text": pa.string()})
    assert sum(map(len, text_readers.tables(kind, lambda: text_readers.in_memory(content), types))) == 0


def test_a_blank_line_is_a_row_of_text() -> None:
    types = text_readers.infer_schema("text", lambda: text_readers.in_memory(b"\n"))
    assert types == pa.schema({"text": pa.string()})
