"""A chat template of a stranger ends, and takes little memory, whatever it asks for; and costs no row but its own."""

import concurrent.futures
from typing import Any

import pyarrow as pa
import pytest

from pipelines.prepare.tokenize.chat.conversation import Message
from pipelines.prepare.tokenize.chat.program import Settings
from pipelines.prepare.tokenize.chat.template import ChatRenderer, Rendered, open_template
from tests.prepare.tokenize.chat.chat_templates import TEMPLATES, tokenizer_of
from tfrecord_io.errors import TokenizerError

MESSAGES: list[Message] = [{"role": "user", "content": "one\ntwo"}, {"role": "assistant", "content": "  three "}]
SMALL = {"cpu_seconds": 0.3, "memory_bytes": 1 << 29, "text_bytes": 1 << 18}
MARKER = "{% generation %}{% endgeneration %}"
# The row's content determines its cost.
TRAPS = (
    "{% for m in messages %}"
    "{% if 'power' in m.content %}{{ 10 ** (messages | length * 9 ** 9) }}{% endif %}"
    "{% if 'memory' in m.content %}{{ ('x' * messages | length * 10 ** 9) | length }}{% endif %}"
    "{{ m.content }}{% endfor %}" + MARKER
)


def template_of(source: str, limits: dict[str, Any] = SMALL) -> ChatRenderer:
    return ChatRenderer(Settings(source=source, tools_source=source, **limits))


def conversations(*contents: str) -> pa.Array:
    rows = [[{"role": "user", "content": content}] for content in contents]
    return pa.array(rows, pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})))


def as_text(rendered: Rendered) -> list[str]:
    return [str(text) for text in rendered.texts.strings.to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s | length }}",
        "{% for x in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}",
        "{{ 10 ** 1000000000 }}",
        "{% set x = '%1000000000d' % 1 %}{{ x | length }}",
    ],
)
def test_what_does_not_end_or_takes_gigabytes_is_ended(template: str) -> None:
    rendered = template_of(template).render({"messages": pa.array([MESSAGES])})
    assert rendered.reasons.tolist() == ["template_limit"]
    assert rendered.details[0] in (
        "the chat template takes more than 0.3 seconds of processor time",
        "the chat template takes more memory than allowed",
    )


def test_a_long_conversation_is_within_the_limits() -> None:
    messages = [{"role": role, "content": "word " * 1000} for _ in range(100) for role in ("user", "assistant")]
    rendered = template_of(TEMPLATES["header"], {}).render({"messages": pa.array([messages])})
    assert rendered.reasons.tolist() == [""]
    assert as_text(rendered)[0].count("word") == 200_000


@pytest.mark.slow
def test_each_rendering_has_all_of_the_limits() -> None:
    """All together exceed the limit of one, and no row is rejected."""
    template = template_of("{% for i in range(99999) %}{% endfor %}{{ messages[0].content }}" + MARKER)
    rendered = template.render({"messages": conversations(*map(str, range(100)))})
    assert as_text(rendered) == [str(row) for row in range(100)]


@pytest.mark.slow
@pytest.mark.parametrize("trap", ["power", "memory"])
def test_a_row_over_the_limits_costs_itself_only(trap: str) -> None:
    contents = [f"row {number}" for number in range(20)]
    contents[3] = contents[17] = trap
    rendered = template_of(TRAPS).render({"messages": conversations(*contents)})
    assert [row for row, reason in enumerate(rendered.reasons) if reason] == [3, 17]
    assert set(rendered.reasons) == {"", "template_limit"}
    assert as_text(rendered) == [text if text != trap else "" for text in contents]
    assert rendered.details.keys() == {3, 17}


def test_a_template_that_is_over_the_limits_for_any_question_is_refused_before_any_work() -> None:
    with pytest.raises(TokenizerError, match="exceeds a limit when it writes a question and its answer") as caught:
        open_template(tokenizer_of("{{ ('x' * 10 ** 10) | length }}"))
    assert "correct a copy of the template" in caught.value.remedy


def test_a_template_that_is_none_is_named_as_such() -> None:
    with pytest.raises(TokenizerError, match="the chat template cannot be compiled: unexpected"):
        open_template(tokenizer_of("{{ 1 + }}"))


@pytest.mark.slow
def test_threads_get_the_rows_that_they_asked_for() -> None:
    template = template_of("{{ messages[0].content }}" + MARKER)
    batches = [[f"{number} {row}" for row in range(50)] for number in range(40)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        texts = list(threads.map(lambda batch: as_text(template.render({"messages": conversations(*batch)})), batches))
    assert texts == batches


def test_no_rows_are_no_rows() -> None:
    assert as_text(template_of(TRAPS).render({"messages": conversations()})) == []
