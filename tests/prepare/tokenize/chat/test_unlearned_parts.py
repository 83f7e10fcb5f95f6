"""--learn-not: thoughts and tool calls are taken out of the mask as NeMo Automodel does, and nothing else is."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from pipelines.prepare.options.config import LayoutConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Rows
from pipelines.prepare.tokenize.chat.conversation import Message
from tests import building
from tests.prepare.layouts import encoding
from tests.prepare.tokenize.chat.chat_templates import chat_tokenizer
from tests.support import texts
from tests.support.tokenizers_zoo import Zoo

# As in Qwen3 and GLM-4.5: the last answer has tags without a thought, too; earlier thoughts are left out.
_QWEN = "{% if loop.last %}{{ '<think>\n' + (m.reasoning_content or '').strip('\n') + '\n</think>\n\n' }}{% endif %}"
_GLM = "{{ '<think>' + ((m.reasoning_content or '').strip() if loop.last else '') + '</think>\n' }}"
_ALL = "{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}"
_CALLS = "{% for call in m.tool_calls or [] %}{{ '\n<call>' + call.function.name }}{% endfor %}"
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}THOUGHT{{ m.content }}" + _CALLS + "<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
COLUMNS = ColumnPlan(texts=(), nested={"messages": "messages"})
PLAIN = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def tokenizer(zoo: Zoo, folder: Path, source: str, *, joined: bool = False) -> Any:
    """Return a tokenizer with tags for thoughts; if `joined`, with a token of two line breaks."""
    opened: Any = AutoTokenizer.from_pretrained(chat_tokenizer(zoo, folder, template=source))
    opened.add_tokens([AddedToken(token) for token in ("<think>", "</think>", *["\n\n"] * joined)])
    return opened


def masked(tokenizer: Any, rows: list[list[Message]], **options: Any) -> tuple[list[list[int]], list[list[int]]]:
    encoder = encoding.open_encoder(tokenizer, LayoutConfig(name="chat", max_length=100_000, **options), COLUMNS)
    made = encoder.encode(Rows(texts=(), arrays={}, nested={"messages": pa.array(rows)}))
    assert set(made.reasons) == {""}, made.details
    ids, mask = made.ragged["input_ids"], made.ragged["loss_mask"]
    columns = [np.split(runs.ids, runs.offsets[1:-1]) for runs in (ids, mask)]
    return [row.tolist() for row in columns[0]], [row.tolist() for row in columns[1]]


def of_thoughts(tokenizer: Any, messages: list[Message]) -> list[bool]:
    """Return a mask of the thoughts' tokens: those between the beginning and the end that ids without it share."""
    ids = tokenizer.apply_chat_template(messages)["input_ids"]
    in_thought = [False] * len(ids)
    for index, message in enumerate(messages):
        if message.get("reasoning_content"):
            emptied = [*messages[:index], {**message, "reasoning_content": ""}, *messages[index + 1 :]]
            others = tokenizer.apply_chat_template(emptied)["input_ids"]
            start = next((at for at, pair in enumerate(zip(ids, others, strict=False)) if pair[0] != pair[1]), None)
            if start is None:
                continue
            shared, most = 0, min(len(ids), len(others)) - start
            while shared < most and ids[-1 - shared] == others[-1 - shared]:
                shared += 1
            in_thought[start : len(ids) - shared] = [True] * (len(ids) - shared - start)
    return in_thought


def conversations(count: int) -> list[list[Message]]:
    draw, sentences = random.Random(3), [sentence for sentence in texts.sentences(80, seed=2) if sentence.strip()]
    rows = []
    for _ in range(count):
        rows.append(messages := list[Message]())
        for _ in range(draw.randint(1, 3)):
            thought = draw.choice([draw.choice(sentences), "<b>so", "é", "one.\n\ntwo!", "</b>", None])
            messages += [{"role": "user", "content": draw.choice(sentences)}]
            messages += [{"role": "assistant", "content": draw.choice(sentences), "reasoning_content": thought}]
    return rows


@pytest.mark.parametrize(
    ("source", "thought", "joined"),
    [
        *((source, thought, True) for source in (PLAIN, MARKED) for thought in (_QWEN, _GLM, _ALL)),
        (PLAIN, _QWEN, False),
    ],
    ids=["qwen", "glm", "all", "marked-qwen", "marked-glm", "marked-all", "two line breaks"],
)
def test_thoughts_are_left_out_as_automodel_does(
    zoo: Zoo, tmp_path: Path, source: str, thought: str, joined: bool
) -> None:
    opened, rows = tokenizer(zoo, tmp_path, source.replace("THOUGHT", thought), joined=joined), conversations(50)
    ids, whole = masked(opened, rows)
    same_ids, mask = masked(opened, rows, learn_not="thoughts")
    assert ids == same_ids
    for row, before, after in zip(rows, whole, mask, strict=True):
        assert after == [int(one and not two) for one, two in zip(before, of_thoughts(opened, row), strict=True)]
    assert sum(map(sum, mask)) < sum(map(sum, whole))


def learned(tokenizer: Any, row: list[Message], **options: Any) -> str:
    (ids,), (mask,) = masked(tokenizer, [row], **options)
    return str(tokenizer.decode([token for token, keep in zip(ids, mask, strict=True) if keep]))


