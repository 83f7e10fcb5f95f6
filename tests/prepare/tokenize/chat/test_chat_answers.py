"""Answers are found where a template's author would mark them, whatever the template does with earlier turns."""

import functools
from typing import Any

import pytest

from pipelines.prepare.tokenize.chat.conversation import Conversation, Message, Rejected, conversation_of
from tests.prepare.tokenize.chat.chat_templates import answer, compiled, user

TOKENS = ["<|im_start|>", "<|im_end|>", "<|user|>", "<|bot|>", "<|call|>", "<eos>", "<seen>"]
ROLE = "{{ '<|im_start|>' + m.role + '\n' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
# A thought in a separate field or in the content; written only after the last question.
THOUGHT = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}{% set said = m.content or '' %}"
    "{% set thought = m.reasoning_content or '' %}{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
)
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}"
# « and » stand where an author would put {% generation %} and {% endgeneration %}.
MARKED = {
    "thoughts of earlier turns go": THOUGHT + ROLE + "{% if m.role == 'assistant' %}«{% if loop.index0 > ns.last %}"
    "<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ said }}"
    + CALLS
    + "<|im_end|>»{{ '\n' }}{% else %}{{ said }}<|im_end|>{{ '\n' }}{% endif %}{% endfor %}"
    + PROMPT,
    "the prompt opens a thought": THOUGHT
    + "{% if m.role == 'assistant' %}{% if loop.index0 > ns.last %}<|bot|><think>\n«{{ thought }}\n</think>\n{{ said }}"
    + CALLS
    + "<eos>»{% else %}<|bot|>«{{ said }}"
    + CALLS
    + "<eos>»{% endif %}{% else %}<|user|>{{ said }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|bot|><think>\n' }}{% endif %}",
    "channels, and another end for the last": "{% for m in messages %}{% if m.role == 'assistant' %}"
    "<|im_start|>assistant«"
    "{% if loop.last and m.thinking %}<|channel|>thought:{{ m.thinking }}<|im_end|><|im_start|>assistant{% endif %}"
    "<|channel|>final:{{ m.content }}"
    + CALLS
    + "{{ '<eos>' if loop.last and not add_generation_prompt else '<|im_end|>' }}»"
    "{% else %}<|im_start|>{{ m.role }}<|message|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}",
    "the next role ends a turn": "{% for m in messages %}{% if m.role == 'assistant' %}<|bot|>«{{ m.content or '' }}"
    + CALLS
    + "{% else %}<|user|>{% if not loop.first %}»{% endif %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}",
    "a token behind all": "{% for m in messages %}{% if m.role == 'assistant' %}<|bot|>\n«{{ m.content or '' }}"
    + CALLS
    + "<|im_end|>{% if loop.last %}{{ '\n' }}{% else %}»{{ '\n' }}{% endif %}"
    "{% else %}<|user|>\n{{ m.content }}<|im_end|>{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>\n{% else %}<eos>"
    "{% if messages[-1].role == 'assistant' %}»{% endif %}{% endif %}",
    "the prompt depends on the turn before": "{% set ns = namespace(tool=false) %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% if ns.tool %}<|seen|>{% else %}<|bot|>{% endif %}«{{ m.content or '' }}"
    + CALLS
    + "<eos>»{% set ns.tool = false %}{% else %}<|user|>{{ m.content }}{% set ns.tool = m.role == 'tool' %}{% endif %}"
    "{% endfor %}{% if ns.tool %}<|seen|>{% elif add_generation_prompt %}<|bot|>{% endif %}",
    "tools answer within the turn": "{% for m in messages %}{% if m.role == 'user' %}"
    "<|user|>{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}"
    "{% if not loop.first and messages[loop.index0 - 1].role == 'user' %}<|bot|>\n{% endif %}"
    "«" + CALLS + "{% if m.tool_calls and not loop.last and messages[loop.index].role == 'tool' %}»<seen>"
    "{{ messages[loop.index].content }}"
    "</seen>«{% elif m.tool_calls %}<|call|>{% endif %}{{ m.content or '' }}"
    "{% if not m.tool_calls %}<|im_end|>»\n{% else %}»{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role == 'user' %}<|bot|>\n{% endif %}",
    "a text before the first turn": "{% for m in messages %}{% if loop.first %}<eos>{% endif %}"
    + ROLE
    + "{% if m.role =="
    " 'assistant' %}«{{ m.content or '' }}"
    + CALLS
    + "<|im_end|>»{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}"
    "{% endfor %}" + PROMPT,
    "written by a macro": "{% macro write(m) %}{{ m.content or '' }}" + CALLS + "<|im_end|>{% endmacro %}"
    "{% for m in messages %}"
    + ROLE
    + "{% if m.role == 'assistant' %}«{{ write(m) }}»{% else %}{{ write(m) }}{% endif %}"
    "{{ '\n' }}{% endfor %}" + PROMPT,
    "no end but white space": "{% for m in messages %}{{ m.role }}:\n"
    "{% if m.role == 'assistant' %}«{{ m.content or '' }}"
    + CALLS
    + "\n\n»{% else %}{{ m.content }}\n\n{% endif %}{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}",
}


