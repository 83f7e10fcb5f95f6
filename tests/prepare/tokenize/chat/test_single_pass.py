"""What is found in one rendering is what renderings of all beginnings give; templates that look ahead get those."""

import random

import pytest

from pipelines.prepare.tokenize.chat.conversation import Conversation, Message, Rejected
from pipelines.prepare.tokenize.chat.environment import create_environment
from pipelines.prepare.tokenize.chat.rendering import ChatTemplate, Settings, prompt_behind_loop
from tests.prepare.tokenize.chat.chat_templates import TEMPLATES

TURN = "{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}"
LOOP = f"{{% for m in messages %}}{TURN}{{% endfor %}}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
PASSING = {
    **{name: TEMPLATES[name] for name in ("chatml", "header", "plain", "tools", "thinking", "parts")},
    "as Llama 3": "{% set turns = messages %}{% for m in turns %}{% set c = m.content | trim %}"
    "{% if loop.index0 == 0 %}{% set c = '<s>' + c %}{% endif %}{{ m.role + c }}{% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}",
    "as Gemma 2": "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}"
    + TURN
    + "{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>model\n'}}{% endif %}",
    "prompt by default": "{% if not add_generation_prompt is defined %}"
    "{% set add_generation_prompt = false %}{% endif %}" + LOOP + PROMPT,
    "state": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"
    + TURN
    + "{% if m.content == 'stop' %}{% break %}{% endif %}{% endfor %}"
    + PROMPT,
    "buffered": "{% for m in messages %}{% filter upper %}" + TURN + "{% endfilter %}{% endfor %}" + PROMPT,
    "no prompt": LOOP,
    "another prompt": LOOP + "{% if add_generation_prompt %}assistant:{% endif %}",
}
LOOKING = {
    "inst": TEMPLATES["inst"],
    "last": LOOP.replace(TURN, TURN + "{% if loop.last %}.{% endif %}"),
    "next": LOOP.replace(TURN, TURN + "{{ loop.nextitem.role }}"),
    "count": "{{ messages | length }}" + LOOP,
    "last message": LOOP.replace(TURN, TURN + "{{ messages[-1].role }}"),
    "all but the first": "{% for m in messages[1:] %}" + TURN + "{% endfor %}",
    "copied": "{% set a = messages %}{{ a | length }}" + LOOP,
    "unpacked": "{% set a, b = messages %}" + LOOP,
    "backwards": LOOP.replace("messages", "messages | reverse"),
    "none": LOOP.replace("{% endfor %}", "{% else %}none{% endfor %}"),
    "filtered": LOOP.replace("messages", "messages if m.content"),
    "twice": LOOP + LOOP,
    "text behind": LOOP + "end" + PROMPT,
    "prompted within": LOOP.replace(TURN, TURN + "{% if add_generation_prompt %}!{% endif %}") + PROMPT,
    "not prompted": LOOP + PROMPT.replace("{% endif %}", "{% else %}</s>{% endif %}"),
    "counting prompt": LOOP + PROMPT.replace("'<|im", "n ~ '<|im"),
    "given to a macro": "{% macro f(x) %}{{ x | length }}{% endmacro %}{{ f(messages) }}" + LOOP,
    "in a block": "{% block b %}" + LOOP + "{% endblock %}",
}


def found(source: str, messages: list[Message], *, by_prefixes: bool) -> object:
    settings = Settings(source=source, tools_source=source, added_tokens=["<|im_end|>"])
    template = ChatTemplate(settings, start_clock=lambda: None)
    if by_prefixes:
        template._program(source).prompt = None
    try:
        return template.render(Conversation(messages))
    except Rejected as rejected:
        return rejected.reason, rejected.detail


def conversations() -> list[list[Message]]:
    rng = random.Random(0)
    contents = ["one", "", " two\n", "stop", "</think>three", "<|im_end|>\n"]
    usual = [
        [("system", "user", "assistant", "user", "assistant"), ("user", "assistant") * 3][n % 2] for n in range(20)
    ]
    odd = [tuple(rng.choices(["system", "user", "assistant", "assistant"], k=rng.randint(1, 6))) for _ in range(60)]
    return [[{"role": role, "content": rng.choice(contents)} for role in roles] for roles in [*usual, *odd]]


@pytest.mark.parametrize("name", PASSING)
def test_a_single_rendering_says_what_all_beginnings_say(name: str) -> None:
    source = PASSING[name]
    assert prompt_behind_loop(create_environment().parse(source)) is not None
    for messages in conversations():
        assert found(source, messages, by_prefixes=False) == found(source, messages, by_prefixes=True)


@pytest.mark.parametrize("name", LOOKING)
def test_a_template_that_may_look_ahead_is_not_taken_for_one_that_does_not(name: str) -> None:
    assert prompt_behind_loop(create_environment().parse(LOOKING[name])) is None
