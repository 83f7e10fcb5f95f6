"""A traced string says what a template does with a content, or that it cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipelines.prepare.tokenize.chat.tracing import MARK, Trace, Untraceable, mark

Operation = Callable[[Any], Any]

pieces = st.text("ab \n<|", max_size=4)
chars = st.sampled_from([None, " ", "\n", "ab", "<|"])
operations: st.SearchStrategy[Operation] = st.one_of(
    pieces.map(lambda piece: lambda text: text + piece),
    pieces.map(lambda piece: lambda text: piece + text),
    chars.map(lambda each: lambda text: text.strip(each)),
    chars.map(lambda each: lambda text: text.lstrip(each)),
    chars.map(lambda each: lambda text: text.rstrip(each)),
    st.just(lambda text: text + text),
    st.just(str),
)
questions: st.SearchStrategy[Operation] = st.one_of(
    st.just(bool),
    st.just(lambda text: text == ""),
    *(
        st.sampled_from(["a", "<|", "b\n"]).map(make)
        for make in (
            lambda needle: lambda text: needle in text,
            lambda needle: lambda text: text.startswith(needle),
            lambda needle: lambda text: text.endswith((needle, "\n\n")),
            lambda needle: lambda text: text != needle,
            lambda needle: lambda text: text.split(needle)[-1],
            lambda needle: lambda text: text.rsplit(needle, 1)[0],
            lambda needle: lambda text: text.replace(needle, "x"),
        )
    ),
)


def filled(text: str, content: str) -> str:
    """The text with a content in place of its marks."""
    strip: dict[str, Operation] = {"": str, "l": str.lstrip, "r": str.rstrip, "b": str.strip}
    return MARK.sub(lambda found: strip[found[2]](content), text)


def holds(trace: Trace, content: str) -> bool:
    """Whether the content is such as the trace assumes."""
    return (
        not content.isspace()
        and content != ""
        and not any(needle in content for needle in trace.needles)
        and not {content[0], content[-1]} & trace.edges
    )


@given(st.lists(operations, max_size=6), st.text("ab \n\t\u00a0<|é漢", min_size=1, max_size=6))
def test_what_is_done_to_a_traced_string_is_what_is_done_to_the_content(done: list[Operation], content: str) -> None:
    trace = Trace()
    traced: Any = trace.content(0)
    plain: Any = content
    try:
        for operation in done:
            traced, plain = operation(traced), operation(plain)
    except Untraceable:
        assert trace.broken
        return
    assume(holds(trace, content))
    assert filled(traced, content) == plain
    assert not trace.broken


def test_what_stood_behind_white_space_is_not_known() -> None:
    """The content `"<a "` has no letter to strip at its end, and has one once its white space is gone."""
    with pytest.raises(Untraceable):
        Trace().content(0).strip().strip("ab")


@given(questions, st.text("abx \n<|é", min_size=1, max_size=6))
def test_the_answer_to_a_question_holds_for_all_contents_that_are_as_assumed(ask: Operation, content: str) -> None:
    trace = Trace()
    answer = ask(trace.content(0))
    assume(holds(trace, content))
    assert (filled(answer, content) if isinstance(answer, str) else answer) == ask(content)


def test_contents_of_several_messages_are_told_apart() -> None:
    trace = Trace()
    text = ("<" + trace.content(3) + "> ").strip() + trace.content(12).rstrip()
    assert str.__str__(text) == f"<{mark(3)}>{mark(12, right=True)}"
    assert [found[0] for found in MARK.finditer(text)] == [mark(3), mark(12, right=True)]


@pytest.mark.parametrize(
    "do",
    [
        lambda text: text.upper(),
        lambda text: text.title(),
        lambda text: text[0],
        lambda text: len(text),
        lambda text: list(text),
        lambda text: text < "a",
        lambda text: text * 2,
        lambda text: text % (),
        lambda text: text.splitlines(),
        lambda text: text.find("a"),
        lambda text: {text: 1},
        lambda text: f"{text:>10}",
        lambda text: text.encode(),
        lambda text: "" in text,
        lambda text: 3 in text,
        lambda text: text.startswith("a", 2),
        lambda text: "a" in text + "b",
        lambda text: text.strip("é"),
    ],
)
def test_anything_else_gives_up_and_is_remembered(do: Operation) -> None:
    trace = Trace()
    with pytest.raises(Untraceable):
        do(trace.content(0))
    assert trace.broken


def test_a_mark_is_two_characters_that_no_text_has() -> None:
    for text in (mark(0), mark(10, left=True), mark(10, right=True), mark(7, left=True, right=True)):
        assert MARK.fullmatch(text)
        assert not text.isprintable()
