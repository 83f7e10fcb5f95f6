"""Convert messages and other nested values to Python objects, and rename ShareGPT's fields and roles.

An Arrow struct can't omit a field, so a null in a struct counts as missing, as in TRL 1.16 (`remove_none_values`),
Axolotl 0.19 and ms-swift. Nulls stay in values that `datasets` stores as JSON.

Processes that run chat templates import this module, so it imports nothing heavier than PyArrow.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

# Marks answers inside a prompt, which are not learned. No source has a field of this name.
OF_PROMPT = "\0prompt"
# ShareGPT's fields and roles. A function_call is an answer that calls tools, as JSON text.
FIELDS = {"from": "role", "value": "content"}
FUNCTION_CALL = "function_call"
# As in LLaMA-Factory 0.9.5 (`data.formatter.FunctionFormatter`).
THOUGHT = "(?s)<think>(?P<thought>.*?)</think>"
ROLES = {
    "human": "user",
    **dict.fromkeys(("gpt", "bing", "chatgpt", "bard", FUNCTION_CALL), "assistant"),
    "observation": "tool",
}


def is_json(kind: pa.DataType) -> bool:
    """Return whether a type is `arrow.json`, which `datasets` uses for values of several types."""
    return str(kind) == "extension<arrow.json>"


def objects_of(column: pa.Array) -> list[Any]:
    """Return a column as Python objects, with parsed JSON and without null fields of structs."""
    read = _reader(column.type)
    return [None if value is None else read(value) for value in column.to_pylist()]


def _reader(kind: pa.DataType) -> Callable[[Any], Any]:
    if is_json(kind):
        return json.loads
    if pa.types.is_struct(kind):
        fields = [(field.name, _reader(field.type)) for field in kind]
        return lambda value: {name: read(value[name]) for name, read in fields if value[name] is not None}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = _reader(kind.value_type)
        return lambda value: [None if entry is None else item(entry) for entry in value]
    return lambda value: value


def whole_function(function: Any) -> Any:
    """Wrap a bare function, or a call of one, in the object that `transformers` expects."""
    is_bare = isinstance(function, dict) and "function" not in function
    return {"type": "function", "function": function} if is_bare else function


def renamed(message: Any) -> Any:
    """Convert a ShareGPT message to `role` and `content`; return others unchanged."""
    if not isinstance(message, dict) or "role" in message or not isinstance(name := message.get("from"), str):
        return message
    converted = {FIELDS.get(field, field): value for field, value in message.items()}
    converted["role"] = ROLES.get(name, name)
    if name == FUNCTION_CALL:
        calls = converted["content"]
        if isinstance(calls, str) and (thought := re.search(THOUGHT, calls)):
            calls = calls.replace(thought[0], "", 1)
            converted["reasoning_content"] = thought[1].strip()
        converted |= {"content": "", "tool_calls": calls if isinstance(calls, str) else json.dumps(calls)}
    return converted