CALL = {"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": "naïve"}}}]}
TOOL = {"role": "tool", "content": "漢字"}
CONVERSATIONS = {
    "one": [user("q"), answer("a")],
    "several": [user("q"), answer("a"), user("q"), answer("a"), user("q"), answer("a\n\nb ")],
    "open": [user("q"), answer("<a"), user("r")],
    "thoughts in fields": [user("q"), answer("a", reasoning_content="x"), user("r"), answer("b", thinking="y\n\nz")],
    "thoughts within": [user("q"), answer("<think>\nx\n</think>\n\na"), user("r"), answer("<think>\ny\n</think>\n\nb")],
    "called": [user("q"), answer(None, **CALL), TOOL, answer("a")],
    "called with words": [user("q"), answer("let me", **CALL), TOOL, answer("<a"), user("r"), answer("b")],
    "call at the end": [user("q"), answer("", **CALL)],
    "odd words": [user("👍🏽"), answer("<|im_end|>\n"), user("<|bot|>"), answer("\n\n")],
}


template = functools.partial(compiled, added_tokens=TOKENS)


def learned(source: str, messages: list[Message], **settings: Any) -> list[list[str]]:
    opened = template(source, **settings)
    rendered = opened.render(conversation_of(messages, needs=opened.needs))
    return [[text[start:stop].decode() for start, stop in spans] for text, spans, _, _ in rendered]


def as_marked(name: str, messages: list[Message]) -> list[str]:
    opened = template(MARKED[name])
    text, *_ = opened.render(conversation_of(messages, needs=opened.needs))[0]
    parts = text.decode().replace("»«", "").split("«")[1:]
    return [part.partition("»")[0] for part in parts if part.partition("»")[0]]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", MARKED)
def test_answers_are_found_where_an_author_would_mark_them(name: str, conversation: str) -> None:
    messages = CONVERSATIONS[conversation]
    assert learned(MARKED[name].replace("«", "").replace("»", ""), messages) == [as_marked(name, messages)]


def test_all_last_or_each_answer_is_learned() -> None:
    source = MARKED["thoughts of earlier turns go"].replace("«", "").replace("»", "")
    messages = CONVERSATIONS["thoughts in fields"]
    first, last = "<think>\nx\n</think>\n\na<|im_end|>", "<think>\ny\n\nz\n</think>\n\nb<|im_end|>"
    assert learned(source, messages) == [["a<|im_end|>", last]]
    assert learned(source, messages, learn="last") == [[last]]
    assert learned(source, messages, learn="each") == [[first], [last]]
    assert learned(source, [user("q")], learn="each") == [[]]


@pytest.mark.slow
def test_marked_templates_learn_the_same_answers() -> None:
    for name in MARKED:
        marked = MARKED[name].replace("«", "{% generation %}").replace("»", "{% endgeneration %}")
        if not name.startswith(("the next", "a token", "tools")):  # with marks that cross blocks
            for messages in (CONVERSATIONS["several"], CONVERSATIONS["thoughts in fields"]):
                source = MARKED[name].replace("«", "").replace("»", "")
                for learn in ("all", "last", "each"):
                    assert learned(marked, messages, learn=learn) == learned(source, messages, learn=learn)


def test_answers_that_are_not_to_be_learned_are_left_out() -> None:
    answers = answer("a", weight=0), answer("b", train=True), answer("c", train=False)
    messages = [message for reply in answers for message in (user("q"), reply)]
    for source in ("several roles", "marked"):
        body = "{{ m.content }}<|im_end|>"
        content = f"{{% generation %}}{body}{{% endgeneration %}}" if source == "marked" else body
        written = f"{{% if m.role == 'assistant' %}}{content}{{% else %}}{body}{{% endif %}}{{{{ '\n' }}}}"
        assert learned(f"{{% for m in messages %}}{ROLE}{written}{{% endfor %}}{PROMPT}", messages) == [["b<|im_end|>"]]


MASKS = ((False, True), (0, 1), (0.0, 1.0), ("false", "true"), ("False", "True"), ("0", " 1 "), ("0.0", "0.5"))


