"""Characters that a mask withholds are not learned, and all others of an answer are."""

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from transformers import AutoTokenizer

from pipelines.prepare.tokenize.chat.alignment import Aligner
from pipelines.prepare.tokenize.chat.conversation import Message, Rejected, conversation_of
from pipelines.prepare.tokenize.chat.renderer import ChatTemplate
from pipelines.prepare.tokenize.chat.template import open_template
from pipelines.prepare.tokenize.ragged import from_lists
from tests.prepare.tokenize.chat.chat_templates import TEMPLATES, chat_tokenizer, compiled
from tests.support.tokenizers_zoo import Zoo

KINDS = ["byte_bpe", "byte_bpe_roberta", "bpe_fallback", "unigram", "wordpiece_uncased", "wordpiece_cased"]
# Texts of an answer, and whether each is learned.
Pieces = list[tuple[str, bool]]

ANSWERS: dict[str, Pieces] = {
    "the beginning": [("Let me think.", False), (" The answer is 4.", True)],
    "the end": [("The answer is 4.", True), (" I guess.", False)],
    "the middle, twice": [("a ", True), ("b ", False), ("c ", True), ("d", False), (" e", True)],
    "letters of a word": [("ant", True), ("elo", False), ("pe", True)],
    "wide letters": [("naïve 漢", True), ("字 👍🏽", False), (" é\ue000", True)],
    "white space": [("one", True), (" \n", False), ("two", True)],
    "all of it": [("no", False), (" no", False)],
    "an empty part": [("yes", True), ("", False), (" no", False), ("", True)],
}
# Templates may strip these.
AT_THE_ENDS: dict[str, Pieces] = {
    "white space at the ends": [(" \n no", False), (" yes", True), (" no \n", False)],
    "learned white space at the ends": [("  yes", True), (" no", False), (" yes  ", True)],
}
THOUGHTS: dict[str, Pieces] = {
    "a thought": [("<think>\nwell\n</think>", False), ("\n\nfour", True)],
    "a thought and a line": [("<think>\nwell\n</think>\n\n", False), ("four", True)],
    "behind a thought": [("<think>\nwell\n</think>\n\n", True), ("four", False), (" 4", True)],
    "over its end": [("<think>\nwe", True), ("ll\n</think>\n\nfo", False), ("ur", True)],
}
QUESTION = {"role": "user", "content": "what is 2 + 2"}


def as_parts(pieces: Pieces, name: str) -> Message:
    masks: dict[bool, dict[str, Any]] = {True: {}, False: {name: 0}}
    parts = [{"type": "text", "text": text, **masks[is_learned]} for text, is_learned in pieces]
    return {"role": "assistant", "content": parts}


def as_details(pieces: Pieces) -> Message:
    ends = list(itertools.accumulate(len(text) for text, _ in pieces))
    details = [
        {"begin_offset": end - len(text), "end_offset": end - 1, "train": is_learned}
        for (text, is_learned), end in zip(pieces, ends, strict=True)
        if text
    ]
    return {"role": "assistant", "content": "".join(text for text, _ in pieces), "train_detail": details}


FORMS: dict[str, Callable[[Pieces], Message]] = {
    "parts with train": functools.partial(as_parts, name="train"),
    "parts with weight": functools.partial(as_parts, name="weight"),
    "offsets": as_details,
}


opened = functools.partial(compiled, added_tokens=["<|im_start|>", "<|im_end|>", "</s>"])


def learned(template: ChatTemplate, *messages: Message) -> tuple[str, str]:
    """The text, and its bytes that are learned and not skipped."""
    ((text, spans, _, skipped),) = template.render(conversation_of(messages, needs=template.needs))
    keep = np.zeros(len(text), bool)
    for spans_of, value in ((spans, True), (skipped, False)):
        for start, stop in spans_of:
            keep[start:stop] = value
    return text.decode(), bytes(np.frombuffer(text, np.uint8)[keep]).decode()


def whole(pieces: Pieces) -> Message:
    return {"role": "assistant", "content": "".join(text for text, _ in pieces)}


# Every template with one form of masks, and every form with one template.
TEMPLATE_AND_FORM = [*((name, "offsets") for name in TEMPLATES), *(("inst", form) for form in FORMS)]


@pytest.mark.parametrize(("name", "form"), TEMPLATE_AND_FORM)
@pytest.mark.parametrize("answer", ANSWERS)
def test_withheld_characters_are_not_learned(name: str, answer: str, form: str) -> None:
    template, pieces = opened(TEMPLATES[name]), ANSWERS[answer]
    text, learnt = learned(template, QUESTION, whole(pieces), QUESTION, whole(pieces))
    expected = learnt.replace(whole(pieces)["content"], "".join(piece for piece, is_kept in pieces if is_kept))
    masked = FORMS[form](pieces)
    assert learned(template, QUESTION, masked, QUESTION, masked) == (text, expected)


