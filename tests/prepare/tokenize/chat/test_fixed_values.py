"""A chat template writes the same text on every machine, or is refused."""

import datetime
import json
import re
import sys
from typing import Any

import pytest

from pipelines import filters
from pipelines.prepare.tokenize.chat.conversation import Message, Rejected, conversation_of
from pipelines.prepare.tokenize.chat.environment import create_environment
from tests.prepare.tokenize.chat.chat_templates import TEMPLATES, compiled
from tests.support import processes
from tests.support.processes import REPOSITORY

DATE = "2024-07-26"
MESSAGES: list[Message] = [
    {"role": "user", "content": "Name a colour.", "id": "a1", "lang": "en", "site": "x"},
    {"role": "assistant", "content": "Blue.", "id": "a2", "lang": "en", "site": "x"},
]
REFUSED = r"would differ between runs|is not JSON serializable|No filter named|has no len\(\)"


def text(source: str, *, date: str | None = DATE) -> str:
    opened = compiled(source + "{% generation %}{% endgeneration %}", tools_source="", date=date)
    return opened.render(conversation_of(MESSAGES, needs=opened.needs))[0][0].decode()


def text_or_refusal(source: str) -> str:
    try:
        return text(source)
    except Rejected as rejected:
        return f"{rejected.reason}: {rejected.detail}"


# Values without a text. A filter may iterate over the second ones instead.
SILENT = (
    *("raise_exception", "strftime_now", "range", "dict", "namespace", "cycler('a')", "joiner()"),
    *("cycler('a').next", "messages[0].content.upper", "messages[0].content.format", "messages[0].content['upper']"),
    *("messages[0].content | attr('upper')", "messages[0].items", "messages.index", "(1).bit_length", "self.b"),
    *("[messages[0].content.upper]", "{'a': range}", "namespace(a=joiner())", "(messages[0].keys() - ['role'])"),
    "(['a', 'b'] - messages[0].keys())",
)
ITERATORS = (
    *("messages | map(attribute='items') | list", "(messages | map('trim'))", "(messages | select)"),
    *("(messages | batch(1))", "(messages[0] | items)", "(messages | reverse)"),
)
SPELLINGS = (
    *("{x}", "{x} | string", "({x} | string)[-8:]", "{x} | upper", "{x} ~ ''", "'%s' % {x}", "'%r' % [{x}]"),
    *("'{{}}'.format({x})", "[{x}] | join", "[{x}] | string | length", "{x} | replace('a', 'b')", "{x} | center(80)"),
    *("{x} | escape", "{{'a': {x}}} | string | urlencode", "'%s' | format({x})", "[{x}] | pprint"),
)


@pytest.mark.parametrize("value", [*SILENT, *ITERATORS])
def test_a_value_without_a_fixed_text_is_refused_however_it_is_written(value: str) -> None:
    for spelling in SPELLINGS:
        template = f"{{% block b %}}{{% endblock %}}{{{{ {spelling.format(x=value)} }}}}"
        outcome = text_or_refusal(template)
        is_iterated = value in ITERATORS and not re.search("0x|object at|<", outcome)
        assert re.search(REFUSED, outcome) or is_iterated, (template, outcome)


def test_a_filter_or_global_has_no_result_with_an_address() -> None:
    made: Any = create_environment(DATE)
    for name, value in made.globals.items():
        with pytest.raises(Exception, match="would differ between runs"):
            str(value)
        assert name
    for name in made.filters:
        assert "0x" not in text_or_refusal(f"{{{{ messages | {name} }}}}"), name
        assert "0x" not in text_or_refusal(f"{{{{ 'a' | {name} }}}}"), name


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("(messages[0].keys() - ['role', 'content']) | list", "['id', 'lang', 'site']"),
        ("(messages[0].keys() - ['role', 'content']) | length", "3"),
        ("(messages[0].keys() - messages[1].keys()) | length", "0"),
        ("'y' if messages[0].keys() - messages[1].keys() else 'n'", "n"),
        ("(messages[0].items() - messages[1].items()) | list", "[('role', 'user'), ('content', 'Name a colour.'), "
         "('id', 'a1')]"),
        ("(messages[0].keys() - ['role'] - ['id']) | join", "contentlangsite"),
        ("(['z', 'a', 'role'] - messages[0].keys()) | join", "za"),
        ("3 - 1.5", "1.5"),
    ],
)  # fmt: skip
def test_differences_of_keys_are_in_their_order(expression: str, expected: str) -> None:
    assert text(f"{{{{ {expression} }}}}") == expected


def test_a_date_is_asked_for_by_name_and_given_once_known() -> None:
    assert text("{{ strftime_now('%d %b %Y') }}") == "26 Jul 2024"
    with pytest.raises(Rejected, match="template_date"):
        text("{{ strftime_now('%d %b %Y') }}", date=None)


