"""Rendering of one conversation by a chat template: its text, and the assistant's bytes in it.

A template's own {% generation %} markers, if any, mark the assistant's bytes. Otherwise they follow from renderings of
the conversation's beginnings. For the answer a in

    <|im_start|>user⏎q<|im_end|>⏎<|im_start|>assistant⏎a<|im_end|>⏎<|im_start|>user⏎…

    asked    <|im_start|>user⏎q<|im_end|>⏎<|im_start|>assistant⏎                    messages[:1], with generation prompt
    answered <|im_start|>user⏎q<|im_end|>⏎<|im_start|>assistant⏎a<|im_end|>⏎        messages[:2]
    learned                                                    a<|im_end|>          the rest of the second, without
                                                                                    white space behind its last token

Each rendering must be a prefix of the next, and of the whole. A model has to generate just this: the answer and the
token that ends it. White space after that token belongs to the next turn; if a template ends turns with nothing but
white space, that is the end mark, and is learned.

One rendering is enough for a template whose syntax shows that it never looks ahead: 7 µs for a conversation of three
questions instead of 21; without this, a build takes 1.4 times the processor time. Such a template has one loop over
`messages`, at its top level, and uses them nowhere else except as `messages[0]`; it reads only attributes of `loop`
that depend on earlier messages. Behind the loop there is at most a constant within {% if add_generation_prompt %}, the
only use of this name. So when it takes message i, it has written exactly the text of the first i messages alone (one
or more). Such are the templates of Qwen 1.5 and 2, Llama 3 and Gemma 2, but not Qwen 3's, which looks for the last
question.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jinja2 import nodes

from pipelines.prepare.tokenize.chat.conversation import (
    ANSWER,
    INVALID,
    OVER_LIMIT,
    QUESTION,
    Conversation,
    Message,
    Needs,
    Rejected,
    check_parts_read,
)
from pipelines.prepare.tokenize.chat.environment import MarkedParts, Spans, create_environment

_MESSAGES, _PROMPT = "messages", "add_generation_prompt"
_PAST_OF_LOOP = ("first", "index", "index0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Template, its variables, and the limits of one rendering.

    `source` is the template, `tools_source` the one for conversations with tools; `variables` are what it sees besides
    the messages, `added_tokens` the contents of the tokenizer's added tokens. `date` (ISO) is what a template gets for
    today's.

    The limits are seconds of a core, memory (of a batch), and UTF-8 bytes of text. An ordinary rendering takes 5 to
    100 µs; a row takes one, or one for each message. How much fits into the seconds depends on the machine, but this
    far from ordinary use only templates that are broken or malicious reach the limit.
    """

    source: str
    tools_source: str
    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    added_tokens: list[str] = dataclasses.field(default_factory=list)
    date: str | None = None
    cpu_seconds: float = 5.0
    memory_bytes: int = 3 << 29
    text_bytes: int = 1 << 24


