"""Counting tasks: a run of a split's rows each, from rows to a file of words, wherever a worker is.

    split train, rows 0 to 80,000                          FOLDER/count-00003.arrow      words and counts
        but those that are kept for the evaluation  ──►    FOLDER/texts-00003.arrow      the texts of those
                                                           FOLDER/count-00003.json       rows, written last

A task depends on the source alone, so that it can be run anywhere, and again.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare import storage
from pipelines.prepare.options.tokenizer_options import Kind, Style
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.sources.columns import extraction
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.formats.groups import Pieces, StoredFile
from pipelines.prepare.sources.rows.reading import RowReader, SplitSource
from pipelines.prepare.tokenizer_training.styles import StyleOptions, template_of
from pipelines.prepare.tokenizer_training.word_counts import WordCounter, write_divided
from tfrecord_io.errors import OutputError

__all__ = ["CountTask", "RowCounts", "put_away", "read_row_counts", "read_texts", "run", "run_counted", "tasks_of"]

# Text of a task: enough that most of its words have occurred before, little enough for many workers.
_TASK_BYTES = 1 << 27
_MOST_TASKS = 1000
_ARRAYS = ("starts", "counts", "skips", "file", "at", "length")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountTask:
    """Rows whose words are to be counted with a style's normalizer and pre-tokenizer.

    `evaluated` int64, sorted: numbers of rows whose texts are kept for the evaluation; they are counted as well only if
    `counts_evaluated`. `inside` is the folder that must exist when the task writes (see `storage.write_atomic`). If it
    `is_put_away`, its pieces are in its folder.
    """

    number: int
    reader: RowReader
    pieces: Pieces
    columns: ColumnPlan
    evaluated: np.ndarray
    counts_evaluated: bool
    kind: Kind
    style: Style
    options: StyleOptions
    folder: str
    inside: str | None = None
    is_put_away: bool = False

    def path(self, name: str) -> str:
        """The path of one of the task's files, such as `count.arrow`."""
        stem, _, suffix = name.partition(".")
        return storage.join(self.folder, f"{stem}-{self.number:05d}.{suffix}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowCounts:
    """Rows by what became of them: `counted`, kept for the `evaluation` only, and left out, by reason."""

    counted: int = 0
    evaluation: int = 0
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def sum(cls, parts: Iterable[RowCounts]) -> RowCounts:
        """Return the sums of several."""
        parts = list(parts)
        reasons = sorted({reason for part in parts for reason in part.left_out})
        return cls(
            counted=sum(part.counted for part in parts),
            evaluation=sum(part.evaluation for part in parts),
            left_out={reason: sum(part.left_out.get(reason, 0) for part in parts) for reason in reasons},
        )


def tasks_of(
    splits: Sequence[SplitSource],
    columns: ColumnPlan,
    evaluated: Sequence[np.ndarray],
    *,
    counts_evaluated: bool,
    kind: Kind,
    style: Style,
    options: StyleOptions,
    folder: str,
    inside: str | None = None,
) -> list[CountTask]:
    """Return the tasks for all rows of the splits; `evaluated` has the row numbers to keep of each."""
    total = sum(int(split.groups.num_bytes.sum()) for split in splits)
    most = max(_TASK_BYTES, total // _MOST_TASKS)
    tasks: list[CountTask] = []
    for split, kept in zip(splits, evaluated, strict=True):
        for pieces in _cut(split, most=most):
            tasks.append(
                CountTask(
                    number=len(tasks),
                    reader=split.reader,
                    pieces=pieces,
                    columns=columns,
                    evaluated=_inside(kept, pieces),
                    counts_evaluated=counts_evaluated,
                    kind=kind,
                    style=style,
                    options=options,
                    folder=folder,
                    inside=inside,
                )
            )
    return tasks


def _cut(split: SplitSource, *, most: int) -> list[Pieces]:
    """Cut the pieces of a split's rows into runs of about `most` bytes."""
    pieces = split.groups.pieces(split.ranges)
    row_bytes = int(split.groups.num_bytes.sum()) / max(1, split.groups.total_rows)
    run = (np.cumsum(pieces.counts * row_bytes) // most).astype(np.int64)
    edges = [0, *(np.flatnonzero(np.diff(run)) + 1).tolist(), len(pieces)]
    return [_run_of(pieces, first, stop) for first, stop in itertools.pairwise(edges) if stop > first]


def _run_of(pieces: Pieces, first: int, stop: int) -> Pieces:
    """Return some pieces, with only those files that they are in."""
    used, file = np.unique(pieces.file[first:stop], return_inverse=True)
    arrays = {name: getattr(pieces, name)[first:stop] for name in _ARRAYS}
    return Pieces(files=tuple(pieces.files[number] for number in used), **{**arrays, "file": file.astype(np.int32)})


def put_away(task: CountTask) -> CountTask:
    """Write a task's pieces to its folder, and return the task without them: a graph has no room for all rows of a
    large source. Raises: OutputError.
    """
    files = json.dumps([dataclasses.asdict(file) for file in task.pieces.files])
    columns = {name: pa.array(getattr(task.pieces, name).astype(np.int64)) for name in _ARRAYS}
    table = pa.table(columns).replace_schema_metadata({"files": files})
    storage.write_bytes(task.path("pieces.arrow"), _dumped(table), inside=task.inside)
    return dataclasses.replace(task, pieces=_run_of(task.pieces, 0, 0), is_put_away=True)


def _pieces_of(task: CountTask) -> Pieces:
    if not task.is_put_away:
        return task.pieces
    table = pa.ipc.open_file(pa.py_buffer(storage.read_bytes(task.path("pieces.arrow")))).read_all()
    arrays = {name: table[name].to_numpy() for name in _ARRAYS}
    files = tuple(StoredFile(**file) for file in json.loads(table.schema.metadata[b"files"]))
    return Pieces(files=files, **{**arrays, "file": arrays["file"].astype(np.int32)})


def _dumped(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _inside(rows: np.ndarray, pieces: Pieces) -> np.ndarray:
    """Return the row numbers that may be among these rows."""
    if not len(pieces):
        return rows[:0]
    return rows[(rows >= pieces.starts.min()) & (rows < (pieces.starts + pieces.counts).max())]


def run(task: CountTask, *, progress: Progress | None = None, stop: threading.Event | None = None) -> RowCounts:
    """Count the words of a task's rows, and write its files; return what became of the rows.

    Raises: SourceError if rows cannot be read; OutputError; RuntimeError once `stop` is set.
    """
    counter = WordCounter(template_of(task.style, task.kind, task.options).splitter())
    kept: list[pa.Array] = []
    parts: list[RowCounts] = []
    for first, batch in task.reader.read(_pieces_of(task), task.columns.texts):
        if stop is not None and stop.is_set():
            raise RuntimeError("another task failed, or the job was interrupted")
        parts.append(_count(task, counter, kept, first, batch))
        if progress is not None:
            progress.add(rows=batch.num_rows)
    rows = RowCounts.sum(parts)
    write_divided(task.path("count.arrow"), counter.result(), inside=task.inside)
    texts = pa.table({"text": pa.concat_arrays([pa.array([], pa.large_string()), *kept])})
    storage.write_bytes(task.path("texts.arrow"), _dumped(texts), inside=task.inside)
    storage.write_bytes(task.path("count.json"), json.dumps(dataclasses.asdict(rows)).encode(), inside=task.inside)
    return rows


def run_counted(task: CountTask, *, progress: Progress | None = None, stop: threading.Event | None = None) -> int:
    """Do a task as `run` does; return the number of its rows that were counted."""
    return run(task, progress=progress, stop=stop).counted


def _count(task: CountTask, counter: WordCounter, kept: list[pa.Array], first: int, batch: pa.RecordBatch) -> RowCounts:
    """Count the words of a batch's usable rows, and keep the texts for the evaluation."""
    rows, reasons = extraction.extract(batch, task.columns, first=first)
    names, sizes = np.unique(reasons[reasons != ""].astype(str), return_counts=True)
    is_kept = np.isin(rows.numbers, task.evaluated)
    for texts in rows.texts:
        texts = texts.cast(pa.large_string())
        if is_kept.any():
            kept.append(texts.filter(pa.array(is_kept)))
        counter.add(texts if task.counts_evaluated or not is_kept.any() else texts.filter(pa.array(~is_kept)))
    apart = 0 if task.counts_evaluated else int(is_kept.sum())
    return RowCounts(
        counted=len(rows) - apart,
        evaluation=apart,
        left_out=dict(zip(names.tolist(), sizes.tolist(), strict=True)),
    )


def read_row_counts(tasks: Sequence[CountTask]) -> RowCounts:
    """Sum what became of the rows of all tasks. Raises: OutputError if a task's file is missing."""
    parts = []
    for task, text in zip(tasks, storage.read_many([task.path("count.json") for task in tasks]), strict=True):
        if text is None:
            raise OutputError(
                f"{task.path('count.json')}: missing, though the task is done",
                remedy="if workers are on other machines, choose an --output that all can reach, such as gs://",
            )
        parts.append(RowCounts(**json.loads(text)))
    return RowCounts.sum(parts)


def read_texts(tasks: Sequence[CountTask], *, most_bytes: int) -> pa.Array:
    """Return the texts kept for the evaluation, large_string, as many of the first ones as fit into `most_bytes`."""
    found = [pa.array([], pa.large_string())]
    left = most_bytes
    for content in storage.read_many([task.path("texts.arrow") for task in tasks]):
        texts = pa.ipc.open_file(pa.py_buffer(content)).read_all()["text"].combine_chunks() if content else found[0]
        texts = texts.chunk(0) if isinstance(texts, pa.ChunkedArray) else texts
        ends = np.cumsum(pc.binary_length(texts).to_numpy(zero_copy_only=False))
        fits = int(np.searchsorted(ends, left, "right"))
        found.append(texts.slice(0, fits))
        if fits < len(texts):
            break
        left -= int(ends[-1]) if len(ends) else 0
    return pa.concat_arrays(found)
