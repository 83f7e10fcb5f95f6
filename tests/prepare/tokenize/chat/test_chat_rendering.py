"""Our Jinja environment gives the same results and refusals as the environment of `transformers`."""

import datetime
import decimal
import functools
from typing import Any

import pyarrow as pa
import pytest
import transformers

from pipelines.prepare.sources.columns.messages import objects_of
from pipelines.prepare.tokenize.chat.conversation import Message, Rejected, conversation_of
from pipelines.prepare.tokenize.chat.environment import Spans
from pipelines.prepare.tokenize.chat.renderer import ChatTemplate
from tests.prepare.tokenize.chat.chat_templates import TEMPLATES, compiled, tokenizer_of

# Three details in which our environment follows the newest releases.
NEWEST = pytest.mark.skipif(
    tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 23),
    reason=f"transformers {transformers.__version__} renders this otherwise than 5.23 and later",
)

MESSAGES = [{"role": "user", "content": "one\ntwo"}, {"role": "assistant", "content": "  three "}]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "<Adds> ünits."}}]


tokenizer = functools.partial(tokenizer_of, bos_token="<s>")
chat_template = functools.partial(compiled, variables={"bos_token": "<s>"}, added_tokens=["<|im_end|>"])


def single(opened: ChatTemplate, messages: list[Message] | None = None, tools: Any = None) -> tuple[bytes, Spans]:
    ((rendered, spans, _, _),) = opened.render(conversation_of(messages or MESSAGES, tools, needs=opened.needs))
    return rendered, spans


def rendered(template: str, messages: list[Message] | None = None, tools: Any = None) -> tuple[bytes, Spans]:
    return single(chat_template(template), messages, tools)


def text(template: str, messages: list[Message] | None = None, tools: list[Any] | None = None) -> str:
    return rendered(template, messages, tools)[0].decode()


def refusal(template: str, messages: list[Message] | None = None) -> Rejected:
    with pytest.raises(Rejected) as caught:
        rendered(template, messages)
    return caught.value


def marked(template: str) -> str:
    return template + "{% generation %}{% endgeneration %}"


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_are_those_of_transformers(name: str, tools: list[Any] | None) -> None:
    expected = tokenizer(TEMPLATES[name]).apply_chat_template(MESSAGES, tools=tools, tokenize=False)
    assert text(TEMPLATES[name], tools=tools) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "'%s has %5.1f %%' % (messages[0].role, 2)",
        "'{} {:>5} {{}}'.format('a', 'b')",
        "'-'.join(messages | map(attribute='role'))",
        "messages | map(attribute='content') | map('trim') | join(' | ')",
        "(messages[0].content.split('\\n') | list)[::-1]",
        "messages | selectattr('role', 'equalto', 'user') | list | length",
        "messages | tojson(indent=2)",
        "messages[0] | tojson(separators=(',', ':'), sort_keys=true) ~ ('ü' | tojson) ~ ('ü' | tojson(true))",
        "messages[1:] | map('items') | map('list') | list",
        "'%s' | format('x') | center(9) | indent(2, true)",
        "messages[0].content.replace('one', 'two') | replace('\\n', '\\r\\n')",
        "[1, 2, 3] | batch(2, 0) | list ~ ([1, 2, 3] | sum) ~ [3, 1] | sort ~ {'b': 1} | dictsort",
        "namespace(a=1).a ~ dict(a=[1]) ~ (2 ** 10 % 7) ~ [0] * 3 ~ none ~ nothing",
        "'a,b'.split(',', 1) ~ 'é'.encode() ~ 'x'.zfill(3) ~ 'abc' | truncate(2, true, '')",
        "messages[0].content | upper | title | string | list | unique | list | length",
        "bos_token ~ tools ~ documents ~ add_generation_prompt ~ continue_final_message",
        "range(3) | list ~ cycler('a').next() ~ joiner()() ~ (messages is iterable) ~ ('<' | escape)",
        "messages[0].items() | list ~ messages[0].get('role') ~ messages[0]['nothing']",
    ],
)
def test_what_templates_do_with_values_comes_out_as_in_transformers(expression: str) -> None:
    template = marked(f"{{{{ {expression} }}}}")
    assert text(template) == tokenizer(template).apply_chat_template(MESSAGES, tokenize=False)