@pytest.mark.parametrize(("name", "form"), TEMPLATE_AND_FORM)
@pytest.mark.parametrize("answer", AT_THE_ENDS)
def test_white_space_that_a_template_strips_is_no_hindrance(name: str, answer: str, form: str) -> None:
    template, pieces = opened(TEMPLATES[name]), AT_THE_ENDS[answer]
    text, learnt = learned(template, QUESTION, FORMS[form](pieces))
    assert text == learned(template, QUESTION, whole(pieces))[0]
    assert learnt.count("yes") == sum("yes" in piece for piece, _ in pieces)
    assert "no" not in learnt


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("answer", THOUGHTS)
@pytest.mark.parametrize("name", ["chatml", "thinking", "split"])
def test_thoughts_that_a_template_moves_or_drops_keep_their_masks(name: str, answer: str, form: str) -> None:
    split = (
        "{%- set thought, said = m.content.split('</think>')[0].split('<think>')[-1].strip('\\n'), "
        "m.content.split('</think>')[-1].lstrip('\\n') %}{% if m.role == 'user' %}{{ m.content }}{% elif loop.last %}"
        "<think>{{ '\\n' + thought + '\\n' }}</think>{{ '\\n\\n' + said }}{% else %}{{ said }}{% endif %}<|im_end|>"
    )
    source = {**TEMPLATES, "split": "{% for m in messages %}<|im_start|>{{ m.role + '\\n' }}" + split + "{% endfor %}"}
    template, pieces = opened(source[name]), THOUGHTS[answer]
    masked = FORMS[form](pieces)
    text, answers = learned(template, QUESTION, masked, QUESTION, masked)
    assert text == learned(template, QUESTION, whole(pieces), QUESTION, whole(pieces))[0]
    for piece, is_learned in pieces:
        for word in ("well", "four", "fo", "ur"):
            if word in piece and (word != "well" or word in text):
                assert (word in answers) == is_learned


def thinking(pieces: Pieces, name: str, **answer: Any) -> Message:
    """An answer with a thought in parts, with a mask in each that is not learned."""
    return {"role": "assistant", "content": "four", **answer, name: as_parts(pieces, "train")["content"]}


# Templates with thoughts of all answers, of the last one, and with white space at the ends stripped.
_THOUGHT = "{% if m.reasoning_content is defined and %s %}<think>{{ m.reasoning_content%s }}</think>{% endif %}"
_REASONERS = {
    name: "{% for m in messages %}<|im_start|>{{ m.role }} "
    + _THOUGHT.replace("%s", when, 1).replace("%s", strip)
    + "{{ m.content }}<|im_end|>{% endfor %}"
    for name, when, strip in (("all", "true", ""), ("last", "loop.last", ""), ("stripped", "true", ".strip()"))
}


@pytest.mark.parametrize("answer", [*ANSWERS, *AT_THE_ENDS])
@pytest.mark.parametrize(
    ("reasoner", "name"),
    [*((reasoner, "thinking") for reasoner in _REASONERS), ("all", "reasoning_content"), ("all", "reasoning")],
)
def test_parts_of_a_thought_are_withheld(reasoner: str, answer: str, name: str) -> None:
    template, pieces = opened(_REASONERS[reasoner]), {**ANSWERS, **AT_THE_ENDS}[answer]
    plain = thinking([(whole(pieces)["content"], True)], name)
    text, answers = learned(template, QUESTION, plain, QUESTION, plain)
    assert learned(template, QUESTION, {**plain, name: plain[name][0]["text"]}, QUESTION, plain) == (text, answers)
    kept = "".join(piece for piece, is_kept in pieces if is_kept)
    masked = thinking(pieces, name)
    masked_text, learned_text = learned(template, QUESTION, masked, QUESTION, masked)
    assert masked_text == text
    content = whole(pieces)["content"]
    expected = answers.replace(content.strip() if reasoner == "stripped" else content, kept)
    if reasoner == "stripped" or answer in AT_THE_ENDS:  # white space at a border may be withheld too
        expected, learned_text = ("".join(words.split()) for words in (expected, learned_text))
    assert learned_text == expected


def test_masks_of_a_thought_and_of_the_answer_are_both_honoured() -> None:
    template, pieces = opened(_REASONERS["all"]), ANSWERS["letters of a word"]
    masked = thinking(pieces, "thinking", **as_details(ANSWERS["the end"]))
    assert learned(template, QUESTION, masked)[1].endswith("<think>antpe</think>The answer is 4.<|im_end|>")