@pytest.mark.parametrize("day", ["1999-12-31", "2000-01-01", "2024-02-29", "2026-11-09"])
def test_dates_are_those_of_strftime(day: str) -> None:
    form = " ".join([*(f"%{name}" for name in "aAbBcdDeFGhHIjmMpSTuUVwWxXyY%"), *(f"%-{n}" for n in "deHIjmMSUVWy")])
    assert text(f"{{{{ strftime_now('{form}') }}}}", date=day) == datetime.datetime.fromisoformat(day).strftime(form)


@pytest.mark.parametrize("form", ["%s", "%z", "%Z", "%k", "%+", "%Ex", "%^a", "%-A", "%", "%\n"])
def test_what_depends_on_the_clock_the_zone_or_the_machine_is_refused(form: str) -> None:
    refusal = text_or_refusal(f"{{{{ strftime_now({form!r}) }}}}")
    assert refusal.startswith("template_rejected: the chat template writes the date with")


_LOOP = (
    "{% for message in messages %}{{ message.role }}: {% if message.role == 'assistant' %}{% generation %}"
    "{{ message.content }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}\n{% endfor %}"
)
MACHINES = {
    **TEMPLATES,
    "set": "{% for message in messages %}{% for key in message.keys() - ['role', 'content'] %} {{ key }}="
    "{{ message[key] }}{% endfor %}{% endfor %}" + _LOOP,
    "zone": "{{ strftime_now('%s') }}" + _LOOP,
    "zone's name": "{{ strftime_now('%Z') }}" + _LOOP,
    "date": "{{ strftime_now('%c %x %X %p') }}" + _LOOP,
    "address": "{{ (raise_exception | string)[-8:] }} {{ raise_exception | upper }}" + _LOOP,
    "address's length": "{{ messages[0].content.upper | string | length }}" + _LOOP,
    "sorted by address": "{{ {(1, 'a'): 1, ('a', 1): 2, (2, 'b'): 3} | pprint }}" + _LOOP,
    "items": "{{ (messages[0].items() - messages[1].items()) | map('join', '=') | join(' ') }}" + _LOOP,
    "unique": "{{ messages | map(attribute='lang') | unique | join }}{{ messages[0] | dictsort }}" + _LOOP,
    "groups": "{% for site, of in messages | groupby('site') %}{{ site }}{{ of | length }}{% endfor %}" + _LOOP,
    "set written": "{{ messages[0].keys() - ['role'] }}" + _LOOP,
    "keys": "{{ messages[0].keys() }}{{ messages[0] }}{{ namespace(a=1) }}{{ range(3) }}" + _LOOP,
    "macro": "{% macro m(x) %}{{ x }}{% endmacro %}{{ m }}{{ m('a') }}" + _LOOP,
}
_RENDER = """
import json, os, sys, time
from tests.prepare.tokenize.chat.test_fixed_values import MACHINES, text_or_refusal
machines = []
for zone in ("UTC", "Asia/Kathmandu", "America/St_Johns"):
    os.environ["TZ"] = zone
    time.tzset()
    machines.append({name: text_or_refusal(source) for name, source in MACHINES.items()})
print(json.dumps(machines))
"""


@pytest.mark.slow
def test_templates_give_one_text_under_any_hash_seed_and_time_zone() -> None:
    assert len(MACHINES) >= 20
    machines = []
    for seed in ("0", "4294967295"):
        ended = processes.run([sys.executable, "-c", _RENDER], env={**processes.environment(), "PYTHONHASHSEED": seed})
        machines += json.loads(ended.stdout)
    assert len(machines) == 6
    for name in MACHINES:
        assert len({machine[name] for machine in machines}) == 1, name
    assert "id=a1 lang=en site=x id=a2" in machines[0]["set"]
    refused = {name for name, source in machines[0].items() if source.startswith("template_")}
    assert {"zone", "zone's name", "address", "address's length", "sorted by address", "set written"} <= refused
    assert {"set", "date", "items", "unique", "groups", "keys", "macro"}.isdisjoint(refused)


def test_the_page_says_of_all_that_a_template_or_ready_function_sees_why_it_is_the_same() -> None:
    page = (REPOSITORY / "docs/explanation/exactness.md").read_text(encoding="utf-8")
    section = page.partition("## Templates and ready functions")[2].partition("\n## ")[0]
    documented: dict[str, set[str]] = {}
    for kind, names in re.findall(r"^- \*\*([\w ]+)\*\* ([^:]+):", section, re.M):
        documented.setdefault(kind, set()).update(re.findall(r"`(\w+)`", names))
    made: Any = create_environment(DATE)
    seen = {
        "global": set(made.globals),
        "filter": {name for name in made.filters if name.isidentifier()},
        "test": {name for name in made.tests if name.isidentifier()},
        "ready function": set(filters.__all__),
        "variable": {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"},
    }
    assert {kind: names - documented.get(kind, set()) for kind, names in seen.items()} == {kind: set() for kind in seen}