@pytest.mark.parametrize(
    "template",
    [
        "{%- for m in messages if m.role == 'user' %}\n  {{- m.content }}\n{%- else %}x{%- endfor %}\n\n",
        "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ loop.index }}{% continue %}{% endfor %}",
        "{% macro m(x, y=2) %}{{ x }}{{ y }}{{ caller() }}{% endmacro %}{% call m(1) %}b{% endcall %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{% set x %}<{{ bos_token }}>{% endset %}{{ x }}{% filter upper %}a{{ x }}{% endfilter %}",
        "{% with a = 1 %}{{ a }}{% endwith %}{% for x in [[], [[]]] recursive %}{{ loop(x) ~ 'x' }}{% endfor %}",
        "{% for m in messages %}{% block b scoped %}x{% endblock %}{{ loop.cycle(1, 2) }}{{ self.b() }}{% endfor %}",
        pytest.param(
            "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}{{ messages[0] | list }}", marks=NEWEST
        ),
    ],
)
def test_statements_do_what_they_do_in_transformers(template: str) -> None:
    messages: list[Message] = [{**MESSAGES[0], "reasoning": "why", "name": None}, MESSAGES[1]]
    assert text(marked(template), messages) == tokenizer(marked(template)).apply_chat_template(
        messages, tokenize=False
    ).rstrip("\0")


@pytest.mark.parametrize(
    "expression",
    [
        "raise_exception('no')",
        "nothing.at_all",
        "messages.append(1)",
        "messages.__class__.__mro__",
        "dict.mro()",
        pytest.param("namespace(_a=1)", marks=NEWEST),
        "1 / 0",
        "range(10 ** 6)",
        "('{0.__class__.__mro__}' | attr('format'))(1).nothing.x",
    ],
)
def test_what_transformers_refuses_is_refused(expression: str) -> None:
    template = f"{{{{ {expression} }}}}"
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of many kinds
        tokenizer(template).apply_chat_template(MESSAGES, tokenize=False)
    rejected = refusal(template)
    assert rejected.reason == "template_rejected"
    if "namespace" not in expression and "dict" not in expression:  # with details that name our classes
        assert rejected.detail == " ".join(str(caught.value).split())[:300]


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def test_parts_are_joined_for_a_template_that_cannot_read_them() -> None:
    messages: list[Message] = [{"role": "user", "content": parts("it's ", "one")}, MESSAGES[1]]
    joined = [{"role": "user", "content": "it's one"}, MESSAGES[1]]
    for name in ("parts", "chatml", "header", "inst"):
        assert rendered(TEMPLATES[name], messages) == rendered(TEMPLATES[name], joined)
    printing = TEMPLATES["parts"].replace("message.content is string", "true")
    assert rendered(printing, messages) == rendered(printing, joined)


def test_parts_of_roles_that_no_template_knows_are_joined() -> None:
    template = TEMPLATES["parts"].replace("message.content is string", "message.role == 'expert'")
    assert "expert\none<" in text(template, [{"role": "expert", "content": parts("o", "ne")}, MESSAGES[1]])


def test_a_template_that_takes_nothing_but_parts_gets_those_of_every_role() -> None:
    source = "{% for m in messages %}{{ m.role }}:{{ m.content[0]['text'].strip() }}\n{% endfor %}"
    messages: list[Message] = [{"role": role, "content": parts(role.upper())} for role in ("user", "assistant", "tool")]
    assert text(marked(source), messages) == "user:USER\nassistant:ASSISTANT\ntool:TOOL\n"