def test_a_thought_that_is_no_text_rejects_the_row() -> None:
    with pytest.raises(Rejected, match=r"content_not_text.*message 0 has a part of type image"):
        learned(opened(_REASONERS["all"]), {"role": "assistant", "content": "", "thinking": [{"type": "image"}]})


@pytest.mark.parametrize("learn", ["all", "last", "each"])
def test_masks_belong_to_their_own_answers(learn: Any) -> None:
    template = opened(TEMPLATES["chatml"], learn=learn)
    first, second = as_parts([("a", False), ("b", True)], "train"), as_parts([("c", True), ("d", False)], "weight")
    rendered = template.render(conversation_of([QUESTION, first, QUESTION, second], needs=template.needs))
    skipped = [[text[start:stop].decode() for start, stop in spans] for text, _, _, spans in rendered]
    assert skipped == {"all": [["a", "d"]], "last": [["d"]], "each": [["a"], ["d"]]}[learn]


def test_train_wins_over_weight_in_parts_and_messages() -> None:
    template = opened(TEMPLATES["chatml"])
    parts = [{"type": "text", "text": "a", "train": True, "weight": 0}, {"type": "text", "text": "b", "train": False}]
    parts[1]["weight"] = 1
    assert learned(template, QUESTION, {"role": "assistant", "content": parts})[1] == "a<|im_end|>"
    assert not learned(template, QUESTION, {"role": "assistant", "content": parts, "train": False, "weight": 1})[1]


def test_characters_of_no_entry_are_not_learned_and_an_empty_list_withholds_the_answer() -> None:
    template = opened(TEMPLATES["chatml"])
    answer = {"role": "assistant", "content": "abcd"}
    detail = {"begin_offset": 1, "end_offset": 2, "train": True}
    assert learned(template, QUESTION, {**answer, "train_detail": [detail]})[1] == "bc<|im_end|>"
    # Where entries overlap, each character needs all of them.
    both = [detail, {"begin_offset": 2, "end_offset": 3, "train": False}]
    assert learned(template, QUESTION, {**answer, "train_detail": both})[1] == "b<|im_end|>"
    assert not learned(template, QUESTION, {**answer, "train_detail": []})[1]
    assert learned(template, QUESTION, {**answer, "train_detail": [], "train": True})[1] == "abcd<|im_end|>"


def test_templates_see_no_masks() -> None:
    source = "{% for m in messages %}{{ m | tojson }}{% endfor %}{% generation %}{% endgeneration %}"
    parts = as_parts(ANSWERS["the end"], "train")
    messages = conversation_of([{**parts, "role": "user"}, as_details(ANSWERS["the end"])], needs=opened(source).needs)
    assert [sorted(message) for message in messages.messages] == [["content", "role"]] * 2
    assert not [part for part in messages.messages[0]["content"] if isinstance(part, dict) and "train" in part]


@pytest.mark.parametrize("name", ["answers that are not text any more", "answers written twice"])
def test_a_content_without_a_certain_place_rejects_the_row(name: str) -> None:
    source = {
        "answers that are not text any more": "{{ m.content | length }}",
        "answers written twice": "{{ m.content + m.content }}",
    }[name]
    template = opened(f"{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}: {source}<|im_end|>{{% endfor %}}")
    with pytest.raises(Rejected, match=r"mask_not_clear.*message 1 is learned in part"):
        learned(template, QUESTION, as_parts([("a", True), ("b", False)], "train"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_straddle_a_border_are_not_learned(zoo: Zoo, tmp_path: Path, kind: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(chat_tokenizer(zoo, tmp_path, template="chatml", kind=kind))
    backend, aligner = tokenizer.backend_tokenizer, Aligner(tokenizer, dtype=np.dtype(np.int32))
    backend.post_processor = None
    content, template = "the naïve reader of the house", open_template(tokenizer)
    answers = [as_details([(content[:at], True), (content[at:], False)]) for at in range(1, len(content))]
    texts = template.render({"messages": pa.array([[QUESTION, answer] for answer in answers])}).texts
    encoding = backend.encode(text := texts.strings[0].as_py(), add_special_tokens=False)
    _, mask = aligner.align(from_lists([encoding.ids] * len(answers), dtype=np.dtype(np.int32)), texts)
    begin, end = text.rindex(content), text.rindex("<|im_end|>")
    straddling = 0
    for border, row in zip(range(begin + 1, end), mask.reshape(len(answers), -1).tolist(), strict=True):
        for (first, last), is_learned in zip(encoding.offsets, row, strict=True):
            if text[first:last].strip():
                assert is_learned == ((begin <= first and last <= border) or first == end)
                straddling += begin <= first < border < last
    assert straddling