class ChatTemplate:
    """Chat template that renders conversations one at a time.

    `start_clock` is called before anything that may take forever: before compiling, and before each rendering.
    """

    def __init__(self, settings: Settings, *, start_clock: Callable[[], object]) -> None:
        self.settings = settings
        self._start_clock = start_clock
        self._programs: dict[str, _CompiledTemplate] = {}
        self.needs = Needs(lambda messages, tools: self._run(Conversation(messages, tools))[1])

    def render(self, conversation: Conversation, *, are_plain: bool = False) -> tuple[bytes, Spans]:
        """Render a conversation, and find the assistant's bytes. `are_plain`: all contents are known to be texts.

        Returns: the text in UTF-8, and its byte spans [start, stop) to learn, in order and disjoint.

        Raises: Rejected if the template refuses the messages, cannot read them, or renders the conversation's beginning
            differently once it goes on.
        """
        taken: list[int] = []
        program, text, spans = self._run(conversation, taken=taken)
        if not are_plain:
            check_parts_read(conversation.messages, text)
        if program.marked.is_used:
            return text, _joined(_marked_spans(conversation, spans))
        found = None if program.prompt is None else self._spans_in_passing(program.prompt, text, conversation, taken)
        return text, self._spans_by_prefixes(program, text, conversation) if found is None else found

    def _run(
        self, conversation: Conversation, *, taken: list[int] | None = None
    ) -> tuple[_CompiledTemplate, bytes, Spans]:
        source = self.settings.source if conversation.tools is None else self.settings.tools_source
        program = self._program(source)
        return program, *program.run(conversation, prompt=False, taken=taken)

    def _program(self, source: str) -> _CompiledTemplate:
        if source not in self._programs:
            self._programs[source] = _CompiledTemplate(source, self.settings, start_clock=self._start_clock)
        return self._programs[source]

    def _spans_in_passing(
        self, prompt: bytes, text: bytes, conversation: Conversation, taken: list[int]
    ) -> Spans | None:
        """Find the assistant's byte spans in one rendering, from the bytes written before each message, `taken`.

        Returns: None if an answer comes first, or its text does not begin with the generation `prompt`.
        """
        edges = [*taken, *[len(text)] * (len(conversation.messages) + 1 - len(taken))]
        spans: Spans = []
        for index in conversation.learned():
            start, stop = edges[index] + len(prompt), edges[index + 1]
            if index == 0 or start > stop or not text.startswith(prompt, edges[index]):
                return None
            stop -= self._space_behind(text, stop)
            if start < stop:
                spans.append((start, stop))
        return spans

    def _spans_by_prefixes(self, program: _CompiledTemplate, text: bytes, conversation: Conversation) -> Spans:
        spans: Spans = []
        for index in conversation.learned():
            try:
                asked = program.run(conversation.until(index), prompt=True)[0]
                is_last = index + 1 == len(conversation.messages)
                answered = text if is_last else program.run(conversation.until(index + 1), prompt=False)[0]
            except Rejected as rejected:
                if rejected.reason != "template_rejected":
                    raise
                raise Rejected("template_prefix", f"up to message {index}: {rejected.detail}") from rejected
            if not answered.startswith(asked):
                raise Rejected("template_prefix", f"the prompt of {_difference(asked, answered, index)}")
            if not text.startswith(answered):
                raise Rejected("template_prefix", f"what ends with {_difference(answered, text, index)}")
            spans.append((len(asked), len(answered) - self._space_behind(answered, len(answered))))
        return _joined(spans)

    def _space_behind(self, text: bytes, stop: int) -> int:
        """Return how many bytes of white space lie between an answer's end token and `stop`, the end of its turn."""
        closing, space = self._closing
        return space if closing and text.endswith(closing, 0, stop) else 0

    @functools.cached_property
    def _closing(self) -> tuple[bytes, int]:
        """End-of-turn token with the white space behind it, and the space's size in bytes; b"", 0 if one is missing."""
        try:
            text = self._program(self.settings.source).run(Conversation([QUESTION, ANSWER]), prompt=False)[0].decode()
        except Rejected:
            return b"", 0
        tail = text.rpartition(ANSWER["content"])[2]
        space = tail[len(tail.rstrip()) :]
        tokens = [token for token in self.settings.added_tokens if tail.rstrip().endswith(token)]
        return ((max(tokens, key=len) + space).encode(), len(space.encode())) if space and tokens else (b"", 0)


class _CompiledTemplate:
    """Compiled template, with its `prompt_behind_loop` as `prompt`. Raises: Rejected if it cannot be compiled."""

    def __init__(self, source: str, settings: Settings, *, start_clock: Callable[[], object]) -> None:
        environment = create_environment(settings.date)
        start_clock()
        try:
            self._template = environment.from_string(source)
            prompt = prompt_behind_loop(environment.parse(source))
        except MemoryError:
            raise
        except Exception as error:  # Jinja's errors, and Python's for templates that are nested too deeply
            raise Rejected(INVALID, str(error) or type(error).__name__) from error
        self.prompt = None if prompt is None else prompt.encode()
        self.marked: Any = environment.extensions[MarkedParts.identifier]
        self._most_bytes = settings.text_bytes
        self._start_clock = start_clock
        self._variables = {**self._template.globals, **settings.variables, "documents": None}
        # Otherwise Jinja would copy them, and their names, for every rendering, which takes twice the time.
        self._template.globals = {}

    def run(self, conversation: Conversation, *, prompt: bool, taken: list[int] | None = None) -> tuple[bytes, Spans]:
        """Return the text, and its byte spans within {% generation %} markers.

        A template that never looks ahead appends to `taken` the number of bytes written before each message.
        Raises: Rejected if the template refuses the messages, or writes too much.
        """
        marked, pieces, seen = self.marked, [], conversation.messages
        marked.start()
        if taken is not None and self.prompt is not None:
            seen = _Watched(seen, marked, taken)
        variables = {**self._variables, **conversation.options, "messages": seen, "tools": conversation.tools}
        variables["add_generation_prompt"] = prompt
        self._start_clock()
        try:
            for piece in self._template.root_render_func(self._template.new_context(variables, shared=True)):
                pieces.append(encoded := piece.encode())
                marked.num_written += len(encoded)
                if marked.num_written > self._most_bytes:
                    most = f"{self._most_bytes:,}"
                    raise Rejected(OVER_LIMIT, f"the chat template makes a text of more than {most} bytes")
        except (Rejected, MemoryError):
            raise
        except Exception as error:  # Jinja's errors, and Python's for values that the template cannot handle
            raise Rejected("template_rejected", str(error) or type(error).__name__) from error
        return b"".join(pieces), marked.spans


