"""Source files of a form and a size, filled with the text of scripts.benchmarks.corpus; made once, then found again."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from scripts.benchmarks import corpus

__all__ = ["FORMS", "Shape", "made", "stored_bytes"]

ROWS_PER_GROUP = 1_000
# Bytes of text in a byte of a file.
_TEXT_PER_BYTE = {"parquet": 1.33, "jsonl": 0.98, "jsonl.gz": 2.05}
_LARGE_TEXT_BYTES = 1_000_000
FORMS = tuple(_TEXT_PER_BYTE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """How many files of which form, and about how many bytes each has as it is stored. Files of all forms have the same
    rows if their `text_bytes` are equal; else the rows follow from the form.
    """

    form: str
    num_files: int
    file_bytes: int
    text_bytes: int | None = None

    @property
    def text(self) -> int:
        """Bytes of text in one file."""
        return self.text_bytes or max(1, round(self.file_bytes * _TEXT_PER_BYTE[self.form]))

    @property
    def suffix(self) -> str:
        """How the files' names end."""
        return ".parquet" if self.form.startswith("parquet") else f".{self.form}"


def made(workdir: Path, shape: Shape, *, seed: int = 0) -> Path:
    """The folder of these files, `train-NNNNN.SUFFIX` with columns text and label."""
    folder = workdir / f"source-{shape.form}-{shape.num_files}-by-{shape.text}-seed{seed}"
    if folder.exists():
        return folder
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write = _WRITERS[shape.form]
    for number, table in enumerate(_tables(shape, seed=seed)):
        write(table, partial / f"train-{number:05d}{shape.suffix}")
    partial.rename(folder)
    return folder


def stored_bytes(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.iterdir())


def _tables(shape: Shape, *, seed: int) -> Iterator[pa.Table]:
    """One table a file, cut at the document, or the fiftieth of a large one, that fills it."""
    total = shape.text * shape.num_files
    rows = 50 if shape.text > _LARGE_TEXT_BYTES else 1
    pending: list[pa.Table] = []
    filled, given = 0, 0
    for table in corpus.documents(num_bytes=total, seed=seed):
        for begin in range(0, len(table), rows):
            pending.append(table.slice(begin, rows))
            filled += corpus.text_bytes(pending[-1]["text"])
            if filled >= (given + 1) * shape.text and given < shape.num_files - 1:
                yield pa.concat_tables(pending).combine_chunks()
                pending, given = [], given + 1
    yield pa.concat_tables(pending).combine_chunks()


def _write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=ROWS_PER_GROUP)


def _lines(table: pa.Table) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist()).encode()


def _write_jsonl(table: pa.Table, path: Path) -> None:
    path.write_bytes(_lines(table))


def _write_gzip(table: pa.Table, path: Path) -> None:
    path.write_bytes(gzip.compress(_lines(table), compresslevel=4, mtime=0))


_WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "parquet": _write_parquet,
    "jsonl": _write_jsonl,
    "jsonl.gz": _write_gzip,
}
