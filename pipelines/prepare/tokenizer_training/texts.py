"""Read training texts from the source in batches, because they may be larger than memory."""

import collections
import dataclasses
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.process.progress import Progress
from pipelines.prepare.sources.columns import extraction, messages
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.parquet.groups import in_ranges
from pipelines.prepare.sources.rows.reading import SplitSource
from tfrecord_io.errors import SourceError
from tfrecord_io.manifest import is_filtered

# Rows to sample together, because reading a single row decodes its whole row group.
_RUN = 1000
_MEASURED = 1000
# Not training texts, because each chat template writes these fields of messages differently.
_NOT_SAID = ("role", "type")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowCounts:
    """Counts of rows: trained on, and by reason, rejected or filtered. `text_bytes`: UTF-8 bytes of training text."""

    trained: int
    rejected: dict[str, int]
    filtered: dict[str, int]
    text_bytes: int


def sample(splits: Sequence[SplitSource], *, rows: int) -> list[SplitSource]:
    """Reduce splits to about `rows` rows in total, in evenly spaced runs of consecutive rows."""
    total = sum(split.num_rows for split in splits)
    if rows >= total:
        return list(splits)
    sampled = []
    for split in splits:
        wanted = max(1, rows * split.num_rows // total)
        runs = -(-wanted // _RUN)
        starts = np.arange(runs) * split.num_rows // runs
        stops = starts + np.diff(np.arange(runs + 1) * wanted // runs)
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        ranges = itertools.chain.from_iterable(in_ranges(span, split.ranges) for span in spans)
        sampled.append(dataclasses.replace(split, ranges=tuple(ranges)))
    return sampled


class TrainingTexts:
    """Texts of a source's rows, to train a tokenizer. Each call of `read` reads the source again.

    At its end, `rows` has the counts, and `measured` the first 1,000 texts. Setting `stop` ends it from another thread.
    """

    def __init__(self, splits: Sequence[SplitSource], columns: ColumnPlan) -> None:
        self.num_rows = sum(split.num_rows for split in splits)
        self.stop = threading.Event()
        self.rows: RowCounts | None = None
        self.measured: list[str] = []
        self._columns, self._splits = columns, splits

    def read(self, progress: Progress | None = None) -> Iterator[list[str]]:
        """Yield the texts in batches.

        Raises: SourceError if rows cannot be read, or if all texts are blank; RuntimeError once `stop` is set.
        """
        trained = text_bytes = 0
        unused = collections.Counter[str]()
        self.measured, is_blank = [], True
        for split in self._splits:
            for _, batch in split.read(split.ranges, self._columns.content):
                if self.stop.is_set():
                    raise RuntimeError("the training run was interrupted")
                rows, reasons = extraction.extract(batch, self._columns)
                unused.update(reasons[reasons != ""].tolist())
                trained += len(rows)
                columns = list(rows.texts)
                if "messages" in rows.nested:
                    columns.append(pa.array(_strings(messages.objects_of(rows.nested["messages"])), pa.large_string()))
                for column in columns:
                    text_bytes += pc.sum(pc.binary_length(column)).as_py() or 0
                    strings = column.to_pylist()
                    self.measured += strings[: _MEASURED - len(self.measured)]
                    is_blank = is_blank and not any(map(str.strip, strings))
                    yield strings
                if progress is not None:
                    progress.add(rows=batch.num_rows)
        if is_blank:
            raise SourceError(
                "the chosen rows hold no words: every text is empty, null or left out",
                remedy="check --text-column, and that a --filter leaves rows",
            )
        filtered = {reason: rows for reason, rows in sorted(unused.items()) if is_filtered(reason)}
        rejected = {reason: rows for reason, rows in sorted(unused.items()) if not is_filtered(reason)}
        self.rows = RowCounts(trained=trained, rejected=rejected, filtered=filtered, text_bytes=text_bytes)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings([field for name, field in value.items() if name not in _NOT_SAID])
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
