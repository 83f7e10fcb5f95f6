"""Convert messages and other nested values to Python objects, and rename ShareGPT's fields and roles.

An Arrow struct can't omit a field, so a null in a struct counts as missing, as in TRL 1.16 (`remove_none_values`),
Axolotl 0.19 and ms-swift. Nulls stay in values that `datasets` stores as JSON.

Processes that run chat templates import this module, so it imports nothing heavier than PyArrow.
"""

import itertools
import json
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.sources.parquet.stored_columns import is_list

# Marks answers inside a prompt, which are not learned. No source has a field of this name.
OF_PROMPT = "\0prompt"
# ShareGPT's fields and roles. A function_call is an answer that calls tools; its value is JSON text.
FIELDS = {"from": "role", "value": "content"}
_FUNCTION_CALL = "function_call"
# As in LLaMA-Factory 0.9.5 (`data.formatter.FunctionFormatter`).
_THOUGHT = "(?s)<think>(?P<thought>.*?)</think>"
_ROLES = {
    "human": "user",
    **dict.fromkeys(("gpt", "bing", "chatgpt", "bard", _FUNCTION_CALL), "assistant"),
    "observation": "tool",
}


def is_json(kind: pa.DataType) -> bool:
    """Return whether a type is `arrow.json`, which `datasets` uses for columns with values of several types."""
    return str(kind) == "extension<arrow.json>"


def objects_of(column: pa.Array) -> list[Any]:
    """Return a Python object for each row of a column. JSON is parsed, and null fields of structs are left out."""
    kind = column.type
    if is_json(kind):
        return [None if text is None else json.loads(text) for text in column.to_pylist()]
    # Fields and items are converted separately, because `to_pylist` of a nested column takes twice as long.
    if pa.types.is_struct(kind):
        fields = {field.name: objects_of(column.field(index)) for index, field in enumerate(kind)}
        rows = zip(column.is_valid().to_pylist(), *fields.values(), strict=True)
        return [
            {name: value for name, value in zip(fields, values, strict=True) if value is not None} if is_valid else None
            for is_valid, *values in rows
        ]
    if is_list(kind):
        items = iter(objects_of(column.flatten()))
        lengths = pc.list_value_length(column).to_pylist()
        return [None if length is None else list(itertools.islice(items, length)) for length in lengths]
    return column.to_pylist()


def whole_function(function: Any) -> Any:
    """Return a tool, or a call of one, as {"type": "function", "function": ...}, which `transformers` expects."""
    is_bare = isinstance(function, dict) and "function" not in function
    return {"type": "function", "function": function} if is_bare else function


def renamed(message: Any) -> Any:
    """Return a ShareGPT message with the fields `role` and `content`; return other values unchanged."""
    if not isinstance(message, dict) or "role" in message or not isinstance(name := message.get("from"), str):
        return message
    converted = {FIELDS.get(field, field): value for field, value in message.items()}
    converted["role"] = _ROLES.get(name, name)
    if name == _FUNCTION_CALL:
        calls = converted.get("content")
        if isinstance(calls, str) and (thought := re.search(_THOUGHT, calls)):
            calls = calls.replace(thought[0], "", 1)
            converted["reasoning_content"] = thought[1].strip()
        converted |= {"content": "", "tool_calls": calls if isinstance(calls, str | None) else json.dumps(calls)}
    return converted
