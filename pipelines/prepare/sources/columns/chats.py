"""Recognize conversations by their columns, and convert them to messages with `role` and `content`.

docs/how-to/layouts/chat.md lists the known formats. The first format with all its columns in every split is used.
Sources of these rules:

    TRL 1.16              field names, prompt before completion, only completions are learned, text pairs need no
                          template, columns of every format (`data_utils.maybe_convert_to_chatml`,
                          `SFTTrainer._prepare_dataset`)
    Axolotl 0.19          roles human and gpt (`prompt_strategies.chat_template.ChatTemplatePrompter`)
    LLaMA-Factory 0.9.5   function calls, observations, system, Alpaca's history, bare functions in JSON tools
                          (`data.converter.SharegptDatasetConverter`, `AlpacaDatasetConverter`, `data.tool_utils`)
    ShareGPT's dumps      roles bing, chatgpt and bard for assistants
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from pipelines.prepare.options.source_config import CHATS
from pipelines.prepare.options.suggestions import listing
from pipelines.prepare.sources.columns.labels import is_text
from pipelines.prepare.sources.columns.messages import FIELDS, OF_PROMPT, is_json, objects_of, renamed, whole_function
from pipelines.prepare.sources.parquet.stored_columns import is_list
from pipelines.prepare.sources.resolve.features import Columns

SHARED = ("tools", "chat_template_kwargs")
_MORE = {"ShareGPT": ("system",), "Alpaca": ("input", "system", "history")}
_FORMS = {form: (needed, (*_MORE.get(form, ()), *SHARED)) for form, needed in CHATS.items()}
FORMS = ", ".join(" with ".join(needed) for needed in CHATS.values())
CANDIDATES = tuple(dict.fromkeys(name for needed, more in _FORMS.values() for name in (*needed, *more)))
PURPOSES = {"conversations": "messages", "chat_template_kwargs": "options"}
PAIR: tuple[Literal["prompt", "completion"], ...] = ("prompt", "completion")
_TEXT_FIELDS = ("role", "content", "tool_calls", "reasoning_content")
_TEXT_MESSAGE = pa.struct([*((name, pa.large_string()) for name in _TEXT_FIELDS), (OF_PROMPT, pa.bool_())])
OPTIONAL = tuple(dict.fromkeys(PURPOSES.get(name, name) for _, more in _FORMS.values() for name in more))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnFinder:
    """How a layout finds its columns by name. A column's purpose is its use, such as `prompt` or `tools`.

    `candidates`: names of all columns that `find` looks for.
    `find(splits, named)`: column names by purpose, from each split's columns and the names that the user gave.
    `texts`: purposes of the columns that, as texts, need no chat template.
    `describe(nested, columns)`: the format and its columns, such as `ShareGPT (conversations)`; '' for no known format.
    `remedy`: advice if columns are missing.
    """

    candidates: tuple[str, ...]
    find: Callable[[Sequence[Columns], Mapping[Any, str]], dict[Any, str]]
    texts: tuple[Any, ...]
    describe: Callable[[Mapping[Any, str], Columns], str]
    remedy: str


def _find(splits: Sequence[Columns], named: Mapping[Any, str]) -> dict[Any, str]:
    if not named.keys().isdisjoint(PAIR):
        return {**{part: named.get(part, part) for part in PAIR}, **optional(SHARED, splits)}
    common = [name for name in splits[0] if all(name in known for known in splits)]
    needed, more = next((form for form in _FORMS.values() if set(form[0]) <= set(common)), _FORMS["messages"])
    columns = {PURPOSES.get(name, name): name for name in needed}
    if "messages" in named:
        columns, more = {"messages": named["messages"]}, _FORMS["messages"][1]
    name = columns.get("messages", "")
    if name in splits[0] and is_sharegpt(splits[0][name].kind):
        more = _FORMS["ShareGPT"][1]
    return {**columns, **optional(more, splits)}


def optional(names: Sequence[str], splits: Sequence[Columns]) -> dict[Any, str]:
    """Return the columns in `names` that every split has with a suitable type, as column names by purpose."""
    fitting = [name for name in names if all(name in known and _fits(name, known[name].kind) for known in splits)]
    return {PURPOSES.get(name, name): name for name in fitting}


def _fits(name: str, kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    if name == "history":
        return is_list(kind) and is_list(kind.value_type) and is_text(kind.value_type.value_type)
    is_other = name == "chat_template_kwargs" and pa.types.is_struct(kind)
    return is_text(kind) or is_other or (name in SHARED and (is_json(kind) or (name == "tools" and is_list(kind))))


def _describe(nested: Mapping[Any, str], columns: Columns) -> str:
    if "messages" in nested:
        name = nested["messages"]
        form = "ShareGPT" if name == "conversations" or is_sharegpt(columns[name].kind) else "messages"
    else:
        form = next((name for name, (needed, _) in _FORMS.items() if set(needed) <= set(nested)), "")
    return f"{form} ({', '.join(nested.values())})" if form else ""


FINDER = ColumnFinder(
    candidates=CANDIDATES,
    find=_find,
    texts=PAIR,
    describe=_describe,
    remedy=f"chats have the columns {FORMS}; name other columns with --messages-column, or with --prompt-column and "
    "--completion-column",
)


def layout_advice(names: Sequence[str]) -> str:
    """Return advice such as "add --layout chat" if columns have the names of chats or preference pairs, or else ''."""
    if {"chosen", "rejected"} <= set(names):
        return (
            "the columns hold preference pairs: add --layout preference; to learn only the chosen answers, "
            "--layout chat --messages-column chosen for lists of messages, or --text-column chosen for texts"
        )
    form = next((form for form, needed in CHATS.items() if set(needed) <= set(names)), "")
    if form:
        return f"the columns hold chats of the form {form} ({', '.join(CHATS[form])}): add --layout chat"
    return ""


def unused(splits: Iterable[Columns], used: Sequence[str]) -> str:
    """Return the names of up to 10 columns not in `used`, as text. A struct is used if one of its fields is."""
    names = dict.fromkeys(itertools.chain(*splits))
    return listing([name for name in names if not any(f"{field}.".startswith(f"{name}.") for field in used)], most=10)


def is_sharegpt(kind: pa.DataType) -> bool:
    """Return whether a type is a list of messages that have text fields `from` and `value`, but no `role`."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return "role" not in fields and all(name in fields and is_text(fields[name]) for name in FIELDS)


