"""Recognize conversations by their columns, and convert them to messages with `role` and `content`.

docs/how-to/layouts/chat.md lists the forms. The first form with all its columns is used. An optional column is used
if it exists in every split with a suitable type. Sources of these rules:

    TRL 1.16              names of fields, order of prompt and completion, learning only completions, text pairs without
                          a template, columns of every form (`data_utils.maybe_convert_to_chatml`,
                          `SFTTrainer._prepare_dataset`)
    Axolotl 0.19          human and gpt (`prompt_strategies.chat_template.ChatTemplatePrompter`)
    LLaMA-Factory 0.9.5   function calls, observations, system, Alpaca's history, bare functions in JSON tools
                          (`data.converter.SharegptDatasetConverter`, `AlpacaDatasetConverter`, `data.tool_utils`)
    ShareGPT's dumps      bing, chatgpt and bard as assistants
"""

import functools
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.options.source_config import CHATS
from pipelines.prepare.options.suggestions import listing
from pipelines.prepare.sources.columns.labels import is_text, list_lengths
from pipelines.prepare.sources.columns.messages import (
    FIELDS,
    FUNCTION_CALL,
    OF_PROMPT,
    ROLES,
    THOUGHT,
    is_json,
    objects_of,
    renamed,
    whole_function,
)
from pipelines.prepare.sources.parquet.stored_columns import is_list
from pipelines.prepare.sources.resolve.features import Columns

EVERY = ("tools", "chat_template_kwargs")
_MORE = {"ShareGPT": ("system",), "Alpaca": ("input", "system", "history")}
_FORMS = {form: (needed, (*_MORE.get(form, ()), *EVERY)) for form, needed in CHATS.items()}
FORMS = ", ".join(" with ".join(needed) for needed in CHATS.values())
CANDIDATES = tuple(dict.fromkeys(name for needed, more in _FORMS.values() for name in (*needed, *more)))
PURPOSES = {"conversations": "messages", "chat_template_kwargs": "options"}
PAIR: tuple[Literal["prompt", "completion"], ...] = ("prompt", "completion")
OPTIONAL = tuple(dict.fromkeys(PURPOSES.get(name, name) for _, more in _FORMS.values() for name in more))


def recognised(splits: Sequence[Columns], named: Mapping[Any, str]) -> dict[Any, str]:
    """Return the columns of the first matching form, by purpose. `named`: the columns that the user named."""
    if not named.keys().isdisjoint(PAIR):
        return {**{part: named.get(part, part) for part in PAIR}, **optional(EVERY, splits)}
    common = [name for name in splits[0] if all(name in known for known in splits)]
    needed, more = next((form for form in _FORMS.values() if set(form[0]) <= set(common)), _FORMS["messages"])
    columns = {PURPOSES.get(name, name): name for name in needed}
    if name := named.get("messages"):
        is_other = name in splits[0] and is_sharegpt(splits[0][name].kind)
        columns, more = {"messages": name}, _FORMS["ShareGPT" if is_other else "messages"][1]
    return {**columns, **optional(more, splits)}


def optional(names: Sequence[str], splits: Sequence[Columns]) -> dict[Any, str]:
    """Return, by purpose, the optional columns that have a suitable type in every split."""
    fitting = [name for name in names if all(name in known and _fits(name, known[name].kind) for known in splits)]
    return {PURPOSES.get(name, name): name for name in fitting}


def are_text_pairs(nested: Mapping[Any, str], columns: Columns) -> bool:
    """Return whether the conversations are pairs of texts: a prompt and a completion."""
    return all(part in nested and is_text(columns[nested[part]].kind) for part in PAIR)