def test_parts_are_joined_for_the_roles_that_need_it_alone() -> None:
    template = (
        TEMPLATES["parts"]
        .replace("message.content is string", "message.role == 'system'")
        .replace("part.text", "part.text | trim")
    )
    contents = {"system": parts(" a", "b "), "user": parts(" a", "b "), "assistant": parts("c")}
    messages: list[Message] = [{"role": role, "content": content} for role, content in contents.items()]
    expected = "<|im_start|>system\n ab <|im_end|>\n<|im_start|>user\nab<|im_end|>\n"
    assert text(template, messages).startswith(expected)


def test_an_address_that_a_message_says_is_a_text() -> None:
    messages = [{"role": "user", "content": "what is <function f at 0x7f00>?"}, MESSAGES[1]]
    assert text(TEMPLATES["chatml"], messages).startswith("<|im_start|>user\nwhat is <function f at 0x7f00>?")


def test_nothing_is_chosen_by_chance() -> None:
    for expression in ("['a', 'b'] | random", "[['a', 'b']] | map('random') | first", "lipsum()"):
        assert refusal(f"{{{{ {expression} }}}}").reason in ("template_invalid", "template_rejected")


@NEWEST
def test_values_that_json_has_no_type_for_are_shown_as_in_transformers() -> None:
    odd = {"at": datetime.date(2024, 7, 26), "by": b"x", "of": decimal.Decimal("1.5"), "in": [datetime.time(1)]}
    (messages,) = objects_of(pa.array([[{**MESSAGES[0], "odd": odd}, {**MESSAGES[1], "odd": None}]]))
    template = marked("{{ messages | tojson }}")
    expected = tokenizer(template).apply_chat_template(messages, tokenize=False)
    assert text(template, messages) == expected
    assert "<date>" in expected


@pytest.mark.parametrize("template", ["{% generation %}", "{{ 1 + }}", "{% include 'x' %}{{ x | nothing }}"])
def test_a_template_that_cannot_be_compiled_is_no_row_s_fault(template: str) -> None:
    assert refusal(template).reason == "template_invalid"


def test_a_text_that_is_too_long_is_over_the_limit_wherever_it_comes_from() -> None:
    for template in ("{{ 'x' * 101 }}", "{% for i in range(101) %}x{% endfor %}"):
        with pytest.raises(Rejected, match="template_limit") as caught:
            single(chat_template(template, text_bytes=100))
        assert caught.value.detail == "the chat template writes a text of more than 100 bytes"
    assert len(single(chat_template(marked("{{ 'x' * 100 }}"), text_bytes=100))[0]) == 100


def test_spans_are_joined_and_empty_ones_left_out() -> None:
    template = (
        "a{% generation %}b{% endgeneration %}{% generation %}c{% endgeneration %}d"
        "{% generation %}{% endgeneration %}{% generation %}e{% endgeneration %}"
    )
    assert rendered(template) == (b"abcde", [(1, 3), (4, 5)])


NEEDING = {
    "joined": "{{ message.content + '' }}",
    "joined, by key": "{{ '' + message['content'] }}",
    "a method": "{{ message.content.strip() }}",
    "a list": "{{ [message.content] | join('') + message.content }}",
    "an exception": "{% if not message.content is defined %}{{ raise_exception('') }}{% endif %}{{ message.content }}",
}


@pytest.mark.parametrize("name", NEEDING)
def test_a_template_that_needs_contents_says_which_message_has_none(name: str) -> None:
    template = f"{{% for message in messages %}}<|im_start|>{NEEDING[name]}<|im_end|>{{% endfor %}}"
    call = {"type": "function", "function": {"name": "add", "arguments": {}}}
    messages: list[Message] = [MESSAGES[0], {"role": "assistant", "content": None, "tool_calls": [call]}]
    error = refusal(template, messages)
    assert error.reason == "template_rejected"
    assert error.detail.startswith('message 1 has no content, which this template requires; set it to ""')
    assert rendered(template, [messages[0], {**messages[1], "content": ""}])
    # A refusal for another reason keeps the template's own words.
    assert refusal(f"{{{{ raise_exception('never') }}}}{template}", messages).detail == "never"
