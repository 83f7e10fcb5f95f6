"""Conversations as Arrow columns: all messages one after the other, and which of them belong to a row.

row 0   [{role: user, content: "hi"}, {role: assistant, content: "yes?"}]
row 1   [{role: user, content: "bye"}]

flat      user "hi" | assistant "yes?" | user "bye"
offsets   0 2 3                                      row i has the messages offsets[i] to offsets[i + 1]
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.tokenize.chat.conversation import objects_of
from pipelines.prepare.tokenize.ragged import offsets_of

__all__ = ["Conversations"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversations:
    """N conversations: `flat` are all their messages (structs, or JSON texts), `offsets` int64 [N + 1]. `tools` [N] is
    what each of them may call, if there is such a column.
    """

    flat: pa.Array
    offsets: np.ndarray
    tools: pa.Array | None = None

    @classmethod
    def of(cls, messages: pa.Array, tools: pa.Array | None = None) -> Conversations:
        """Read conversations from the source's columns: lists of messages."""
        lengths = pc.list_value_length(messages).fill_null(0).to_numpy(zero_copy_only=False)
        return cls(flat=messages.flatten(), offsets=offsets_of(lengths), tools=tools)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Number of messages in each conversation, int64 [N]."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """Index of each message's row, int64 [M]."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def keep(self, kept: np.ndarray, *, rows: np.ndarray) -> Conversations:
        """Return the conversations `rows` (ascending indices) with only the messages that are `kept` (bool [M])."""
        chosen = np.zeros(len(self), bool)
        chosen[rows] = True
        owners = self.owners
        indices = np.flatnonzero(kept & chosen[owners])
        lengths = np.bincount(owners[indices], minlength=len(self))[rows]
        tools = None if self.tools is None else self.tools.take(pa.array(rows))
        return Conversations(flat=self.flat.take(pa.array(indices)), offsets=offsets_of(lengths), tools=tools)

    @functools.cached_property
    def fields(self) -> dict[str, pa.Array]:
        """Return the messages' fields as columns [M], null where absent; no columns if messages are not structs."""
        if not pa.types.is_struct(self.flat.type):
            return {}
        return dict(zip((field.name for field in self.flat.type), self.flat.flatten(), strict=True))

    @functools.cached_property
    def roles(self) -> tuple[np.ndarray, list[str]]:
        """Return each message's role, int64 [M], an index into the names returned with it, or -1 without a role."""
        column = self.fields.get("role")
        if column is None or not _is_text(column.type):
            return self._roles_of_objects()
        encoded = column.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return codes.astype(np.int64), encoded.dictionary.to_pylist()

    @property
    def batch(self) -> pa.RecordBatch:
        """Return the columns `messages` and, if there are any, `tools`."""
        columns = {"messages": pa.LargeListArray.from_arrays(pa.array(self.offsets), self.flat)}
        if self.tools is not None:
            columns["tools"] = self.tools
        return pa.RecordBatch.from_pydict(columns)

    def _roles_of_objects(self) -> tuple[np.ndarray, list[str]]:
        names: dict[str, int] = {}
        codes = np.full(len(self.flat), -1, np.int64)
        for index, message in enumerate(objects_of(self.flat)):
            if isinstance(message, dict) and isinstance(role := message.get("role"), str):
                codes[index] = names.setdefault(role, len(names))
        return codes, list(names)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
