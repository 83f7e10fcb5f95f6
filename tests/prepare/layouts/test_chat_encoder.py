"""Conversations become the tokens of `tokenizer.apply_chat_template`; the mask is 1 on the assistant's tokens."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from pipelines.prepare.layouts.base import Encoded, LayoutContext
from pipelines.prepare.layouts.chat import ChatEncoder, cuts
from pipelines.prepare.options.config import LayoutConfig, Side
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Rows
from pipelines.prepare.tokenize import tokenization
from pipelines.prepare.tokenize.chat.alignment import Aligner
from pipelines.prepare.tokenize.chat.conversation import Message
from pipelines.prepare.tokenize.chat.template import open_template
from pipelines.prepare.tokenize.engines import Engine, decide, open_reference
from tests.prepare.tokenize.chat.chat_templates import TEMPLATES, chat_tokenizer
from tests.support.tokenizers_zoo import Zoo

DTYPE = np.dtype(np.int32)
ROWS = 150
PIECES = [
    *("hello", " ", "\n", "naïve", "漢字", "👍🏽", "it's", "  two", "<|im_end|>", "</think>", "\t", "\u00a0end"),
    *("[INST]", "</s>", "e\u0301", "x = 3;"),
]


def opened(zoo: Zoo, folder: Path, template: str, *, kind: str = "byte_bpe") -> Any:
    return AutoTokenizer.from_pretrained(chat_tokenizer(zoo, folder, template=template, kind=kind))


def encoder(tokenizer: Any, *, length: int = 10**6, side: Side = "right") -> ChatEncoder:
    """Return an encoder that shares engine and aligner with tokenizers that differ only in their templates."""
    content = tokenizer.backend_tokenizer.to_str()
    if content not in _engines:
        engine, _ = decide(tokenizer, open_reference(tokenizer, dtype=DTYPE), dtype=DTYPE)
        _engines[content] = engine, Aligner(tokenizer, dtype=DTYPE)
    engine, aligner = _engines[content]
    tokenizer.truncation_side = side
    facts, columns = tokenization.facts(tokenizer, name="chats", files={}), ColumnPlan(texts=())
    context = LayoutContext(tokenizer=tokenizer, facts=facts, layout=LayoutConfig(), length=length, columns=columns)
    return ChatEncoder(engine, context, open_template(tokenizer), aligner)


_engines: dict[str, tuple[Engine, Aligner]] = {}


def encoded(made: ChatEncoder, rows: list[list[Message]]) -> Encoded:
    return made.encode(Rows(texts=(), arrays={}, nested={"messages": pa.array(rows)}))


def row(chats: Encoded, index: int) -> tuple[list[int], list[int]]:
    ids, learned = chats.ragged["input_ids"], chats.ragged["loss_mask"]
    place = slice(ids.offsets[index], ids.offsets[index + 1])
    return ids.ids[place].tolist(), learned.ids[place].tolist()


def conversations(*, seed: int, rows: int = ROWS) -> list[list[Message]]:
    rng = random.Random(seed)

    def turn(role: str) -> Message:
        return {"role": role, "content": "".join(rng.choices(PIECES, k=rng.randint(1, 9)))}

    made = []
    for _ in range(rows):
        turns = [turn("system")] if rng.random() < 0.3 else []
        for _ in range(rng.randint(1, 3)):
            turns += [turn("user"), turn("assistant")]
        made.append([*turns, turn("user")] if rng.random() < 0.1 else turns)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "kind"),
    [
        *((template, "byte_bpe") for template in TEMPLATES),
        *(("header", kind) for kind in ("bpe_fallback", "unigram", "wordpiece_uncased", "byte_bpe_bos")),
    ],
)
def test_rows_are_those_of_apply_chat_template(zoo: Zoo, tmp_path: Path, template: str, kind: str) -> None:
    tokenizer = opened(zoo, tmp_path, template, kind=kind)
    rows = conversations(seed=0)
    chats = encoded(encoder(tokenizer), rows)
    assert set(chats.reasons) <= {"", "no_assistant"}
    for index in np.flatnonzero(chats.reasons == "").tolist():
        assert row(chats, index)[0] == tokenizer.apply_chat_template(rows[index])["input_ids"]


def test_masks_are_those_of_generation_markers(zoo: Zoo, tmp_path: Path) -> None:
    tokenizer = opened(zoo, tmp_path, "chatml_marked")
    rows = conversations(seed=2)
    chats = encoded(encoder(tokenizer), rows)
    for index, messages in enumerate(rows):
        theirs = tokenizer.apply_chat_template(messages, return_assistant_tokens_mask=True)
        assert row(chats, index)[1] == theirs["assistant_masks"]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_long_conversation_keeps_as_many_whole_turns_as_fit(zoo: Zoo, tmp_path: Path, side: Side) -> None:
    tokenizer = opened(zoo, tmp_path, "chatml")
    turns = [{"role": "system", "content": "be kind"}]
    for number in range(6):
        turns += [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": "yes " * number}]
    kept = [[turns[0], *turns[-2 * count :]] if side == "left" else turns[: 2 * count + 1] for count in range(1, 7)]
    sizes = [len(tokenizer.apply_chat_template(some)["input_ids"]) for some in kept]
    for count, size in enumerate(sizes[:-1]):
        for length in (size, sizes[count + 1] - 1):
            chats = encoded(encoder(tokenizer, length=length, side=side), [turns])
            assert row(chats, 0)[0] == tokenizer.apply_chat_template(kept[count])["input_ids"]
            assert chats.tokens_cut == sizes[-1] - size
    assert encoded(encoder(tokenizer, length=sizes[0] - 1, side=side), [turns]).reasons.tolist() == ["too_long"]


ROLES = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}


def kept(letters: str, side: Side) -> list[str]:
    return ["".join(letters[at] for at in cut) for cut in cuts([ROLES[letter] for letter in letters], side=side)]


def test_turns_are_cut_from_one_end() -> None:
    assert kept("suauatau", "right") == ["sua", "suaua", "suauata"]
    assert kept("suauatau", "left") == ["su", "suatau"]


@given(st.text("suatd", max_size=9))
def test_what_is_cut_ends_with_an_answer_or_begins_with_the_system_prompt_and_a_question(letters: str) -> None:
    for cut in kept(letters, "right"):
        assert letters.startswith(cut)
        assert cut[-1] == "a"
    opening = letters[: len(letters) - len(letters.lstrip("sd"))]
    for cut in kept(letters, "left"):
        assert cut.startswith(f"{opening}u")
        assert letters.endswith(cut[len(opening) :])
    for conversations in (kept(letters, "right"), kept(letters, "left")):
        sizes = [len(cut) for cut in conversations]
        assert sizes == sorted(set(sizes))
        assert max(sizes, default=0) <= max(0, len(letters) - 1)


def test_a_note_names_the_roles_that_train_has_no_effect_on(zoo: Zoo, tmp_path: Path) -> None:
    made = encoder(opened(zoo, tmp_path, "chatml"))

    def notes(*trains: Any, role: str = "user") -> tuple[str, ...]:
        users = [{"role": role, "content": "q", "train": train} for train in trains]
        column = pa.array([[user, {"role": "assistant", "content": "a", "train": trains[0]}] for user in users])
        return made.notes_on(Rows(texts=(), arrays={}, nested={"messages": column}))

    for value in (True, "true", 1):
        (note,) = notes(value, value, None)
        assert note.startswith('messages of the role user with "train": true are not learned')
    assert notes(False) == notes("no") == notes(None) == notes(True, role="assistant") == ()