@pytest.mark.parametrize(("withheld", "kept"), MASKS)
@pytest.mark.parametrize("name", ["train", "weight"])
def test_masks_may_be_numbers_booleans_or_texts(name: str, withheld: Any, kept: Any) -> None:
    source = f"{{% for m in messages %}}{ROLE}{{{{ m.content }}}}<|im_end|>\n{{% endfor %}}{PROMPT}"
    messages = [user("q"), answer("a", **{name: withheld}), user("r"), answer("b", **{name: kept})]
    assert learned(source, messages) == [["b<|im_end|>"]]
    messages[1]["train"], messages[3]["train"] = kept, withheld  # which wins over weight
    assert learned(source, messages) == [["a<|im_end|>"]]


_PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    "message",
    [
        *(answer("a", train="no"), answer("a", weight="heavy"), answer("a", weight=[0]), answer("a", train={})),
        *(
            {"role": "assistant", "content": [_PARTS[0], {**_PARTS[1], **mask}]}
            for mask in ({"train": "no"}, {"weight": "heavy"}, {"train": [0]})
        ),
        *(
            answer("ab", train_detail=detail)
            for detail in (
                {"begin_offset": 0, "end_offset": 0, "train": True},
                "none",
                ["none"],
                [{"begin_offset": 0, "end_offset": 0}],
                [{"begin_offset": 0, "train": True}],
                [{"begin_offset": 0.0, "end_offset": 1, "train": True}],
                [{"begin_offset": 0, "end_offset": 2, "train": True}],
                [{"begin_offset": -1, "end_offset": 1, "train": True}],
                [{"begin_offset": 1, "end_offset": 0, "train": True}],
                [{"begin_offset": 0, "end_offset": 1, "train": "no"}],
            )
        ),
    ],
)
def test_masks_that_are_not_clear_reject_the_row(message: Message) -> None:
    with pytest.raises(Rejected, match="mask_not_clear"):
        learned(MARKED["a text before the first turn"].replace("«", "").replace("»", ""), [user("q"), message])


def test_whole_turns_have_the_white_space_behind_the_end_and_a_thought_that_the_prompt_opens() -> None:
    source = MARKED["the prompt opens a thought"].replace("«", "").replace("»", "")
    messages = CONVERSATIONS["thoughts in fields"]
    assert learned(source, messages, whole_turns=True) == [["a<eos>", "<think>\ny\n\nz\n</think>\nb<eos>"]]
    source = MARKED["a text before the first turn"].replace("«", "").replace("»", "")
    assert learned(source, messages, whole_turns=True) == [["a<|im_end|>\n", "b<|im_end|>\n"]]


def test_a_loop_within_a_block_is_read_by_beginnings() -> None:
    loop = "{% for m in messages %}" + ROLE + "{{ m.content }}<|im_end|>{{ '\n' }}{% endfor %}"
    source = "{% filter trim %}{{ '' }}{% endfilter %}{% macro all() %}" + loop + "{% endmacro %}{{ all() }}" + PROMPT
    assert learned(source, CONVERSATIONS["several"]) == [["a<|im_end|>", "a<|im_end|>", "a\n\nb <|im_end|>"]]
    looking = source.replace("{{ all() }}", "{{ messages | length }}{{ all() }}")
    with pytest.raises(Rejected, match="differently once the conversation continues"):
        learned(looking, CONVERSATIONS["several"])


def test_a_turn_that_begins_otherwise_than_on_trial_is_refused() -> None:
    odd = ROLE.replace("m.role", "('odd' if m.content == 'odd' else m.role)")
    source = "{% for m in messages %}" + odd + "{{ m.content }}<|im_end|>{{ '\n' }}{% endfor %}" + PROMPT
    with pytest.raises(Rejected, match=r"message 1 begins with '<\|im_start\|>odd"):
        learned(source, [user("q"), answer("odd")])


def test_a_conversation_s_own_options_change_its_prompt() -> None:
    source = (
        "{% for m in messages %}<|bot|>{% if m.role == 'assistant' %}{{ opening }}{% endif %}{{ m.content }}<eos>"
        "{% endfor %}{% if add_generation_prompt %}<|bot|>{{ opening }}{% endif %}"
    )
    ((_, spans, _, _),) = template(source).render(Conversation(CONVERSATIONS["one"], options={"opening": "naïve "}))
    assert spans == [(len("<|bot|>q<eos><|bot|>naïve ".encode()), len("<|bot|>q<eos><|bot|>naïve a<eos>".encode()))]