def _fits(name: str, kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    if name == "history":
        return is_list(kind) and is_list(kind.value_type) and is_text(kind.value_type.value_type)
    is_other = name == "chat_template_kwargs" and pa.types.is_struct(kind)
    return is_text(kind) or is_other or (name in EVERY and (is_json(kind) or (name == "tools" and is_list(kind))))


def described(nested: Mapping[Any, str], columns: Columns) -> str:
    """Return a phrase such as `ShareGPT (conversations)`; empty if no form matches."""
    if "messages" in nested:
        name = nested["messages"]
        form = "ShareGPT" if name == "conversations" or is_sharegpt(columns[name].kind) else "messages"
    else:
        form = next((name for name, (needed, _) in _FORMS.items() if set(needed) <= set(nested)), "")
    return f"{form} ({', '.join(nested.values())})" if form else ""


def form_of(names: Sequence[str]) -> str:
    """Return the remedy for columns that look like conversations, or an empty string."""
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
    """List the unused columns. A struct is used if one of its fields is."""
    names = dict.fromkeys(itertools.chain(*splits))
    return listing([name for name in names if not any(f"{field}.".startswith(f"{name}.") for field in used)], most=10)


def is_sharegpt(kind: pa.DataType) -> bool:
    """Return whether a type is a list of messages with text fields `from` and `value`, without `role`."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return "role" not in fields and all(name in fields and is_text(fields[name]) for name in FIELDS)


def as_messages(nested: Mapping[Any, pa.Array]) -> dict[Any, pa.Array]:
    """Return the columns by purpose; conversations of any form become the column `messages`."""
    nested = {purpose: column for purpose, column in nested.items() if not pa.types.is_null(column.type)}
    parts: list[pa.Array] = []
    if "messages" in nested:
        parts = [with_roles(nested["messages"])]
    elif "completion" in nested:
        parts = [_of_prompt(turns(nested["prompt"], "user")), turns(nested["completion"], "assistant")]
    elif "prompt" in nested:
        parts = [turns(nested["prompt"], "user")]
    elif "instruction" in nested:
        instructions = nested["instruction"]
        if "input" in nested:
            instructions = _lines(instructions, nested["input"])
        history = [_history(nested["history"])] if "history" in nested else []
        answers = [turns(nested["output"], "assistant")] if "output" in nested else []
        parts = [*history, turns(instructions, "user"), *answers]
    others = {purpose: column for purpose, column in nested.items() if purpose not in CANDIDATES or purpose == "tools"}
    if not parts:
        return others
    if "system" in nested:
        parts[0] = after_system(nested["system"], parts[0])
    if "tools" in others and is_text(others["tools"].type) and "prompt" not in nested:
        may_be_bare = _are_sharegpt(nested["messages"]) if "messages" in nested else np.ones(len(parts[0]), bool)
        others["tools"] = pc.if_else(pa.array(may_be_bare), _wrapped(others["tools"]), others["tools"])
    return {"messages": parts[0] if len(parts) == 1 else _joined(parts), **others}


def with_roles(messages: pa.Array) -> pa.Array:
    """Convert lists of messages of any form to messages with `role` and `content`."""
    items = messages.flatten()
    if is_json(items.type):
        return _lists(_as_json(map(renamed, objects_of(items)), items.type), list_lengths(messages))
    if not is_sharegpt(messages.type):
        return messages
    columns = {FIELDS.get(field.name, field.name): items.field(index) for index, field in enumerate(items.type)}
    roles = columns["role"]
    if "tool_calls" not in columns:
        is_call, contents = pc.equal(roles, FUNCTION_CALL), columns["content"]
        columns["content"] = pc.if_else(is_call, pa.scalar("", contents.type), contents)
        calls = pc.if_else(is_call, contents, pa.scalar(None, contents.type))
        columns["tool_calls"] = pc.replace_substring_regex(calls, THOUGHT, "", max_replacements=1)
        thoughts = pc.utf8_trim_whitespace(pc.struct_field(pc.extract_regex(calls, THOUGHT), "thought"))
        if thoughts.null_count < len(thoughts):
            own = columns.get("reasoning_content", pa.nulls(len(thoughts), thoughts.type))
            columns["reasoning_content"] = pc.coalesce(thoughts, own)
    for name, role in ROLES.items():
        columns["role"] = pc.if_else(pc.equal(roles, name), pa.scalar(role, roles.type), columns["role"])
    return _lists(_structs(columns), list_lengths(messages))


def _are_sharegpt(messages: pa.Array) -> np.ndarray:
    items = messages.flatten()
    if not is_json(items.type):
        return np.full(len(messages), is_sharegpt(messages.type))
    owners = np.repeat(np.arange(len(messages)), list_lengths(messages))
    changed = np.array([renamed(message) is not message for message in objects_of(items)], bool)
    return np.bincount(owners[changed], minlength=len(messages)) > 0


def turns(column: pa.Array, role: str) -> pa.Array:
    """Return lists of messages like `with_roles`; each text becomes one message with the role `role`."""
    return with_roles(column) if not is_text(column.type) else _texts(column, [role] * len(column))


def _texts(contents: pa.Array, roles: Sequence[str | None], lengths: np.ndarray | None = None) -> pa.Array:
    items = _structs({"role": pa.array(roles, pa.string()), "content": contents})
    return _lists(items, np.ones(len(contents), np.int64) if lengths is None else lengths)


def _lines(first: pa.Array, second: pa.Array) -> pa.Array:
    second = pc.fill_null(second.cast(first.type), "")
    has_both = pc.and_(pc.not_equal(first, ""), pc.not_equal(second, ""))
    between = pc.if_else(has_both, pa.scalar("\n", first.type), pa.scalar("", first.type))
    return pc.binary_join_element_wise(first, between, second, pa.scalar("", first.type))


def after_system(prompts: pa.Array, messages: pa.Array) -> pa.Array:
    """Put system prompts before the rows' messages, except empty prompts, and rows that begin with a system message."""
    return _joined([_system(prompts, messages), messages]) if not pa.types.is_null(prompts.type) else messages


def _system(prompts: pa.Array, messages: pa.Array) -> pa.Array:
    lengths = list_lengths(messages)
    filled = np.flatnonzero(lengths > 0)
    firsts = objects_of(messages.flatten().take(pa.array((np.cumsum(lengths) - lengths)[filled])))
    has_own = np.zeros(len(messages), bool)
    has_own[filled] = [isinstance(first, dict) and first.get("role") == "system" for first in firsts]
    kept = np.asarray(pc.fill_null(pc.not_equal(prompts, ""), False)) & ~has_own
    contents = prompts.filter(pa.array(kept))
    return _texts(contents, ["system"] * len(contents), kept.astype(np.int64))


def _history(history: pa.Array) -> pa.Array:
    """Convert question-answer pairs to messages. Lists that are not pairs get null roles."""
    pairs = history.flatten()
    counts, lengths = list_lengths(pairs), list_lengths(history)
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    roles = np.where(np.arange(counts.sum()) == firsts, "user", "assistant").astype(object)
    roles[np.repeat(counts != 2, counts)] = None
    ends = np.concatenate([[0], np.cumsum(counts)])
    edges = ends[np.concatenate([[0], np.cumsum(lengths)])]
    return _texts(pairs.flatten(), roles.tolist(), np.diff(edges))


def _of_prompt(messages: pa.Array) -> pa.Array:
    items = messages.flatten()
    if is_json(items.type):
        marked = [
            {**item, OF_PROMPT: True} if isinstance(item, dict) and item.get("role") == "assistant" else item
            for item in objects_of(items)
        ]
        return _lists(_as_json(marked, items.type), list_lengths(messages))
    is_answer = pc.if_else(pc.equal(items.field("role"), "assistant"), True, pa.scalar(None, pa.bool_()))
    columns = {field.name: items.field(index) for index, field in enumerate(items.type)}
    return _lists(_structs({**columns, OF_PROMPT: is_answer}), list_lengths(messages))


def _wrapped(tools: pa.Array) -> pa.Array:
    unique = tools.dictionary_encode()
    changed = [text and _wrapped_text(text) for text in unique.dictionary.to_pylist()]
    return pa.array(changed, tools.type).take(unique.indices)


def _wrapped_text(text: str) -> str:
    try:
        tools = json.loads(text)
    except ValueError:  # the row will be rejected
        return text
    return json.dumps(list(map(whole_function, tools)), ensure_ascii=False) if isinstance(tools, list) else text


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    lengths_PN = np.stack(list(map(list_lengths, parts)))
    items = _concatenated([part.flatten() for part in parts])
    # A stable sort by row keeps the order of the parts.
    owners = np.concatenate([np.repeat(np.arange(len(parts[0])), lengths) for lengths in lengths_PN])
    return _lists(items.take(pa.array(np.argsort(owners, kind="stable"))), lengths_PN.sum(axis=0))


def _concatenated(items: Sequence[pa.Array]) -> pa.Array:
    if not any(is_json(part.type) for part in items):
        try:
            tables = [pa.Table.from_struct_array(part) for part in items]
            whole = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
            return whole.to_struct_array().combine_chunks()
        except (pa.ArrowTypeError, pa.ArrowInvalid):  # the types of a field have no common type
            pass
    return _as_json(itertools.chain(*map(objects_of, items)), pa.json_(pa.large_string()))


def _as_json(messages: Iterable[Any], kind: pa.DataType) -> pa.Array:
    write = functools.partial(json.dumps, ensure_ascii=False, default=lambda value: f"<{type(value).__name__}>")
    texts = pa.array([None if message is None else write(message) for message in messages], kind.storage_type)
    return pa.ExtensionArray.from_storage(kind, texts)


def _structs(columns: Mapping[str, pa.Array]) -> pa.Array:
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def _lists(items: pa.Array, lengths: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items)
