"""Datasets of conversations: against `apply_chat_template`, and through every command and reader."""

import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from transformers import AutoTokenizer

from pipelines.prepare.tokenize.chat.template import open_template
from tests import building
from tests.building import built, read_manifest, read_rows
from tests.prepare.tokenize.chat.chat_templates import TEMPLATES, chat_tokenizer
from tests.support.chats import build, rejected, texts, trained
from tests.support.tokenizers_zoo import Zoo

EXAMPLE = building.REPOSITORY / "examples" / "chats"
CHATS = [json.loads(line)["messages"] for line in (EXAMPLE / "train.jsonl").read_text(encoding="utf-8").splitlines()]
LENGTH = 256
QUESTION, ANSWER = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}


learned = functools.partial(texts, mask="loss_mask")


def test_rows_padded_on_the_left_are_those_of_transformers() -> None:
    options = {"layout": "chat", "tokenizer": trained(), "max_length": LENGTH, "padding_side": "left"}
    rows = read_rows(built(EXAMPLE, no_shuffle=True, **options), "train")
    tokenizer = AutoTokenizer.from_pretrained(trained())
    for index, messages in enumerate(CHATS):
        theirs = tokenizer.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
        ids, mask = theirs["input_ids"], theirs["assistant_masks"]
        tokens = np.arange(LENGTH - len(ids), LENGTH)
        assert rows["input_ids"][index][tokens].tolist() == ids
        assert np.flatnonzero(rows["loss_mask"][index]).tolist() == tokens[np.flatnonzero(mask)].tolist()
        assert np.flatnonzero(rows["attention_mask"][index]).tolist() == tokens.tolist()
    assert len(rows["input_ids"]) == len(CHATS)


@pytest.mark.slow
def test_a_template_that_writes_the_date_is_told_which(zoo: Zoo, tmp_path: Path) -> None:
    template = "{{ 'Today: ' + strftime_now('%d %b %Y') + '\\n' }}" + TEMPLATES["chatml"]
    tokenizer = chat_tokenizer(zoo, tmp_path / "tokenizer", template=template)
    rows = [{"messages": [QUESTION, ANSWER]}] * 20
    root = build(tmp_path / "out", rows=rows, tokenizer=tokenizer, chat_date="2024-07-26")
    assert {text.partition("\n")[0] for text in texts(root)} == {"Today: 26 Jul 2024"}
    assert read_manifest(root).layout["chat_date"] == "2024-07-26"
    options = building.options(tmp_path / "no", layout="chat", tokenizer=tokenizer)
    cause, remedy = building.command("build", tmp_path / "out-in", *options).error
    assert "today's date" in cause
    assert "--chat-date 2024-07-26" in remedy


# Refuses the content 'bad', and changes the role of a message with the content 'late'.
HOSTILE = (
    "{% if messages[0].content == 'bad' %}{{ raise_exception('nothing bad is said here') }}{% endif %}"
    + TEMPLATES["chatml"].replace("message['role']", "('odd' if message.content == 'late' else message.role)")
)


