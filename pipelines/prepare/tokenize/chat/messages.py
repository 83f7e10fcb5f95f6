"""Conversations as Arrow columns: all messages one after the other, and which of them belong to a row.

    row 0   [{role: user, content: "hi"}, {role: assistant, content: "yes?"}]
    row 1   [{role: user, content: "bye"}]

    flat      user "hi" | assistant "yes?" | user "bye"
    offsets   0 2 3                                      row i has the messages offsets[i] to offsets[i + 1]

A row is *plain* if each of its messages has a role and a content, both strings, and nothing else. Others have tool
calls, parts of several kinds, or something missing: they are looked at one by one, as Python objects.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.tokenize.ragged import offsets_of

__all__ = ["Conversations", "Message", "Rejected", "check_printed", "checked"]

Message = dict[str, Any]

_MAX_DETAIL = 300


class Rejected(Exception):
    """A conversation cannot be used: the reason as the ledger counts it, and what there is to say beyond it."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = " ".join(detail.split())[:_MAX_DETAIL]


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
        """From columns as the source has them: lists of messages."""
        lengths = pc.list_value_length(messages).fill_null(0).to_numpy(zero_copy_only=False)
        return cls(flat=messages.flatten(), offsets=offsets_of(lengths), tools=tools)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Messages of each conversation, int64 [N]."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """The row of each message, int64 [M]."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def keep(self, kept: np.ndarray, *, rows: np.ndarray) -> Conversations:
        """The conversations `rows` (ascending indices) with those of their messages that are `kept` (bool [M])."""
        chosen = np.zeros(len(self), bool)
        chosen[rows] = True
        owners = self.owners
        indices = np.flatnonzero(kept & chosen[owners])
        lengths = np.bincount(owners[indices], minlength=len(self))[rows]
        tools = None if self.tools is None else self.tools.take(pa.array(rows))
        return Conversations(flat=self.flat.take(pa.array(indices)), offsets=offsets_of(lengths), tools=tools)

    @functools.cached_property
    def fields(self) -> dict[str, pa.Array]:
        """The messages' fields as columns [M], null where a message has none; empty if messages are no structs."""
        if not pa.types.is_struct(self.flat.type):
            return {}
        return dict(zip((field.name for field in self.flat.type), self.flat.flatten(), strict=True))

    @functools.cached_property
    def roles(self) -> tuple[np.ndarray, list[str]]:
        """int64 [M] indices into the names of roles, -1 where there is no role; and the names."""
        column = self.fields.get("role")
        if column is None or not _is_text(column.type):
            return self._roles_of_objects()
        encoded = column.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return codes.astype(np.int64), encoded.dictionary.to_pylist()

    @functools.cached_property
    def contents(self) -> pa.Array:
        """The content of each message as a string, '' where it is none [M]."""
        column = self.fields.get("content")
        if column is None or not _is_text(column.type):
            return pa.array([""] * len(self.flat), pa.string())
        return column.fill_null("") if column.null_count else column

    @property
    def content_sizes(self) -> np.ndarray:
        """Bytes of each message's content, if that is a string, int64 [M]."""
        return np.asarray(pc.binary_length(self.contents).to_numpy(zero_copy_only=False), np.int64)

    @functools.cached_property
    def plain(self) -> np.ndarray:
        """Which rows are plain and have no tools, bool [N]."""
        role, content = self.fields.get("role"), self.fields.get("content")
        if role is None or content is None or not (_is_text(role.type) and _is_text(content.type)):
            return np.zeros(len(self), bool)
        usual = _valid(role) & _valid(content)
        for name, column in self.fields.items():
            if name not in ("role", "content"):
                usual &= ~_valid(column)
        plain = np.bincount(self.owners[~usual], minlength=len(self)) == 0
        if self.tools is not None:
            plain &= ~_valid(self.tools)
        return np.asarray(plain & (self.lengths > 0))

    def messages(self, row: int) -> list[Message]:
        """The messages of a row as Python objects, without what is null in them.

        Raises: Rejected if there is none, or one is no message.
        """
        start, stop = self.offsets[row], self.offsets[row + 1]
        return checked(_objects(self.flat.slice(start, stop - start)))

    def tools_of(self, row: int) -> list[Any] | None:
        """The tools of a row, None where there are none. Raises: Rejected if they are not a list of objects."""
        if self.tools is None:
            return None
        tools = _objects(self.tools.slice(row, 1))[0]
        if isinstance(tools, str):
            try:
                tools = json.loads(tools) if tools.strip() else None
            except ValueError as error:
                raise Rejected("tools_not_json", str(error)) from error
        if not tools:
            return None
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise Rejected("tools_not_json", f"{type(tools).__name__}, expected a list of objects")
        return tools

    def _roles_of_objects(self) -> tuple[np.ndarray, list[str]]:
        names: dict[str, int] = {}
        codes = np.full(len(self.flat), -1, np.int64)
        for index, message in enumerate(_objects(self.flat)):
            if isinstance(message, dict) and isinstance(role := message.get("role"), str):
                codes[index] = names.setdefault(role, len(names))
        return codes, list(names)


def checked(messages: list[Any]) -> list[Message]:
    """The messages without what is null in them, as chat templates take them.

    Raises: Rejected if there is none, one has no role, nothing but a role, or content that is not text.
    """
    if not messages:
        raise Rejected("messages_empty")
    without_nulls = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Rejected("role_missing", f"message {index}")
        kept = {name: value for name, value in message.items() if value is not None}
        if kept.keys() == {"role"}:
            raise Rejected("content_null", f"message {index} has nothing but the role {kept['role']!r}")
        _check_content(kept.get("content", ""), index)
        without_nulls.append(kept)
    return without_nulls


def check_printed(messages: Sequence[Message], text: str) -> None:
    """Looks whether the template takes contents that are lists of parts, or just has them printed by Python.

    Raises: Rejected if a list, or an object in it, stands in the text as Python writes it.
    """
    for index, message in enumerate(messages):
        content = message.get("content", "")
        if isinstance(content, str):
            continue
        parts = [content, *content] if isinstance(content, list) else [content]
        if any(str(part) in text for part in parts if part):
            raise Rejected("content_not_text", f"message {index} holds a list of parts, which the template cannot read")


def _check_content(content: Any, index: int) -> None:
    if isinstance(content, str):
        return
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            kind = part.get("type", "object") if isinstance(part, dict) else type(part).__name__
            raise Rejected("content_not_text", f"message {index} holds {kind}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _valid(column: pa.Array) -> np.ndarray:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)


def _objects(column: pa.Array) -> list[Any]:
    return [_decoded(value, column.type) for value in column.to_pylist()]


def _decoded(value: Any, kind: pa.DataType) -> Any:
    """The value as `datasets` gives it: what it keeps as JSON, because rows differ in type, is read."""
    if value is None:
        return None
    if str(kind) == "extension<arrow.json>":
        return json.loads(value)
    if pa.types.is_struct(kind):
        return {field.name: _decoded(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_decoded(each, kind.value_type) for each in value]
    return value
