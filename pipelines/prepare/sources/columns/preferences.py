"""Recognize preference pairs (a prompt, a chosen and a rejected answer) by their columns, and convert them.

docs/how-to/layouts/preference.md lists the known formats. The first format with all its columns in every split is used.
The rules are from TRL 1.16 (`DPOTrainer._prepare_dataset`, `data_utils.extract_prompt`) and LLaMA-Factory 0.9.5
(`data.converter`, ranking).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from pipelines.prepare.sources.columns import chats
from pipelines.prepare.sources.columns.labels import is_text
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
        return {"prompt": named["prompt"], **answers, **chats.optional(chats.EVERY, splits)}
    needed, more = next(columns for columns in _FORMS.values() if set(columns[0]) <= set(common))
    asked = {chats.PURPOSES.get(name, name): name for name in needed}
    return {**asked, **answers, **chats.optional((*more, *chats.EVERY), splits)}


def _are_texts(nested: Mapping[Any, str], columns: Columns) -> bool:
    used = [columns[nested[purpose]].kind for purpose in TEXTS if purpose in nested]
    return "messages" not in nested and "instruction" not in nested and all(map(is_text, used))


def _describe(nested: Mapping[Any, str], _: Columns) -> str:
    purposes = {chats.PURPOSES.get(name, name): form for form, ((name, *_), _) in list(_FORMS.items())[:-1]}
    form = next((form for purpose, form in purposes.items() if purpose in nested), "implicit prompt")
    return f"{form} ({', '.join(nested.values())})"


FINDER = chats.ColumnFinder(
    candidates=(*TEXTS, *chats.CANDIDATES),
    find=_find,
    texts=TEXTS,
    are_texts=_are_texts,
    describe=_describe,
    remedy="name the answers with --chosen-column and --rejected-column",
)


def as_pairs(nested: Mapping[Any, pa.Array]) -> dict[Any, pa.Array]:
    """Convert both answers, `chosen` and `rejected`, to lists of messages.

    An explicit prompt becomes the column `messages`. Other columns stay.
    """
    asked = chats.as_messages({purpose: column for purpose, column in nested.items() if purpose not in ANSWERS})
    systems = (
        nested.get("system") if "messages" not in asked else None
    )  # without an explicit prompt, it begins both answers
    return {**asked, **{purpose: chats.as_answers(nested[purpose], systems) for purpose in ANSWERS}}