QUESTION = {"role": "user", "content": "weather?"}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {}}}
CALLING: list[Message] = [
    QUESTION,
    {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny"},
    {"role": "assistant", "content": "It is sunny."},
]


@pytest.mark.parametrize(
    ("learn_not", "expected"),
    [
        (None, "<think>\nhm\n</think>\n\nI look.\n<call>look<|im_end|>It is sunny.<|im_end|>"),
        ("thoughts", "I look.\n<call>look<|im_end|>It is sunny.<|im_end|>"),
        ("tool_calls", "<think>\nhm\n</think>\n\nI look.<|im_end|>It is sunny.<|im_end|>"),
        ("thoughts,tool_calls", "I look.<|im_end|>It is sunny.<|im_end|>"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_calls_are_left_out_and_the_end_is_learned(
    zoo: Zoo, tmp_path: Path, strict: bool, learn_not: Any, expected: str
) -> None:
    """A strict template refuses a tool's result without a call."""
    check = (
        "{% for m in messages if m.role == 'tool' %}{% if messages | selectattr('tool_calls') | list == [] %}"
        "{{ raise_exception('no call') }}{% endif %}{% endfor %}"
    )
    opened = tokenizer(zoo, tmp_path, check * strict + PLAIN.replace("THOUGHT", _ALL))
    assert learned(opened, CALLING, learn_not=learn_not) == expected


@pytest.mark.parametrize("content", ["<think>\nhm\n</think>\n\nfour", "<think></think>\n\nfour"])
def test_thoughts_in_contents_are_left_out_and_their_tags_are_learned(zoo: Zoo, tmp_path: Path, content: str) -> None:
    row = [QUESTION, {"role": "assistant", "content": content}]
    opened = tokenizer(zoo, tmp_path, "chatml")
    assert learned(opened, row, learn_not="thoughts") == "<think></think>\n\nfour<|im_end|>"


@pytest.mark.parametrize(
    ("source", "learn_not", "note"),
    [
        ("chatml", "thoughts", "does not write the field reasoning_content of answers, but thoughts between <think>"),
        ("thinking", "thoughts", "does not write the field reasoning_content of answers"),
        ("chatml", "tool_calls", "does not write tool_calls of answers"),
        ("inst", "tool_calls", "refuses tool_calls of answers: Conversation roles must alternate"),
        ("tools", "tool_calls", None),
    ],
)
def test_a_template_without_such_a_part_is_named_before_the_build(
    zoo: Zoo, tmp_path: Path, source: str, learn_not: Any, note: str | None
) -> None:
    layout = LayoutConfig(name="chat", max_length=64, learn_not=learn_not)
    notes = encoding.open_encoder(tokenizer(zoo, tmp_path, source), layout, COLUMNS).notes
    named = [line for line in notes if line.startswith(f"--learn-not {learn_not}: this chat template ")]
    assert len(named) == (note is not None)
    assert note is None or note in named[0]


@pytest.mark.parametrize(("template", "is_noted"), [(MARKED, True), (PLAIN, False)])
def test_whole_turns_with_a_template_that_marks_answers_give_a_note(
    zoo: Zoo, tmp_path: Path, template: str, is_noted: bool
) -> None:
    marked = tokenizer(zoo, tmp_path / "tokenizer", template.replace("THOUGHT", ""))
    layout = LayoutConfig(name="chat", max_length=64, learn_whole_turns=True)
    notes = encoding.open_encoder(marked, layout, COLUMNS).notes
    assert any(note.startswith("--learn-whole-turns has no effect") for note in notes) == is_noted


def test_an_answer_that_a_template_refuses_without_its_calls_is_rejected(zoo: Zoo, tmp_path: Path) -> None:
    check = "{% if not m.content and not m.tool_calls %}{{ raise_exception('say something') }}{% endif %}"
    source = "{% for m in messages %}" + check + "{% endfor %}" + PLAIN
    chat_tokenizer(zoo, tmp_path / "tokenizer", template=source.replace("THOUGHT", ""))
    rows = [{"messages": [QUESTION, {**CALLING[1], "content": ""}, *CALLING[2:]]}, {"messages": CALLING}]
    data = building.source(tmp_path / "data", train=rows)
    options = {"tokenizer": tmp_path / "tokenizer", "layout": "chat", "learn_not": "tool_calls", "max_length": 128}
    outcome = building.command("build", data, *building.options(tmp_path / "out", max_error_rate=0.5, **options))
    assert outcome.status == 0, outcome.err
    assert building.read_manifest(tmp_path / "out").splits["train"].ledger.rejected == {"mask_not_clear": 1}
    listed = next((tmp_path / "out/rejected").iterdir()).read_text()
    assert "refuses message 1 without its tool_calls: say something" in listed


def test_texts_have_no_such_parts(zoo: Zoo, tmp_path: Path) -> None:
    data = building.source(tmp_path / "data", train=[{"prompt": "a", "completion": "b"}])
    chat_tokenizer(zoo, tmp_path / "tokenizer", template="chatml")
    options = {"tokenizer": tmp_path / "tokenizer", "layout": "chat", "learn_not": "thoughts"}
    outcome = building.command("build", data, *building.options(tmp_path / "out", **options))
    assert "--learn-not with prompts and completions that are texts" in outcome.error[0]
