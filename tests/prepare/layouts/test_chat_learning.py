"""Which answers of a conversation are learned, by build, trace and verify: all, the last, or each in its own row."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import building
from tests.building import read_manifest
from tests.prepare.tokenize.chat.chat_templates import chat_tokenizer
from tests.support.chats import build, rejected, texts
from tests.support.tokenizers_zoo import Zoo

# Like Qwen3: thoughts are written only after the last question.
REWRITING = (
    "{% for m in messages %}{% set said = m.content.split('</think>')[-1] %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and loop.last %}{{ m.content }}{% else %}{{ said }}{% endif %}<|im_end|>{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if quick %}quick {% endif %}{% endif %}"
)
NEXT_ROLE_ENDS = (
    "{% for m in messages %}{{ '<|im_start|>' if m.role == 'user' else '<|im_end|>' }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_end|>{% endif %}"
)


def turns(*contents: str) -> dict[str, Any]:
    roles = ["user", "assistant"] * len(contents)
    return {"messages": [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]}


ROWS = [turns("q", "hm</think>one", "r", "so</think>two"), turns("s"), turns("t", "three")]


def learned(root: Path) -> list[str]:
    return texts(root, mask="loss_mask")


@pytest.fixture
def thinking(zoo: Zoo, tmp_path: Path) -> Path:
    return chat_tokenizer(zoo, tmp_path / "thinking", template=REWRITING)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
def test_records_of_each_answer_lead_back_to_their_rows_and_are_made_again_alike(
    thinking: Path, tmp_path: Path, packed: bool
) -> None:
    more = {"pack_rows": True} if packed else {}
    options = {"tokenizer": thinking, "learn": "each", "max_error_rate": 0.5, **more}
    root = build(tmp_path / "out", rows=[*ROWS, *ROWS], **options)
    made = read_manifest(root).splits["train"]
    assert (made.ledger.rows_used, made.num_examples) == (4, 3 if packed else 6)
    rows = []
    for record in range(made.num_examples):
        traced = building.command("trace", root, "--split", "train", "--shard", 0, "--record", record, "--json")
        rows += [row["row"] for row in json.loads(traced.out)["rows"]]
    assert sorted(rows) == [0, 0, 2, 3, 3, 5]
    (shard,) = root.glob("*.tfrecord")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    assert building.command("verify", root).status == 1
    assert building.command("verify", root, "--repair").status == 0
    assert shard.read_bytes() == whole


@pytest.mark.slow
def test_answers_that_do_not_fit_are_cut_from_the_left_or_left_out_and_counted(thinking: Path, tmp_path: Path) -> None:
    long = turns("q " * 40, "one", "r", "two", "s", "three " * 60)
    root = build(tmp_path / "out", rows=[long], tokenizer=thinking, learn="each", max_length=32)
    assert texts(root) == ["<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"]
    whole = build(tmp_path / "whole", rows=[long], tokenizer=thinking, learn="each", max_length=512)
    made, of_whole = (read_manifest(folder).splits["train"] for folder in (root, whole))
    assert (made.ledger.rows_used, of_whole.num_examples) == (1, 3)
    assert made.num_tokens + made.ledger.tokens_cut == of_whole.num_tokens
    rows = [turns("q", "long " * 60), turns("q", "one")]
    root = build(tmp_path / "none", rows=rows, tokenizer=thinking, learn="each", max_length=32, max_error_rate=0.5)
    assert {row: reason for row, (reason, _) in rejected(root).items()} == {0: "too_long"}


def test_a_template_that_rewrites_answers_is_named_unless_learn_was_given(thinking: Path, tmp_path: Path) -> None:
    data = building.source(tmp_path / "in", train=[ROWS[0]] * 3)
    for more, expected in (({}, True), ({"learn": "all"}, False)):
        options = building.options(tmp_path / f"out-{len(more)}", layout="chat", tokenizer=thinking, **more)
        outcome = building.command("build", data, *options)
        assert outcome.status == 0, outcome.err
        assert ("writes an answer differently once the conversation continues" in outcome.err) == expected


@pytest.mark.slow
def test_variables_of_the_template_are_part_of_the_fingerprint(thinking: Path, tmp_path: Path) -> None:
    rows = [turns("q", "quick one")]
    roots = [
        build(tmp_path / f"out-{len(chat_options)}", rows=rows, tokenizer=thinking, chat_option=chat_options)
        for chat_options in ((), ("quick=true",), ("quick=false", "quicker=x"))
    ]
    assert [learned(root)[0] for root in roots] == ["quick one<|im_end|>", "one<|im_end|>", "quick one<|im_end|>"]
    assert len({read_manifest(root).fingerprint for root in roots}) == 3
    assert read_manifest(roots[1]).layout["chat_options"] == ["quick=true"]
    assert [building.command("verify", root).status for root in roots] == [0, 0, 0]
    outcome = building.command(
        "build", tmp_path, *building.options(tmp_path / "no", layout="chat", chat_option="quick")
    )
    assert "--chat-option 'quick', expected KEY=VALUE" in outcome.err


@pytest.mark.parametrize(
    ("template", "note", "expected"),
    [
        (NEXT_ROLE_ENDS, "nothing ends the last answer of a conversation", "one<|im_start|>two"),
        (
            NEXT_ROLE_ENDS.replace("{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}"),
            "the end of an answer is never learned",
            "qonertwo",
        ),
        ("chatml", "", "one<|im_end|>two<|im_end|>"),
    ],
)
def test_an_end_that_is_not_learned_is_named(zoo: Zoo, tmp_path: Path, template: str, note: str, expected: str) -> None:
    tokenizer = chat_tokenizer(zoo, tmp_path / "tokenizer", template=template)
    data = building.source(tmp_path / "in", train=[turns("q", "one", "r", "two")])
    options = building.options(tmp_path / "out", layout="chat", tokenizer=tokenizer, max_length=64)
    outcome = building.command("build", data, *options)
    assert outcome.status == 0, outcome.err
    assert note in outcome.err if note else "answer" not in outcome.err
    assert learned(tmp_path / "out") == [expected]


def test_the_fault_of_a_template_that_shows_in_the_second_turn_is_the_template_s(zoo: Zoo, tmp_path: Path) -> None:
    single = "{% if messages | length > 2 %}{{ raise_exception('one turn only') }}{% endif %}" + REWRITING
    tokenizer = chat_tokenizer(zoo, tmp_path / "tokenizer", template=single)
    data = building.source(tmp_path / "in", train=[turns("q", "one")])
    outcome = building.command("build", data, *building.options(tmp_path / "out", layout="chat", tokenizer=tokenizer))
    assert "the chat template refuses a second question and answer: one turn only" in outcome.err
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["splits"]["train"]["ledger"]["rows_used"] == 1
