"""Rows that could not be used: counted by reason, the first ones named, all of them written down."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from pipelines.prepare import storage
from pipelines.prepare.columns import ColumnPlan
from pipelines.prepare.receipts import NAMED_ROWS, RejectedRow

__all__ = ["Rejects"]

_ROW_BYTES = 4096


class Rejects:
    """The rejected rows of one task."""

    def __init__(self, columns: ColumnPlan) -> None:
        self.by_reason: dict[str, int] = {}
        self.first: list[RejectedRow] = []
        self._columns = columns
        self._lines: list[bytes] = []

    @property
    def count(self) -> int:
        """All rejected rows."""
        return len(self._lines)

    def add(self, batch: pa.RecordBatch, reasons: np.ndarray, numbers: np.ndarray) -> None:
        """Takes the rows of `batch` that have a reason; `numbers` are their row numbers in the split."""
        for index in np.flatnonzero(reasons != "").tolist():
            reason, number = str(reasons[index]), int(numbers[index])
            self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
            if len(self.first) < NAMED_ROWS:
                self.first.append(RejectedRow(row=number, reason=reason))
            self._lines.append(_line(batch.slice(index, 1).to_pylist()[0], row=number, reason=reason))

    def write(self, path: str) -> None:
        """Writes JSON lines to `path`, or removes what an earlier run left there."""
        if self._lines:
            storage.write_bytes(path, b"".join(self._lines))
        else:
            storage.delete(path)


def _line(content: dict[str, object], *, row: int, reason: str) -> bytes:
    text = json.dumps(content, ensure_ascii=False, default=str)
    shown = text.encode("utf-8", "replace")[:_ROW_BYTES].decode("utf-8", "ignore")
    return (json.dumps({"row": row, "reason": reason, "content": shown}, ensure_ascii=False) + "\n").encode()