def test_a_row_that_cannot_be_used_is_named_with_its_reason_and_what_there_is_to_say(zoo: Zoo, tmp_path: Path) -> None:
    tokenizer = chat_tokenizer(zoo, tmp_path / "tokenizer", template=HOSTILE)
    sound = [QUESTION, ANSWER]
    bad, late = {"role": "user", "content": "bad"}, {"role": "assistant", "content": "late"}
    image = {"role": "user", "content": [{"type": "image", "url": "x.png"}]}
    refused: list[tuple[Any, str, str | None]] = [
        (None, "messages_null", None),
        ([], "messages_empty", None),
        ([QUESTION, {"role": None, "content": "two"}], "role_missing", "message 1"),
        ([QUESTION, {"role": "assistant", "content": None}], "content_null", "has nothing but the role 'assistant'"),
        ([image, ANSWER], "content_not_text", "message 0 has a part of type image, expected text"),
        ([bad, ANSWER], "template_rejected", "nothing bad is said here"),
        ([QUESTION, late], "template_prefix", "message 1 begins with '<|im_start|>odd"),
        ([QUESTION], "no_assistant", "the roles are user"),
        ([QUESTION, {"role": "assistant", "content": "long " * 50}], "too_long", None),
    ]
    rows = [{"messages": messages, "tools": None} for messages in (sound, *(case[0] for case in refused))]
    rows += [{"messages": sound, "tools": "[{"}, {"messages": sound, "tools": "3"}]
    root = build(tmp_path / "out", rows=rows, tokenizer=tokenizer, tools_column="tools", max_error_rate=1.0)
    reasons = rejected(root)
    expect = [*((reason, detail) for _, reason, detail in refused), *[("tools_not_json", "")] * 2]
    assert [reasons[row][0] for row in range(1, len(rows))] == [reason for reason, _ in expect]
    for row, (_, detail) in enumerate(expect, start=1):
        assert reasons[row][1] is None if detail is None else detail in (reasons[row][1] or ""), reasons[row]
    ledger = read_manifest(root).splits["train"].ledger
    assert (ledger.rows_used, sum(ledger.rejected.values())) == (1, len(rows) - 1)
    assert learned(root) == ["two<|im_end|>"]
    page = (building.REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    assert {reason for reason, _ in expect} <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_a_column_that_holds_no_messages_is_refused(tmp_path: Path) -> None:
    data = building.source(tmp_path / "in", train=[{"messages": ["one", "two"]}])
    options = building.options(tmp_path / "out", layout="chat", tokenizer=trained())
    assert "expected lists of messages with a role and a content" in building.command("build", data, *options).error[0]


@pytest.mark.slow
def test_the_example_in_the_docs_of_the_format_is_what_is_made(tmp_path: Path) -> None:
    text = (building.REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    section = text.partition("### Layout `chat`")[2].partition("\n### ")[0].partition("\n## ")[0]
    rows = [json.loads(line) for line in re.findall(r"^\{\"messages\".+$", section, re.MULTILINE)]
    padded = read_rows(build(tmp_path / "padded", rows=rows, max_length=18), "train")
    side_by_side = read_rows(build(tmp_path / "packed", rows=rows, max_length=34, pack_rows=True), "train")
    examples = [
        (name, [int(value) for value in values.split()])
        for name, values in re.findall(
            r"^(input_ids|attention_mask|loss_mask|segment_ids|positions) +([\d ]+)$", section, re.MULTILINE
        )
    ]
    names = [name for name, _ in examples]
    assert names == ["input_ids", "attention_mask", "loss_mask", "input_ids", "segment_ids", "positions", "loss_mask"]
    for name, values in examples[:3]:
        assert values == padded[name][0].tolist()
    for name, values in examples[3:]:
        assert values == side_by_side[name][0].tolist()


NAMED = {
    "default": TEMPLATES["chatml"],
    "tool_use": TEMPLATES["tools"],
    "short": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds."}}]


@functools.cache
def named(names: tuple[str, ...] = tuple(NAMED)) -> Path:
    folder = Path(os.environ["HF_HOME"]) / f"chats-tokenizer-{'-'.join(names)}"
    tokenizer = AutoTokenizer.from_pretrained(trained())
    tokenizer.chat_template = {name: NAMED[name] for name in names}
    tokenizer.save_pretrained(folder)
    return folder


def test_rows_with_tools_take_the_template_for_tools_and_others_the_default() -> None:
    tokenizer, messages = AutoTokenizer.from_pretrained(named()), [QUESTION, ANSWER]
    columns = {"messages": pa.array([messages] * 2), "tools": pa.array([json.dumps(TOOLS), None])}
    rendered = open_template(tokenizer).render(columns).texts
    expected = [tokenizer.apply_chat_template(messages, tools=tools, tokenize=False) for tools in (TOOLS, None)]
    assert rendered.strings.to_pylist() == expected
    assert "Tools:" in expected[0]


def test_a_template_is_chosen_by_its_name(tmp_path: Path) -> None:
    rows = [{"messages": [QUESTION, ANSWER]}]
    root = build(tmp_path / "out", rows=rows, tokenizer=named(), chat_template="short")
    assert texts(root) == ["onetwo"]
    assert read_manifest(root).layout["chat_template"] == "short"
    assert AutoTokenizer.from_pretrained(root / "tokenizer").chat_template == NAMED
    assert building.command("verify", root).status == 0


def _with_markers() -> Path:
    folder = Path(os.environ["HF_HOME"]) / "reviews-with-markers"
    tokenizer = AutoTokenizer.from_pretrained(building.tokenizer("reviews"))
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("tokenizer", "is_said"), [(building.tokenizer, True), (_with_markers, False)])
def test_chatml_serves_a_tokenizer_without_a_template(tmp_path: Path, tokenizer: Any, is_said: bool) -> None:
    data = building.source(tmp_path / "in", train=[{"messages": [QUESTION, ANSWER, QUESTION, ANSWER]}])
    chosen = {"layout": "chat", "tokenizer": tokenizer(), "chat_template": "chatml", "max_length": 200}
    outcome = building.command("build", data, *building.options(tmp_path / "out", **chosen))
    assert outcome.status == 0, outcome.err
    assert ("this tokenizer splits <|im_start|> and <|im_end|> into several tokens" in outcome.err) == is_said
    saved = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    written = "".join(
        f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in [QUESTION, ANSWER, QUESTION, ANSWER]
    )
    assert saved.apply_chat_template([QUESTION, ANSWER, QUESTION, ANSWER], tokenize=False) == written
    rows = building.read_rows(tmp_path / "out", "train")
    ids = rows["input_ids"][0][rows["attention_mask"][0] == 1].tolist()
    assert ids == saved(written, add_special_tokens=False)["input_ids"]
    learned = rows["input_ids"][0][rows["loss_mask"][0] == 1].tolist()
    assert learned == 2 * saved(f"{ANSWER['content']}<|im_end|>", add_special_tokens=False)["input_ids"]
    assert building.command("verify", tmp_path / "out").status == 0


def test_a_tokenizers_own_template_of_that_name_is_preferred(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained())
    tokenizer.chat_template = {"default": NAMED["default"], "chatml": NAMED["short"]}
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    rows = [{"messages": [QUESTION, ANSWER]}]
    root = build(tmp_path / "out", rows=rows, tokenizer=tmp_path / "tokenizer", chat_template="chatml")
    assert texts(root) == ["onetwo"]


@pytest.mark.parametrize(
    ("tokenizer", "changes", "cause", "remedy"),
    [
        (named, {"chat_template": "long"}, "expected one of default, short, tool_use, chatml", "one of these names"),
        (trained, {"chat_template": "short"}, "neither a file nor the name of a template", "one of these names, or"),
        (trained, {"chat_template": "no.jinja"}, "--chat-template no.jinja: cannot be read", "the path of a text file"),
        (building.tokenizer, {"chat_template": "short"}, "expected one of chatml", "one of these names, or"),
        (building.tokenizer, {}, "has none", "--chat-template chatml, or --chat-template FILE"),
        (lambda: named(("tool_use", "short")), {}, "none of them is called default", "--chat-template short"),
    ],
)
def test_a_template_that_is_not_there_is_refused(
    tmp_path: Path, tokenizer: Any, changes: dict[str, str], cause: str, remedy: str
) -> None:
    data = building.source(tmp_path / "in", train=[{"messages": [QUESTION, ANSWER]}])
    options = {"layout": "chat", "tokenizer": tokenizer(), **changes}
    outcome = building.command("build", data, *building.options(tmp_path / "out", **options))
    assert cause in outcome.error[0]
    assert remedy in outcome.error[1]
