"""Recognize preference pairs (a prompt, a chosen and a rejected answer) by their columns, and convert them.

docs/how-to/layouts/preference.md lists the known formats. The rules are from TRL 1.16 (`DPOTrainer._prepare_dataset`,
`data_utils.extract_prompt`) and LLaMA-Factory 0.9.5 (`data.converter`, ranking).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from pipelines.prepare.sources.columns import chats
from pipelines.prepare.sources.resolve.features import Columns

ANSWERS: tuple[Literal["chosen", "rejected"], ...] = ("chosen", "rejected")
TEXTS: tuple[Literal["prompt", "chosen", "rejected"], ...] = ("prompt", *ANSWERS)
# For each format, the column of the prompt, and the optional columns.
_FORMS = {
    "explicit prompt": (("prompt",), ()),
    "ShareGPT": (("conversations",), ("system",)),
    "Alpaca": (("instruction",), ("input", "system", "history")),
    "implicit prompt": ((), ()),
}


def _find(splits: Sequence[Columns], named: Mapping[Any, str]) -> dict[Any, str]:
    common = [name for name in splits[0] if all(name in known for known in splits)]
    answers = {purpose: named.get(purpose, purpose) for purpose in ANSWERS}
    if "prompt" in named:
        return {"prompt": named["prompt"], **answers, **chats.optional(chats.SHARED, splits)}
    needed, more = next(columns for columns in _FORMS.values() if set(columns[0]) <= set(common))
    prompt = {chats.PURPOSES.get(name, name): name for name in needed}
    return {**prompt, **answers, **chats.optional((*more, *chats.SHARED), splits)}


def _describe(nested: Mapping[Any, str], _: Columns) -> str:
    prompts = {form: {chats.PURPOSES.get(name, name) for name in needed} for form, (needed, _) in _FORMS.items()}
    form = next(form for form, purposes in prompts.items() if purposes <= nested.keys())
    return f"{form} ({', '.join(nested.values())})"


FINDER = chats.ColumnFinder(
    candidates=(*TEXTS, *chats.CANDIDATES),
    find=_find,
    texts=TEXTS,
    describe=_describe,
    remedy="name the answers with --chosen-column and --rejected-column",
)


def as_pairs(nested: Mapping[Any, pa.Array]) -> dict[Any, pa.Array]:
    """Convert columns by purpose: `chosen` and `rejected` to message lists, and prompts to the column `messages`."""
    prompt = chats.as_messages({purpose: column for purpose, column in nested.items() if purpose not in ANSWERS})
    # Without a column of prompts, both answers begin with the system prompt.
    systems = None if "messages" in prompt else nested.get("system")
    return {**prompt, **{purpose: chats.as_answers(nested[purpose], systems) for purpose in ANSWERS}}
