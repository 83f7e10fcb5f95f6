"""What a chat template makes of one conversation: its text, and which characters of it the assistant says.

The template's own {% generation %} markers say which, where it has them. Else it follows from renderings of the
conversation's beginnings. For the answer a of

    <|im_start|>user⏎q<|im_end|>⏎<|im_start|>assistant⏎a<|im_end|>⏎<|im_start|>user⏎…

    asked    <|im_start|>user⏎q<|im_end|>⏎<|im_start|>assistant⏎                    messages[:1], with generation prompt
    answered <|im_start|>user⏎q<|im_end|>⏎<|im_start|>assistant⏎a<|im_end|>⏎        messages[:2]
    learned                                                    a<|im_end|>          what the second has more, without
                                                                                    white space behind its last token

Each must be the beginning of the next, and of the whole. A model that was asked has to give just this: the answer and
the token that ends it. White space after that token belongs to the frame of the next turn; where the template closes a
turn by nothing but white space, that is the end mark, and is learned.

The Jinja environment is set up as `transformers` 5.23 does, whose texts and masks the tests compare. It is our own
because `transformers` renders with today's date, and gives masks for its own tokens but not the characters they come
from. It also takes a third of the time: `shared=True` spares Jinja a copy of its globals for every rendering.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from pipelines.prepare.tokenize.chat.conversation import ANSWER, QUESTION, Message, Rejected, check_parts_read
from pipelines.prepare.tokenize.chat.protocol import DATE_UNKNOWN, INVALID, OVER_LIMIT, TemplateFacts

__all__ = ["ChatTemplate", "Rendering", "Spans", "syntax_error"]

Spans = list[tuple[int, int]]

_TOO_LONG = "the chat template makes a text of more than {:,} characters"
_METHODS = frozenset(dir(dict))
_MARKER = re.compile(r"\{\%[-+]?\s*generation\s*[-+]?\%\}")


@dataclasses.dataclass(frozen=True)
class Rendering:
    """A text, and the characters [start, stop) of it that are to be learned: in order, apart from each other."""

    text: str
    spans: Spans


class ChatTemplate:
    """A chat template that renders one conversation after the other, to texts of at most `most_chars` characters.

    `start_clock` is called before anything that may take for ever: before compiling, and before each rendering.
    """

    def __init__(self, facts: TemplateFacts, *, most_chars: int, start_clock: Callable[[], None]) -> None:
        self._facts = facts
        self._most_chars = most_chars
        self._start_clock = start_clock
        self._programs: dict[str, _Program] = {}

    def render(self, messages: Sequence[Message], tools: list[Any] | None = None) -> Rendering:
        """Render a conversation, and find the assistant's parts.

        Raises: Rejected if the template refuses the messages, cannot read them, or makes something else of the
            conversation's beginning once it goes on.
        """
        program = self._program(self._facts.source if tools is None else self._facts.tools_source)
        text, spans = program.run(messages, tools, prompt=False)
        check_parts_read(messages, text)
        if not program.has_markers:
            spans = self._spans_by_prefixes(program, text, messages, tools)
        return Rendering(text, _joined(spans))

    def _program(self, source: str) -> _Program:
        if source not in self._programs:
            self._programs[source] = _Program(
                source, self._facts, most_chars=self._most_chars, start_clock=self._start_clock
            )
        return self._programs[source]

    def _spans_by_prefixes(
        self, program: _Program, text: str, messages: Sequence[Message], tools: list[Any] | None
    ) -> Spans:
        spans: Spans = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            try:
                asked, _ = program.run(messages[:index], tools, prompt=True)
                is_last = index + 1 == len(messages)
                answered = text if is_last else program.run(messages[: index + 1], tools, prompt=False)[0]
            except Rejected as rejected:
                if rejected.reason != "template_rejected":
                    raise
                raise Rejected("template_prefix", f"up to message {index}: {rejected.detail}") from rejected
            if not (answered.startswith(asked) and text.startswith(answered)):
                raise Rejected("template_prefix", _difference(asked, answered, text, index))
            spans.append((len(asked), len(answered) - self._space_behind(answered)))
        return spans

    def _space_behind(self, answered: str) -> int:
        """Characters of white space between the token that ends an answer and the end of its turn."""
        closing = self._closing
        return len(closing) - len(closing.rstrip()) if closing and answered.endswith(closing) else 0

    @functools.cached_property
    def _closing(self) -> str:
        """The token that ends an answer with the white space behind it; empty if there is no token or no space."""
        try:
            text, _ = self._program(self._facts.source).run([QUESTION, ANSWER], None, prompt=False)
        except Rejected:
            return ""
        tail = text.rpartition(ANSWER["content"])[2]
        space = tail[len(tail.rstrip()) :]
        tokens = [token for token in self._facts.added_tokens if tail.rstrip().endswith(token)]
        return max(tokens, key=len) + space if space and tokens else ""


class _Program:
    """A compiled template. Raises: Rejected if it cannot be compiled."""

    def __init__(self, source: str, facts: TemplateFacts, *, most_chars: int, start_clock: Callable[[], None]) -> None:
        environment = _environment(facts.date)
        start_clock()
        try:
            self._template = environment.from_string(source)
        except MemoryError:
            raise
        except Exception as error:  # Jinja's own, and what Python says of templates that are too deep
            raise Rejected(INVALID, str(error) or type(error).__name__) from error
        self.has_markers = _MARKER.search(source) is not None
        self._marked: Any = environment.extensions[_MarkedParts.identifier]
        self._most_chars = most_chars
        self._start_clock = start_clock
        self._variables = {**self._template.globals, **facts.variables, "documents": None}

    def run(self, messages: Sequence[Message], tools: list[Any] | None, *, prompt: bool) -> tuple[str, Spans]:
        """The text, and what of it is within markers. Raises: Rejected if the template refuses, or writes too much."""
        variables = {**self._variables, "messages": messages, "tools": tools, "add_generation_prompt": prompt}
        marked, pieces = self._marked, []
        marked.start()
        self._start_clock()
        try:
            for piece in self._template.root_render_func(self._template.new_context(variables, shared=True)):
                pieces.append(piece)
                marked.num_written += len(piece)
                if marked.num_written > self._most_chars:
                    raise Rejected(OVER_LIMIT, _TOO_LONG.format(self._most_chars))
        except (Rejected, MemoryError):
            raise
        except Exception as error:  # Jinja's own, and what Python says of values that the template cannot take
            raise Rejected("template_rejected", str(error) or type(error).__name__) from error
        return "".join(pieces), marked.spans


class _MarkedParts(Extension):
    """{% generation %} … {% endgeneration %}: notes which characters of the text are between the two."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.start()

    def start(self) -> None:
        """Begin another rendering. `num_written` is to be the number of characters that it has given so far."""
        self.num_written = 0
        self.spans: Spans = []

    def parse(self, parser: Parser) -> nodes.CallBlock:
        """Called by Jinja at the tag."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("_note"), [], [], body)
        block.set_lineno(line)
        return block

    @pass_eval_context
    def _note(self, context: nodes.EvalContext, caller: Any) -> str:
        del context
        text: str = caller()
        self.spans.append((self.num_written, self.num_written + len(text)))
        return text


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which a message's keys are found first: Jinja's own way to them is an error of `getattr`."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in _METHODS:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is dict and type(argument) is str and argument in obj:
            return obj[argument]
        return super().getitem(obj, argument)


class _Dict:
    """`dict` without what the type itself would give away."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(Namespace):
    """`namespace` without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *others = args
        values = dict(*others, **kwargs)
        for name in values:
            _require_public(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_public(name)
        super().__setitem__(name, value)


def syntax_error(source: str) -> str | None:
    """Return what is wrong with the syntax of a template; None if nothing is."""
    try:
        _environment(None).parse(source)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    return None


def _environment(date: str | None) -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_MarkedParts, loopcontrols])

    def strftime_now(form: str) -> str:
        if date is None:
            raise Rejected(DATE_UNKNOWN)
        return datetime.date.fromisoformat(date).strftime(form)

    environment.filters["tojson"] = _to_json
    own = {"raise_exception": _refuse, "strftime_now": strftime_now, "dict": _Dict(), "namespace": _Namespace}
    environment.globals |= own
    # Another text each time.
    del environment.globals["lipsum"], environment.filters["random"]
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _require_public(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no name that begins with an underscore, such as {name!r}")


def _joined(spans: Spans) -> Spans:
    """The same characters as spans in order that neither touch nor overlap; empty ones are left out."""
    joined: Spans = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _difference(asked: str, answered: str, text: str, index: int) -> str:
    split_early = not answered.startswith(asked)
    first, second = (asked, answered) if split_early else (answered, text)
    at = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(second))
    what = "the prompt of" if split_early else "what ends with"
    return f"{what} message {index} changes behind it: {first[at : at + 30]!r} becomes {second[at : at + 30]!r}"
