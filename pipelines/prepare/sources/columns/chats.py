"""Recognition of conversations by their columns, and conversion to messages with `role` and `content`.

    messages      a list of {role, content}, or of {from, value}       as it is, or as ShareGPT below
    ShareGPT      conversations: [{from: human, value: "hi"}, ...]     from is the role, value the content
    prompt and    texts                                                the user's message, the assistant's answer
    completion    lists of messages                                    one after the other
    Alpaca        instruction, output, and perhaps input               the user's message: the instruction, and on a new
                                                                       line the input, if any; the answer: the output

The first form, in this order, whose columns all exist is used; --messages-column names a column instead.

Fields are renamed, and messages of prompt and completion joined, as in TRL 1.16 (`data_utils.maybe_convert_to_chatml`,
`SFTTrainer`). The roles human and gpt become user and assistant, and the input follows the instruction on a line of its
own, as in Axolotl 0.19 (`prompt_strategies.chat_template.ChatTemplatePrompter`, `prompters.AlpacaPrompter` in the style
chatml). TRL tokenizes a prompt and a completion that are texts without a chat template, and trains on completions
alone; here texts become messages, and the template decides what is trained on: every answer.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.sources.columns.labels import is_text, list_lengths
from pipelines.prepare.sources.resolve.features import Columns

_ROLES = {"human": "user", "gpt": "assistant"}
# Required and optional columns of each form.
_FORMS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "messages": (("messages",), ()),
    "ShareGPT": (("conversations",), ()),
    "prompt and completion": (("prompt", "completion"), ()),
    "Alpaca": (("instruction", "output"), ("input",)),
}
FORMS = "messages, conversations, prompt with completion, or instruction with output"
# Columns that may hold conversations if --messages-column is not given.
CANDIDATES = tuple(name for needed, more in _FORMS.values() for name in (*needed, *more))


def recognised(columns: Collection[str]) -> dict[Any, str]:
    """Return the columns of the first form found, by purpose; the default is the column `messages`."""
    for needed, more in _FORMS.values():
        if set(needed) <= set(columns):
            found = (*needed, *(name for name in more if name in columns))
            return {name if len(needed) > 1 else "messages": name for name in found}
    return {"messages": "messages"}


def described(nested: Mapping[Any, str], columns: Columns) -> str:
    """Return the form of conversations and its columns, such as `ShareGPT (conversations)`; empty without any."""
    used = {purpose: name for purpose, name in nested.items() if purpose in (*CANDIDATES, "messages")}
    if "messages" in used:
        form = "ShareGPT" if is_sharegpt(columns[used["messages"]].kind) else "messages"
    else:
        form = next((name for name, (needed, _) in _FORMS.items() if set(needed) <= set(used)), "")
    return f"{form} ({', '.join(used.values())})" if form else ""


def is_sharegpt(kind: pa.DataType) -> bool:
    """Return whether a type is a list of messages with text fields `from` and `value`, and without `role`."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return "role" not in fields and all(name in fields and is_text(fields[name]) for name in ("from", "value"))


def as_messages(nested: Mapping[Any, pa.Array]) -> dict[Any, pa.Array]:
    """Return the columns by purpose, with conversations of any form converted to one column `messages`."""
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
    """Convert ShareGPT messages to `role` and `content`, keeping other fields; return other messages unchanged."""
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
    # Row of each message, for all prompts and then all completions; a stable sort by row puts prompts first.
    owners = np.concatenate([np.repeat(np.arange(len(prompts)), lengths) for lengths in lengths_2N])
    order = np.argsort(owners, kind="stable")
    return _lists(flat.take(pa.array(order)).to_struct_array().combine_chunks(), lengths_2N.sum(axis=0))


def _turns(asked: pa.Array, answers: pa.Array) -> pa.Array:
    """Build one conversation per row: a user's question and the assistant's answer."""
    count = len(asked)
    contents = pa.concat_arrays([asked, answers.cast(asked.type)])
    order = np.arange(2 * count).reshape(2, count).T.ravel()
    roles = pa.array(["user", "assistant"] * count, pa.string())
    messages = pa.StructArray.from_arrays([roles, contents.take(pa.array(order))], ["role", "content"])
    return _lists(messages, np.full(count, 2))


def _lists(items: pa.Array, lengths: np.ndarray) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items)
