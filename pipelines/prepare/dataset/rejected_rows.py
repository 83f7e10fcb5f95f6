"""Rejected rows: their counts by reason, the first three, and a file that lists all. Filtered rows are only counted."""

import collections
import dataclasses
import json
import tempfile
import weakref
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.plan.planning import RowRanges
from pipelines.prepare.sources.rows.unused_rows import NAMED_ROWS, RejectedRow, split_reasons, without_reasons
from tfrecord_io.errors import FormatError
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import WRONG, decoded, mapping

_ROW_BYTES = 4096
# JSON text within JSON may take six bytes per byte, because of escapes.
_MOST_LINE_BYTES = 1 << 20
_REMAKE = "run `prep-tfrecords verify --repair` on the dataset, which writes it again"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RejectedContent(RejectedRow):
    """Rejected row with its content as JSON text, cut after 4 KB."""

    content: str


class RejectedRows:
    """Collects a task's rejected rows. `rejected`, `filtered`: counts by reason. `row_ranges`: rows the task reads."""

    def __init__(self, row_ranges: RowRanges) -> None:
        self.rejected, self.filtered = collections.Counter[str](), collections.Counter[str]()
        self.first: list[RejectedRow] = []
        self._row_ranges = row_ranges
        self._lines = tempfile.SpooledTemporaryFile(_MOST_LINE_BYTES)  # noqa: SIM115 - open as long as this object lives
        weakref.finalize(self, self._lines.close)

    def add(self, batch: pa.RecordBatch, reasons: np.ndarray, numbers: np.ndarray, details: Mapping[int, str]) -> None:
        """Add the rejected rows of `batch`, and count the filtered rows.

        `reasons` object [N]: why a row is rejected or filtered, or ''. `numbers` int64 [N]: the rows' numbers in the
        split. `details`: explanations of reasons, by index in the batch.
        """
        filtered, rejected = split_reasons(reasons)
        self.filtered.update(filtered)
        for index in rejected:
            reason, number = str(reasons[index]), int(numbers[index])
            self.rejected[reason] += 1
            detail = details.get(index, "")
            if len(self.first) < NAMED_ROWS:
                self.first.append(RejectedRow(row=number, reason=reason, detail=detail))
            block = next([start, stop] for start, stop in self._row_ranges if start <= number < stop)
            line = {"row": number, "block": block, "reason": reason, **({"detail": detail} if detail else {})}
            line["content"] = _content(without_reasons(batch.slice(index, 1)))
            self._lines.write((json.dumps(line, ensure_ascii=False) + "\n").encode())

    def write(self, path: str, *, inside: str | None = None, replacing: int | None = None) -> None:
        """Write the rows to `path` as JSON lines; without rows, delete the file. See `storage.write_atomic`."""
        if self._lines.tell():
            self._lines.seek(0)
            chunks = iter(lambda: self._lines.read(_MOST_LINE_BYTES), b"")
            storage.write_atomic(path, chunks, inside=inside, replacing=replacing)
        elif replacing != 0:  # 0: a file at `path` is not ours
            storage.delete(path, inside=inside)


def read(path: str) -> Iterator[RejectedContent]:
    """Yield the rows in a file of rejected rows. Raises: FileNotFoundError; FormatError if damaged; OutputError."""
    with storage.read_stream(path) as stream:
        while line := stream.readline(_MOST_LINE_BYTES):
            try:
                row = decoded(RejectedContent, {"content": "", "detail": "", **mapping(json_fields.load(line))})
            except WRONG as error:
                raise FormatError(f"{path}: not a list of rejected rows ({error!r:.100})", remedy=_REMAKE) from error
            yield row


def _content(row: pa.RecordBatch) -> str:
    content: dict[str, object] = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        value = (column.cast(pa.large_binary()) if is_text else column)[0].as_py()
        content[name] = value.decode("utf-8", "backslashreplace") if is_text and value is not None else value
    whole = json.dumps(content, ensure_ascii=False, default=str)
    return whole.encode("utf-8", "replace")[:_ROW_BYTES].decode("utf-8", "ignore")
