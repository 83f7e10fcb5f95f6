"""Checks of one conversation, and its conversion to the form that chat templates expect.

The processes that run templates (`renderer`) import it, so it imports nothing heavier than PyArrow.
"""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

Message = dict[str, Any]

# Reasons for rejection: a row exceeds a limit; the template is invalid, or needs a date, and so serves no row at all.
OVER_LIMIT, INVALID, DATE_UNKNOWN = "template_limit", "template_invalid", "template_date"

# The conversation that templates are tried on.
QUESTION: Message = {"role": "user", "content": "what is it"}
ANSWER: Message = {"role": "assistant", "content": "that one"}

_MAX_DETAIL = 300
# Names of the same field. Templates read the first or the second (as in `transformers` 5.23).
_REASONING = ("reasoning_content", "thinking", "reasoning")


class Rejected(Exception):
    """Error for an unusable conversation, with the reason that the ledger counts and a detail for people."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = " ".join(detail.split())[:_MAX_DETAIL]


def objects_of(column: pa.Array) -> list[Any]:
    """Return a column as Python objects. Parses the JSON that `datasets` stores for values of varying types."""
    values: list[Any] = column.to_pylist()
    return [_parsed(value, column.type) for value in values] if "arrow.json" in str(column.type) else values


def _parsed(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if str(kind) == "extension<arrow.json>":
        return json.loads(value)
    if pa.types.is_struct(kind):
        return {field.name: _parsed(value[field.name], field.type) for field in kind}
    return [_parsed(each, kind.value_type) for each in value] if isinstance(value, list) else value


def are_plain(column: pa.Array) -> bool:
    """Return whether every message has exactly a role and a content, and both are texts."""
    flat = column.flatten()
    if not pa.types.is_struct(flat.type) or {field.name for field in flat.type} != {"role", "content"}:
        return False
    fields = [flat, *flat.flatten()]
    texts = (pa.string(), pa.large_string())
    return all(each.null_count == 0 for each in fields) and all(each.type in texts for each in fields[1:])


def checked_message(message: Any, index: int) -> Message:
    """Return a message as chat templates expect it: without null fields, and of JSON types only.

    Raises: Rejected if it has no role, nothing but a role, or content that is not text.
    """
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Rejected("role_missing", f"message {index}")
    kept = {name: value for name, value in message.items() if value is not None}
    if kept.keys() == {"role"}:
        raise Rejected("content_null", f"message {index} has nothing but the role {kept['role']!r}")
    content = kept.get("content", "")
    for part in content if isinstance(content, list) else [] if isinstance(content, str) else [content]:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            kind = part.get("type", "object") if isinstance(part, dict) else type(part).__name__
            raise Rejected("content_not_text", f"message {index} holds {kind}")
    kept = _json_types(kept)
    reasoning = next((kept[name] for name in _REASONING if name in kept), None)
    return kept if reasoning is None else {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def checked_tools(tools: Any) -> list[Any] | None:
    """Return a conversation's tools, or None if it has none. Raises: Rejected if they are not a list of objects."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except ValueError as error:
            raise Rejected("tools_not_json", str(error)) from error
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise Rejected("tools_not_json", f"{type(tools).__name__}, expected a list of objects")
    return [_json_types(tool) for tool in tools]


def check_parts_read(messages: Sequence[Message], text: bytes) -> None:
    """Check that the template reads contents that are lists of parts, and does not just print them.

    Raises: Rejected if the text contains a list, or an object in it, as Python prints it.
    """
    for index, message in enumerate(messages):
        content = message.get("content", "")
        if isinstance(content, str):
            continue
        parts = [content, *content] if isinstance(content, list) else [content]
        if any(str(part).encode() in text for part in parts if part):
            raise Rejected("content_not_text", f"message {index} holds a list of parts, which the template cannot read")


def _json_types(value: Any) -> Any:
    """Return the value with a placeholder for whatever JSON cannot hold, as `transformers` 5.23 does."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, dict):
        return {name: _json_types(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_json_types(each) for each in value)
    return f"<{type(value).__name__}>"
