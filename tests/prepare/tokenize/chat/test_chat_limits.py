"""A chat template of a stranger ends, and takes little memory, whatever it asks for; and ends alike everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from pipelines.prepare.tokenize.chat import limits
from pipelines.prepare.tokenize.chat.messages import Rejected
from pipelines.prepare.tokenize.chat.rendering import ChatTemplate, open_template
from tests import building
from tests.prepare.tokenize.chat.chat_templates import TEMPLATES, chat_tokenizer
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io.errors import TokenizerError

MESSAGES = [{"role": "user", "content": "one\ntwo"}, {"role": "assistant", "content": "  three "}]
GROWING = (
    "{% set ns = namespace(s=START) %}{% for i in range(60) %}{% set ns.s = STEP %}{% endfor %}{{ ns.s | length }}"
)


def tokenizer(template: str) -> Any:
    made: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    made.chat_template = template
    return made


def rendered(template: str) -> str:
    return ChatTemplate(tokenizer(template)).text(MESSAGES)


def refusal(template: str) -> str:
    with pytest.raises(Rejected) as caught:
        rendered(template)
    assert caught.value.reason == "template_limit", caught.value
    return caught.value.detail


def growing(start: str, step: str) -> str:
    return GROWING.replace("START", start).replace("STEP", step)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that are reached at once."""
    monkeypatch.setattr(limits, "MOST_WORK", 1 << 22)
    monkeypatch.setattr(limits, "MOST_CHARS", 1 << 18)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for x in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}",
        "{% for i in range(100000) %}{% generation %}{% for j in range(100000) %}{% endfor %}{% endgeneration %}"
        "{% endfor %}",
    ],
)
def test_loops_and_calls_are_counted(template: str) -> None:
    assert "turns of loops" in refusal(template)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "template",
    [
        growing("'x'", "ns.s + ns.s"),
        growing("'x'", "ns.s ~ ns.s"),
        growing("'x'", "[ns.s, ns.s] | join"),
        growing("'x'", "ns.s | replace('x', 'xx')"),
        growing("'x'", "ns.s.replace('x', 'xx')"),
        growing("'x'", "(ns.s + ns.s) | trim"),
        growing("'x'", "nothing | default(ns.s + ns.s)"),
        growing("'x'", "{}.get('a', ns.s + ns.s)"),
        growing("['x']", "ns.s + ns.s"),
        growing("['x']", "[ns.s, ns.s]"),
        growing("['x']", "(ns.s, ns.s)"),
        growing("['x']", "{'a': ns.s, 'b': ns.s}"),
        growing("['x']", "dict(a=ns.s, b=ns.s)"),
        growing("['x']", "namespace(a=ns.s, b=ns.s)"),
        "{% macro m(s, n) %}{{ m(s + s, n - 1) if n else s | length }}{% endmacro %}{{ m('x', 60) }}",
        "{% macro m(s, n, t=s + s) %}{{ m(t, n - 1) if n else t | length }}{% endmacro %}{{ m('x', 60) }}",
        "{% set x = 'x' %}" + "{% set x = (x + x) | trim %}" * 60,
        "{% set x = 'x' * 100000 %}{% for i in range(1000) %}{{ x }}{% endfor %}",
        "{% set x = 'x' * 100000 %}{% set y %}{% for i in range(1000) %}{{ x }}{% endfor %}{% endset %}",
        "{% for i in range(1000) %}" + "text " * 1000 + "{% endfor %}",
        "{{ range(100000) | map('center', 10000) | list | length }}",
    ],
)
def test_what_grows_in_a_loop_stops_growing(template: str) -> None:
    refusal(template)


@pytest.mark.parametrize(
    "expression",
    [
        "'x' * 10 ** 9",
        "([1] * 10 ** 9) | length",
        "10 ** 10000000",
        "'x' | center(10 ** 9)",
        "'x'.center(1000000000)",
        "('x' | attr('center'))(1000000000)",
        "'1'.zfill(1000000000)",
        "'x'.encode().ljust(1000000000)",
        "(1).to_bytes(1000000000, 'big')",
        "'%1000000000d' % 1",
        "'%.1000000000f' | format(1.5)",
        "'%*d' % (1000000000, 1)",
        "'{:1000000000}'.format(1)",
        "'{:{}}'.format(1, 1000000000)",
        "'{a:1000000000}'.format_map({'a': 1})",
        "'a\\nb' | indent(1000000000)",
        "[1, [2]] | tojson(indent=1000000000)",
        "[1] | slice(1000000000) | list",
        "[1] | batch(1000000000, 'x') | list",
        "('\\t' * 10000).expandtabs(1000000)",
        "('a' * 10000).translate({97: 'x' * 100000})",
        "('http://' * 10000) | urlize",
        "('a ' * 10000) | wordwrap(1, wrapstring='x' * 100000)",
        "dict.fromkeys(range(100000), 'x' * 1000000) | length",
        "1.5 | round(100000000, 'ceil')",
    ],
)
@pytest.mark.parametrize("form", ["{{ E }}", "{% set x = E %}{{ x | length }}"])
def test_what_would_make_gigabytes_at_once_is_refused_beforehand(expression: str, form: str) -> None:
    refusal(form.replace("E", expression))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("change", ["x | upper", "x.upper()", "x | urlencode"])
