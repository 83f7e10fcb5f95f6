"""Conversations in every known form: the tokens of `apply_chat_template` on the equivalent messages."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from tests import building
from tests.building import read_manifest, read_rows

Row = dict[str, Any]
CHATS = [
    json.loads(line)["messages"]
    for line in (building.REPOSITORY / "examples/chats/train.jsonl").read_text(encoding="utf-8").splitlines()
][:12]
UNPROMPTED = [chat for chat in CHATS if chat[0]["role"] != "system"]
NAMES = {"user": "human", "assistant": "gpt"}
CHATML = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def _pair(question: str, answer: str) -> list[Row]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _sharegpt(messages: list[Row]) -> list[Row]:
    return [{"from": NAMES.get(turn["role"], turn["role"]), "value": turn["content"], "n": 1} for turn in messages]


# For each form: the rows and their equivalent messages.
FORMS: Mapping[str, tuple[list[Row], list[list[Row]]]] = {
    "messages": ([{"messages": chat, "prompt": "unused", "completion": "unused"} for chat in CHATS], CHATS),
    "messages of from and value": (
        [{"messages": _sharegpt(chat), "system": "Be brief."} for chat in UNPROMPTED],
        [[{"role": "system", "content": "Be brief."}, *chat] for chat in UNPROMPTED],
    ),
    "ShareGPT": ([{"id": f"chat_{n}", "conversations": _sharegpt(chat)} for n, chat in enumerate(CHATS)], CHATS),
    "conversations of roles": ([{"conversations": chat} for chat in CHATS], CHATS),
    "prompt and completion": (
        [{"prompt": f"How many? {n}", "completion": str(n)} for n in range(9)],
        [_pair(f"How many? {n}", str(n)) for n in range(9)],
    ),
    "lists as prompt and completion": ([{"prompt": chat[:-1], "completion": chat[-1:]} for chat in CHATS], CHATS),
    "prompt and completion of from and value": (
        [{"prompt": _sharegpt(chat[:-1]), "completion": chat[-1:]} for chat in CHATS],
        CHATS,
    ),
    "Alpaca": (
        [
            {"instruction": f"Add {n}.", "input": extra, "output": "ü"}
            for n, extra in enumerate(["", "1 + 1", None] * 3)
        ],
        [_pair(f"Add {n}." + (f"\n{extra}" if extra else ""), "ü") for n, extra in enumerate(["", "1 + 1", None] * 3)],
    ),
    "Alpaca without any input": (
        [{"instruction": "Say a.", "input": None, "output": "a"}] * 3,
        [_pair("Say a.", "a")] * 3,
    ),
    "columns of other names": (
        [{"id": n, "rules": "Count.", "question": f"How many? {n}", "response": str(n)} for n in range(9)],
        [[{"role": "system", "content": "Count."}, *_pair(f"How many? {n}", str(n))] for n in range(9)],
    ),
    "Alpaca without input": ([{"instruction": "Say a.", "output": "a"}] * 3, [_pair("Say a.", "a")] * 3),
}

NAMED = {"prompt_column": "question", "completion_column": "response"}
# Texts become messages only if a template is chosen.
OPTIONS: Mapping[str, Row] = {
    "prompt and completion": {"chat_template": "default"},
    "columns of other names": {"chat_template": "default", "system_column": "rules", **NAMED},
}


def _tokens(row: Mapping[str, Any], at: int) -> list[int]:
    return row["input_ids"][at][row["attention_mask"][at] == 1].tolist()


def _large(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _large(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.large_list(_large(kind.value_type))
    return pa.large_string() if pa.types.is_string(kind) else kind


def _parquet(folder: Path, *, train: list[Row]) -> None:
    folder.mkdir()
    table = pa.Table.from_pylist(train)
    table = table.cast(pa.schema([(field.name, _large(field.type)) for field in table.schema]))
    pq.write_table(table, folder / "train.parquet", row_group_size=4)


@pytest.mark.parametrize(
    ("form", "write"), [*((form, building.source) for form in FORMS), ("ShareGPT", _parquet), ("Alpaca", _parquet)]
)
def test_tokens_are_those_of_the_template_on_the_messages(
    form: str, write: Callable[..., object], tmp_path: Path
) -> None:
    rows, messages = FORMS[form]
    write(tmp_path / "d", train=rows)
    chosen = {"layout": "chat", "max_length": 400, "no_shuffle": True, "tokenizer": building.tokenizer("chats")}
    root = building.built(tmp_path / "d", **chosen, **OPTIONS.get(form, {}))
    columns, tokenizer = read_rows(root, "train"), AutoTokenizer.from_pretrained(building.tokenizer("chats"))
    expected = [tokenizer.apply_chat_template(conversation)["input_ids"] for conversation in messages]
    assert [_tokens(columns, at) for at in range(len(rows))] == expected
    assert columns["loss_mask"].any(axis=1).all()


def test_a_part_that_is_null_rejects_its_row(tmp_path: Path) -> None:
    pairs = [("a", "b"), (None, "b"), ("a", None)]
    place = building.source(tmp_path / "d", train=[{"prompt": one, "completion": other} for one, other in pairs])
    root = building.built(place, layout="chat", tokenizer=building.tokenizer("chats"), max_error_rate=0.9)
    assert dict(read_manifest(root).splits["train"].ledger.rejected) == {"completion_null": 1, "prompt_null": 1}
    assert building.command("verify", root).status == 0


def test_what_is_no_known_form_is_told_the_known_ones(tmp_path: Path) -> None:
    place = building.source(tmp_path / "d", train=[{"question": "a", "answer": "b"}])
    chosen = ("--layout", "chat", "--tokenizer", building.tokenizer("chats"))
    cause, remedy = building.command("plan", place, *chosen).error
    assert cause == "split 'train' has no column 'messages'"
    assert "question, answer; chats have the columns messages, conversations, prompt with completion" in remedy
    assert remedy.endswith("or with --prompt-column and --completion-column")


@pytest.mark.parametrize(
    ("layout", "named", "cause"),
    [
        ("chat", {**NAMED, "messages_column": "turns"}, "--messages-column with --prompt-column"),
        ("chat", {**NAMED, "system_column": "rules"}, "--system-column rules with prompts and answers as texts"),
        ("chat", {**NAMED, "tools_column": "rules"}, "--tools-column rules with prompts and answers as texts"),
        ("preference", {"prompt_column": "question", "system_column": "rules"}, "with prompts and answers as texts"),
        ("chat", {**NAMED, "completion_column": "id"}, "column 'id' holds int64, expected text, or lists of messages"),
    ],
)
def test_named_columns_that_do_not_fit_are_refused(tmp_path: Path, layout: str, named: Row, cause: str) -> None:
    row = {"id": 1, "rules": "Count.", "question": "a", "response": "b", "chosen": "b", "rejected": "c"}
    place = building.source(tmp_path / "d", train=[row])
    options = {"layout": layout, "tokenizer": building.tokenizer("chats"), **named}
    assert cause in building.command("build", place, *building.options(tmp_path / "out", **options)).error[0]


def test_a_template_from_a_file_becomes_part_of_the_tokenizer(tmp_path: Path) -> None:
    place = building.source(tmp_path / "d", train=FORMS["ShareGPT"][0])
    file = tmp_path / "mine.jinja"
    file.write_text(CHATML)
    chosen: dict[str, Any] = {"layout": "chat", "max_length": 400, "no_shuffle": True}
    refused = building.command("build", place, *building.options(tmp_path / "o", **chosen))
    assert "--chat-template FILE" in refused.error[1]
    root = building.built(place, chat_template=file, **chosen)
    tokenizer = AutoTokenizer.from_pretrained(root / "tokenizer")
    assert tokenizer.chat_template == CHATML
    assert _tokens(read_rows(root, "train"), 2) == tokenizer.apply_chat_template(CHATS[2])["input_ids"]
    file.write_text(CHATML.replace("<|", "<"))
    other = building.built(place, chat_template=file, seed=0, **chosen)
    assert read_manifest(root).fingerprint != read_manifest(other).fingerprint
    assert building.command("verify", root).status == 0
