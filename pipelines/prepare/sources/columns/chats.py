"""Conversations as people have them: recognised by their columns, and turned into messages with `role` and `content`.

    messages      a list of {role, content}, or of {from, value}       as it is, or as ShareGPT below
    ShareGPT      conversations: [{from: human, value: "hi"}, ...]     from is the role, value the content
    prompt and    texts                                                the user's message, the assistant's answer
    completion    lists of messages                                    one after the other
    Alpaca        instruction, output, and perhaps input               the user's message: the instruction, and on a new
                                                                       line the input, if any; the answer: the output

The first of these whose columns are there is taken, in this order; --messages-column names a column instead.

Fields are renamed, and messages of prompt and completion joined, as by TRL 1.16 (`data_utils.maybe_convert_to_chatml`,
`SFTTrainer`). The roles human and gpt become user and assistant, and the input follows the instruction on a line of its
own, as in Axolotl 0.19 (`prompt_strategies.chat_template.ChatTemplatePrompter`, `prompters.AlpacaPrompter` in the style
chatml). TRL tokenizes a prompt and a completion that are texts without a template, and learns completions alone; here
texts are messages, and the template says what is learned: every answer.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.sources.columns.labels import is_text, list_lengths
from pipelines.prepare.sources.resolve.features import Columns

_ROLES = {"human": "user", "gpt": "assistant"}
# The columns that are needed for each form, and those that may be there.
_FORMS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "messages": (("messages",), ()),
    "ShareGPT": (("conversations",), ()),
    "prompt and completion": (("prompt", "completion"), ()),
    "Alpaca": (("instruction", "output"), ("input",)),
}
FORMS = "messages, conversations, prompt with completion, or instruction with output"
# The columns that may hold conversations, if none is named.
CANDIDATES = tuple(name for needed, more in _FORMS.values() for name in (*needed, *more))


def recognised(columns: Collection[str]) -> dict[Any, str]:
    """Return the columns of the first form that is there, by purpose; the column `messages` if there is none."""
    for needed, more in _FORMS.values():
        if set(needed) <= set(columns):
            found = (*needed, *(name for name in more if name in columns))
            return {name if len(needed) > 1 else "messages": name for name in found}
    return {"messages": "messages"}


def described(nested: Mapping[Any, str], columns: Columns) -> str:
    """Return the form of conversations and its columns, in words; empty if there are none."""
    used = {purpose: name for purpose, name in nested.items() if purpose in (*CANDIDATES, "messages")}
    if "messages" in used:
        form = "ShareGPT" if is_sharegpt(columns[used["messages"]].kind) else "messages"
    else:
        form = next((name for name, (needed, _) in _FORMS.items() if set(needed) <= set(used)), "")
    return f"{form} ({', '.join(used.values())})" if form else ""


def is_sharegpt(kind: pa.DataType) -> bool:
    """Return whether values are lists of messages with `from` and `value`, which are texts."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return "role" not in fields and all(name in fields and is_text(fields[name]) for name in ("from", "value"))


def as_messages(nested: Mapping[Any, pa.Array]) -> dict[Any, pa.Array]:
    """Return the columns by purpose with `messages` in place of those of another form."""
    others = {purpose: column for purpose, column in nested.items() if purpose not in CANDIDATES}
    if "messages" in nested:
        return {"messages": _renamed(nested["messages"]), **others}
    if "prompt" in nested:
        return {"messages": _joined(nested["prompt"], nested["completion"]), **others}
    if "instruction" in nested:
        asked = nested["instruction"]
        if "input" in nested:
            given = pc.fill_null(nested["input"].cast(asked.type), "")
            asked = pc.if_else(
                pc.equal(given, ""), asked, pc.binary_join_element_wise(asked, given, pa.scalar("\n", asked.type))
            )
        return {"messages": _turns(asked, nested["output"]), **others}
    return others


def _renamed(messages: pa.Array) -> pa.Array:
    """Return messages with `role` and `content` for `from` and `value`, and other fields as they are."""
    if not is_sharegpt(messages.type):
        return messages
    items = messages.flatten()
    names = [{"from": "role", "value": "content"}.get(field.name, field.name) for field in items.type]
    columns = dict(zip(names, items.flatten(), strict=True))
    for found, role in _ROLES.items():
        roles = columns["role"]
        columns["role"] = pc.if_else(pc.equal(roles, found), pa.scalar(role, roles.type), roles)
    return _lists(pa.StructArray.from_arrays(list(columns.values()), list(columns)), list_lengths(messages))


def _joined(prompts: pa.Array, completions: pa.Array) -> pa.Array:
    if is_text(prompts.type):
        return _turns(prompts, completions)
    parts = [_renamed(prompts), _renamed(completions)]
    lengths_2N = np.stack(list(map(list_lengths, parts)))
    flat = pa.concat_tables(
        [pa.Table.from_struct_array(part.flatten()) for part in parts], promote_options="permissive"
    ).combine_chunks()
    # Messages of row i of both columns, at their places among all prompts, then all completions.
    owners = np.concatenate([np.repeat(np.arange(len(prompts)), lengths) for lengths in lengths_2N])
    order = np.argsort(owners, kind="stable")
    return _lists(flat.take(pa.array(order)).to_struct_array().combine_chunks(), lengths_2N.sum(axis=0))


def _turns(asked: pa.Array, answers: pa.Array) -> pa.Array:
    """Return conversations of a question and its answer."""
    count = len(asked)
    contents = pa.concat_arrays([asked, answers.cast(asked.type)])
    order = np.arange(2 * count).reshape(2, count).T.ravel()
    roles = pa.array(["user", "assistant"] * count, pa.string())
    messages = pa.StructArray.from_arrays([roles, contents.take(pa.array(order))], ["role", "content"])
    return _lists(messages, np.full(count, 2))


def _lists(items: pa.Array, lengths: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items)