def test_changing_a_long_text_again_and_again_is_counted(change: str) -> None:
    template = "{% set x = 'ß' * 100000 %}{% for i in range(1000) %}{% set y = CHANGE %}{% endfor %}"
    assert "as much work" in refusal(template.replace("CHANGE", change))


def test_a_filter_block_is_refused_as_the_filter_is() -> None:
    refusal("{% filter center(1000000000) %}x{% endfilter %}")


@pytest.mark.parametrize("name", TEMPLATES)
def test_ordinary_templates_render_as_without_limits(name: str) -> None:
    template = TEMPLATES[name]
    expected = tokenizer(template).apply_chat_template(MESSAGES, tokenize=False)
    assert rendered(template) == expected


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
        "messages[1:] | map('items') | map('list') | list",
        "'%s' | format('x') | center(9) | indent(2, true)",
        "messages[0].content.replace('one', 'two') | replace('\\n', '\\r\\n')",
        "[1, 2, 3] | batch(2, 0) | list ~ ([1, 2, 3] | sum) ~ [3, 1] | sort ~ {'b': 1} | dictsort",
        "namespace(a=1).a ~ dict(a=[1]) ~ (2 ** 10 % 7) ~ [0] * 3 ~ none ~ nothing",
        "'a,b'.split(',', 1) ~ 'é'.encode() ~ 'x'.zfill(3) ~ 'abc' | truncate(2, true, '')",
        "messages[0].content | upper | title | string | list | unique | list | length",
    ],
)
def test_what_templates_do_with_values_comes_out_as_without_limits(expression: str) -> None:
    template = f"{{{{ {expression} }}}}"
    assert rendered(template) == tokenizer(template).apply_chat_template(MESSAGES, tokenize=False)


def test_a_long_conversation_is_within_the_limits() -> None:
    messages = [{"role": role, "content": "word " * 1000} for _ in range(100) for role in ("user", "assistant")]
    template = tokenizer(TEMPLATES["header_marked"])
    expected = template.apply_chat_template(messages, tokenize=False)
    assert ChatTemplate(template).render(messages).text == expected


@pytest.mark.usefixtures("small")
def test_each_rendering_has_all_of_the_limits() -> None:
    template = ChatTemplate(tokenizer("{% for i in range(2000) %}{% endfor %}{{ messages[0].content }}"))
    assert {template.text(MESSAGES) for _ in range(20)} == {MESSAGES[0]["content"]}


def test_a_template_that_is_over_the_limits_for_any_question_is_refused_before_any_work() -> None:
    with pytest.raises(TokenizerError, match="spends more on a question and its answer than a row may take") as caught:
        open_template(tokenizer("{{ 'x' * 10 ** 9 }}"))
    assert "mend the template" in caught.value.remedy


def test_a_template_that_is_none_is_named_as_such() -> None:
    with pytest.raises(TokenizerError, match="the chat template cannot be compiled: unexpected"):
        open_template(tokenizer("{{ 1 + }}"))


def test_the_same_template_elsewhere_in_the_process_has_no_limits() -> None:
    template = tokenizer("{{ 'x' * 20000000 }}")
    refusal(template.chat_template)
    assert len(template.apply_chat_template(MESSAGES, tokenize=False)) == 20_000_000


def test_rows_over_the_limits_are_rejected_with_that_reason(zoo: Zoo, tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if 'loop' in m.content %}{{ 'x' * 10 ** 9 }}{% endif %}"
        "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    chats = chat_tokenizer(zoo, tmp_path / "tokenizer", template=template)
    rows = [{"messages": [{**MESSAGES[0], "content": text}, MESSAGES[1]]} for text in ["a"] * 9 + ["endless loop"]]
    data = building.source(tmp_path / "in", train=rows)
    options = {"layout": "chat", "tokenizer": chats, "max_length": 64, "max_error_rate": "0.2"}
    outcome = building.command("build", data, *building.options(tmp_path / "out", **options))
    assert outcome.status == 0, outcome.err
    ledger = building.read_manifest(tmp_path / "out").splits["train"].ledger
    assert dict(ledger.unusable) == {"template_limit": 1}