class _Watched(list[Message]):
    """List of messages that appends to `taken` how many bytes are written each time a loop takes a message."""

    def __init__(self, messages: Sequence[Message], marked: MarkedParts, taken: list[int]) -> None:
        super().__init__(messages)
        self._marked = marked
        self._taken = taken

    def __iter__(self) -> Iterator[Message]:
        for message in super().__iter__():
            self._taken.append(self._marked.num_written)
            yield message


def _marked_spans(conversation: Conversation, spans: Spans) -> Spans:
    """Return the spans between markers without those of answers that are not to be learned."""
    if not conversation.unlearned:
        return spans
    answers = [index for index, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    if len(spans) != len(answers):
        raise Rejected("template_prefix", f"{len(spans)} spans between markers, but {len(answers)} answers")
    return [span for index, span in zip(answers, spans, strict=True) if index not in conversation.unlearned]


def _joined(spans: Spans) -> Spans:
    """Return the spans sorted and merged, so that none is empty and no two touch or overlap."""
    joined: Spans = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _difference(beginning: bytes, whole: bytes, index: int) -> str:
    first, second = beginning.decode(), whole.decode()
    at = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(second))
    return f"message {index} changes behind it: {first[at : at + 30]!r} becomes {second[at : at + 30]!r}"


def prompt_behind_loop(tree: nodes.Template) -> str | None:
    """Return the generation prompt ('' for none) of a template that never looks ahead; None for other templates."""
    body = [node for node in tree.body if not _is_dead(node)]
    at = next((at for at, node in enumerate(body) if isinstance(node, nodes.For)), len(body))
    if at == len(body) or len(body) > at + 2:
        return None
    loop: nodes.For = body[at]  # type: ignore[assignment]
    tail = body[at + 1] if len(body) > at + 1 else None
    copies = [node for node in body[:at] if isinstance(node, nodes.Assign) and _is_name(node.node, _MESSAGES)]
    targets = [copy.target for copy in copies]
    iterated = [_MESSAGES, *(target.name for target in targets if isinstance(target, nodes.Name))]
    if loop.else_ or loop.test or not any(_is_name(loop.iter, name) for name in iterated):
        return None
    prompt = _constant_if_prompted(tail)
    if len(iterated) != 1 + len(copies):
        return None
    known = [loop.iter, *targets, *(copy.node for copy in copies), getattr(tail, "test", None)]
    items = (item for node in body for item in node.find_all(nodes.Getitem) if _is_name(item.node, _MESSAGES))
    known += [item.node for item in items if isinstance(item.arg, nodes.Const) and item.arg.value == 0]
    parts = (part for part in loop.find_all(nodes.Getattr) if _is_name(part.node, "loop"))
    known += [part.node for part in parts if part.attr in _PAST_OF_LOOP]
    told = {id(node) for node in known}
    uses = (name for node in body for name in node.find_all(nodes.Name))
    is_proved = all(id(name) in told for name in uses if name.name in (*iterated, "loop", _PROMPT))
    return prompt if is_proved else None


def _constant_if_prompted(tail: nodes.Node | None) -> str | None:
    """Return the constant text of an {% if add_generation_prompt %}, '' for no node at all; None for any other node."""
    if tail is None:
        return ""
    if not isinstance(tail, nodes.If) or not _is_name(tail.test, _PROMPT) or tail.elif_ or tail.else_:
        return None
    outputs = [part for node in tail.body for part in getattr(node, "nodes", [node])]
    try:
        return "".join(str(part.as_const()) for part in outputs)
    except (nodes.Impossible, AttributeError):
        return None


def _is_dead(node: nodes.Node) -> bool:
    """Return whether a node is {% if not add_generation_prompt is defined %}, whose body never runs."""
    if not isinstance(node, nodes.If) or node.elif_ or node.else_ or not isinstance(node.test, nodes.Not):
        return False
    asked = node.test.node
    return isinstance(asked, nodes.Test) and asked.name == "defined" and _is_name(asked.node, _PROMPT)


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name