def as_messages(nested: Mapping[Any, pa.Array]) -> dict[Any, pa.Array]:
    """Convert a chat's columns, by purpose, to one column `messages` of message lists. Other columns are kept."""
    nested = {purpose: column for purpose, column in nested.items() if not pa.types.is_null(column.type)}
    others = {purpose: column for purpose, column in nested.items() if purpose not in CANDIDATES or purpose == "tools"}
    parts = {purpose: column for purpose, column in nested.items() if purpose not in others}
    if parts.keys().isdisjoint(("messages", "prompt", "instruction")):
        return others
    if parts.keys() == {"messages"} and _have_roles(parts["messages"].type):
        return {**parts, **others}
    rows = [dict(zip(parts, row, strict=True)) for row in zip(*map(objects_of, parts.values()), strict=True)]
    if "tools" in others and is_text(others["tools"].type) and "prompt" not in parts:
        may_be_bare = (
            "messages" not in row or any(renamed(message) is not message for message in row["messages"]) for row in rows
        )
        texts = zip(others["tools"].to_pylist(), may_be_bare, strict=True)
        tools = [_wrapped(text) if text and is_bare else text for text, is_bare in texts]
        others["tools"] = pa.array(tools, others["tools"].type)
    return {"messages": _column(map(_conversation, rows), parts.values()), **others}


def as_answers(column: pa.Array, systems: pa.Array | None = None) -> pa.Array:
    """Convert answers (texts, messages, or lists of them) to message lists. `systems`: system prompt of each answer."""
    if systems is None and _have_roles(column.type):
        return column
    prompts = [None] * len(column) if systems is None else objects_of(systems)
    answers = (_messages(answer, "assistant") for answer in objects_of(column))
    return _column(map(_after_system, prompts, answers), [column])


def _conversation(row: Mapping[str, Any]) -> list[Any]:
    if "messages" in row:
        messages = _messages(row["messages"])
    elif "instruction" in row:
        messages = [message for pair in row.get("history") or () for message in _of_pair(pair or ())]
        messages += _messages("\n".join(filter(None, (row["instruction"], row.get("input")))), "user")
        messages += _messages(row.get("output"), "assistant")
    else:
        messages = _messages(row["prompt"], "user")
        if "completion" in row:
            messages = [*map(_of_prompt, messages), *_messages(row["completion"], "assistant")]
    return _after_system(row.get("system"), messages)


def _messages(value: Any, role: str = "") -> list[Any]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return list(map(renamed, [value] if isinstance(value, dict) else value or ()))


def _of_pair(pair: Sequence[str | None]) -> list[dict[str, Any]]:
    roles = ("user", "assistant") if len(pair) == 2 else [None] * len(pair)
    return [{"role": role, "content": text} for role, text in zip(roles, pair, strict=True)]


def _of_prompt(message: Any) -> Any:
    is_answer = isinstance(message, dict) and message.get("role") == "assistant"
    return {**message, OF_PROMPT: True} if is_answer else message


def _after_system(prompt: str | None, messages: list[Any]) -> list[Any]:
    has_own = bool(messages) and isinstance(messages[0], dict) and messages[0].get("role") == "system"
    return messages if has_own or not prompt else [{"role": "system", "content": prompt}, *messages]


@functools.lru_cache(maxsize=256)
def _wrapped(text: str) -> str:
    try:
        tools = json.loads(text)
    except ValueError:  # the row will be rejected
        return text
    return json.dumps(list(map(whole_function, tools)), ensure_ascii=False) if isinstance(tools, list) else text


def _have_roles(kind: pa.DataType) -> bool:
    return is_list(kind) and pa.types.is_struct(kind.value_type) and not is_sharegpt(kind)


def _column(conversations: Iterable[list[Any]], parts: Iterable[pa.Array]) -> pa.Array:
    rows = list(conversations)
    if all(_holds_texts(part.type) for part in parts):
        return pa.array(rows, pa.large_list(_TEXT_MESSAGE))
    write = functools.partial(json.dumps, ensure_ascii=False, default=lambda value: f"<{type(value).__name__}>")
    items = [None if message is None else write(message) for message in itertools.chain.from_iterable(rows)]
    as_json = pa.array(items, pa.json_(pa.large_string()))
    return pa.LargeListArray.from_arrays(pa.array(np.cumsum([0, *map(len, rows)])), as_json)


def _holds_texts(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        names = {field.name for field in kind}
        return (names <= set(_TEXT_FIELDS) or names == set(FIELDS)) and all(is_text(field.type) for field in kind)
    return _holds_texts(kind.value_type) if is_list(kind) else is_text(kind)
