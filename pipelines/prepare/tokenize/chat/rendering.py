"""A tokenizer's chat template, and which characters of what it gives are the assistant's.

`transformers` renders the text (Jinja, in its sandbox). Which part of it is to be learned comes from the template's own
{% generation %} markers, where it has them; else from renderings of the conversation's beginnings. For the answer a of

    <|im_start|>user⏎q<|im_end|>⏎<|im_start|>assistant⏎a<|im_end|>⏎<|im_start|>user⏎…

    asked    <|im_start|>user⏎q<|im_end|>⏎<|im_start|>assistant⏎                    messages[:1], with generation prompt
    answered <|im_start|>user⏎q<|im_end|>⏎<|im_start|>assistant⏎a<|im_end|>⏎        messages[:2]
    learned                                                    a<|im_end|>          what the second has more, without
                                                                                    white space behind its last token

which needs each to be the beginning of the next, and of the whole. A model that was asked has to give just this: the
answer and the token that ends it. White space after that token belongs to the frame of the next turn; where the
template closes a turn by nothing but white space, that is the end mark, and is learned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from pipelines.prepare.tokenize.chat.limits import Meter, OverLimit
from pipelines.prepare.tokenize.chat.messages import Message, Rejected, check_printed
from tfrecord_io.errors import TokenizerError

__all__ = [
    "ChatTemplate",
    "Rendering",
    "Spans",
    "internals",
    "joined_spans",
    "open_template",
    "spans_by_prefixes",
]

Spans = list[tuple[int, int]]

ASSISTANT = "assistant"
_MARKER = re.compile(r"\{\%[-+]?\s*generation\s*[-+]?\%\}")
_INTERNALS = ("_compile_jinja_template", "_render_with_assistant_indices", "render_jinja_template")
_QUESTION, _ANSWER = "what is it", "that one"
# The template engine keeps track of generation markers in the template itself, of which the process has only one.
_rendering = threading.RLock()


class Render(Protocol):
    """Renders messages, with the generation prompt or without it."""

    def __call__(self, messages: Sequence[Message], *, prompt: bool) -> str: ...


@dataclasses.dataclass(frozen=True)
class Rendering:
    """A text, and the characters [start, stop) that are to be learned, in order and apart from each other."""

    text: str
    spans: Spans


class ChatTemplate:
    """The template of one tokenizer: that with the `name`, or of several the one that `transformers` takes. `date` is
    what it is told if it asks for today's, and `closing` the token and the white space that end an assistant's turn, if
    there is such white space.

    Threads may share it; one at a time renders.
    """

    def __init__(self, tokenizer: Any, *, date: datetime.date | None = None, name: str | None = None) -> None:
        self.closing: str | None = None
        self._tokenizer = tokenizer
        self._date = date
        self._name = name
        # A tokenizer puts these together anew each time, which takes as long as rendering with them.
        self._sources: dict[bool, str] = {}
        self._markers: dict[bool, bool] = {}
        self._slots: dict[bool, str] = {}
        self._variables = dict(tokenizer.special_tokens_map)

    def source(self, *, has_tools: bool = False) -> str:
        """The template's text: some tokenizers have another one for conversations with tools."""
        if has_tools not in self._sources:
            self._sources[has_tools] = str(self._tokenizer.get_chat_template(self._name, [] if has_tools else None))
        return self._sources[has_tools]

    def has_markers(self, *, has_tools: bool = False) -> bool:
        """Whether the template says by itself what the assistant's part is."""
        if has_tools not in self._markers:
            self._markers[has_tools] = _MARKER.search(self.source(has_tools=has_tools)) is not None
        return self._markers[has_tools]

    def text(self, messages: Sequence[Message], tools: list[Any] | None = None, *, prompt: bool = False) -> str:
        """What `tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)` gives.

        Raises: Rejected if the template refuses the messages.
        """
        return self._render(messages, tools, prompt=prompt, tracked=False)[0]

    def render(self, messages: Sequence[Message], tools: list[Any] | None = None) -> Rendering:
        """The text and its assistant's parts.

        Raises: Rejected if the template refuses the messages, or gives no text of which the prompt is the beginning.
        """
        if self.has_markers(has_tools=tools is not None):
            text, spans = self._render(messages, tools, prompt=False, tracked=True)
            check_printed(messages, text)
            return Rendering(text, joined_spans(spans))

        def rendered(messages: Sequence[Message], *, prompt: bool) -> str:
            return self.text(messages, tools, prompt=prompt)

        text = rendered(messages, prompt=False)
        check_printed(messages, text)
        return Rendering(text, spans_by_prefixes(text, messages, rendered, closing=self.closing))

    def variables(self) -> dict[str, Any]:
        """What the template sees besides the messages."""
        return self._variables

    @contextlib.contextmanager
    def compiled(self, *, has_tools: bool = False) -> Iterator[Any]:
        """The Jinja template, told the date, for one thread at a time, and for one rendering within limits.

        Raises: Rejected if it would spend more; TokenizerError if it is no template.
        """
        with _rendering:
            template, meter = _compiled(self._slot(has_tools=has_tools), self.source(has_tools=has_tools))
            before = template.globals.get("strftime_now")
            template.globals["strftime_now"] = self._today
            meter.start()
            try:
                yield template
            except OverLimit as over:
                raise Rejected("template_limit", f"the chat template makes {over}") from over
            finally:
                template.globals["strftime_now"] = before

    def _slot(self, *, has_tools: bool) -> str:
        """The text of another template, in place of which the source is rendered: see `_compiled`."""
        if has_tools not in self._slots:
            digest = hashlib.sha256(self.source(has_tools=has_tools).encode()).hexdigest()
            marker = "{% generation %}{% endgeneration %}" if self.has_markers(has_tools=has_tools) else ""
            self._slots[has_tools] = f"{{{{ raise_exception('{digest}') }}}}{marker}"
        return self._slots[has_tools]

    def _render(
        self, messages: Sequence[Message], tools: list[Any] | None, *, prompt: bool, tracked: bool
    ) -> tuple[str, Spans]:
        with self.compiled(has_tools=tools is not None):
            try:
                texts, spans = internals().render_jinja_template(
                    conversations=[list(messages)],
                    tools=tools,
                    documents=None,
                    chat_template=self._slot(has_tools=tools is not None),
                    return_assistant_tokens_mask=tracked,
                    continue_final_message=False,
                    add_generation_prompt=prompt,
                    **self.variables(),
                )
            except (TokenizerError, OverLimit, MemoryError):
                raise
            except Exception as error:  # Jinja's own, and what Python says of values that the template cannot take
                raise Rejected("template_rejected", str(error) or type(error).__name__) from error
        return texts[0], spans[0] if tracked else []

    def _today(self, form: str) -> str:
        if self._date is None:
            raise TokenizerError(
                "the chat template writes today's date, so that rows made tomorrow would differ from today's",
                remedy="give the date that all rows are to say, such as --chat-date 2024-07-26",
            )
        return self._date.strftime(form)


def _compiled(slot: str, source: str) -> tuple[Any, Meter]:
    """The template of a source and what its renderings are charged to.

    `transformers` compiles, and renders, what it finds in its cache under a text. Compiling alone may take a template
    for ever, since constants are computed there. So it is asked to compile a text of ours, `slot`, in place of which
    the cache then has the source compiled with a meter; the same source elsewhere in the process stays as it is.
    """
    from pipelines.prepare.tokenize.chat.metering import compile_metered

    template = internals()._compile_jinja_template(slot)
    if not hasattr(template, "meter"):
        try:
            metered, meter = compile_metered(source, template.environment)
        except Exception as error:
            raise TokenizerError(
                f"the chat template cannot be compiled: {error or type(error).__name__}",
                remedy="choose another tokenizer, or mend the template in a copy of this one",
            ) from error
        template.root_render_func, template.blocks = metered.root_render_func, metered.blocks
        template.meter = meter
    return template, template.meter


@functools.cache
def internals() -> Any:
    """The module of `transformers` that renders chat templates: what `apply_chat_template` does cannot be had from
    outside with a date of one's own, or strings that watch the template.

    Raises: TokenizerError if it is not as it was from 4.53 to 5.23.
    """
    import transformers
    from transformers.utils import chat_template_utils

    if lacking := [name for name in _INTERNALS if not hasattr(chat_template_utils, name)]:
        raise TokenizerError(
            f"transformers {transformers.__version__} renders chat templates in another way than the releases that "
            f"this was made for: it has no {', '.join(lacking)}",
            remedy="install a release that it was made for, such as transformers==5.23",
        )
    return chat_template_utils


def open_template(tokenizer: Any, *, date: datetime.date | None = None, name: str | None = None) -> ChatTemplate:
    """The tokenizer's template, tried on a question and its answer.

    Raises: TokenizerError if there is none (with that name), it writes a date and none is given, it spends more than it
        may, or there is no telling which part of a conversation is the assistant's.
    """
    _require_one(tokenizer, name=name)
    template = ChatTemplate(tokenizer, date=date, name=name)
    question, answer = {"role": "user", "content": _QUESTION}, {"role": ASSISTANT, "content": _ANSWER}
    template.closing = _closing_of(template, [question, answer])
    try:
        spans = template.render([question, answer]).spans
    except Rejected as rejected:
        if rejected.reason == "template_prefix":
            raise _no_telling(rejected.detail) from rejected
        if rejected.reason == "template_limit":
            raise TokenizerError(
                f"the chat template spends more on a question and its answer than a row may take: {rejected.detail}",
                remedy="do not use this tokenizer, or mend the template in a copy of it",
            ) from rejected
        return template  # It wants something else than a question and an answer; the rows will show what.
    if not spans:
        raise _no_telling("none of its text is within {% generation %} markers")
    return template


def _require_one(tokenizer: Any, *, name: str | None) -> None:
    """Raises: TokenizerError if the tokenizer has no chat template, none with the name, or no default one."""
    found = tokenizer.chat_template
    if not found:
        raise TokenizerError(
            f"--layout chat needs a chat template, but this tokenizer, a {type(tokenizer).__name__}, has none",
            remedy="choose the tokenizer of a chat model, or put a chat_template.jinja into a folder with this one",
        )
    names = sorted(found) if isinstance(found, dict) else []
    if name is not None and name not in names:
        raise TokenizerError(
            f"--chat-template {name!r}, but the tokenizer's templates are {', '.join(names) or 'a single one'}",
            remedy="give the name of one of them" if names else "leave --chat-template out",
        )
    if name is None and names and "default" not in names:
        raise TokenizerError(
            f"the tokenizer has several chat templates, {', '.join(names)}, and none of them is called default",
            remedy=f"choose one, such as --chat-template {names[0]}",
        )


def _no_telling(why: str) -> TokenizerError:
    return TokenizerError(
        f"the chat template does not tell which part of a conversation is the assistant's: {why}",
        remedy="in a copy of the tokenizer, put {% generation %} and {% endgeneration %} around it in the template",
    )


def _closing_of(template: ChatTemplate, messages: Sequence[Message]) -> str | None:
    """The token that ends an answer with the white space after it, None if there is no token or no white space."""
    try:
        tail = template.text(messages).rpartition(_ANSWER)[2]
    except Rejected:
        return None
    space = tail[len(tail.rstrip()) :]
    tokens = [str(token) for token in template._tokenizer.get_added_vocab() if tail.rstrip().endswith(token)]
    return max(tokens, key=len) + space if space and tokens else None


def spans_by_prefixes(
    text: str, messages: Sequence[Message], render: Callable[..., str], *, closing: str | None
) -> Spans:
    """The assistant's parts of `text`, the rendering of all `messages`.

    Raises: Rejected if a rendering of the first messages is not the beginning of the next one.
    """
    spans: Spans = []
    for index, message in enumerate(messages):
        if message["role"] != ASSISTANT:
            continue
        try:
            asked, answered = render(messages[:index], prompt=True), render(messages[: index + 1], prompt=False)
        except Rejected as rejected:
            raise Rejected("template_prefix", f"up to message {index}: {rejected.detail}") from rejected
        if not (answered.startswith(asked) and text.startswith(answered)):
            raise Rejected("template_prefix", _difference(asked, answered, text, index))
        stop = len(answered)
        if closing is not None and answered.endswith(closing):
            stop -= len(closing) - len(closing.rstrip())
        spans.append((len(asked), stop))
    return joined_spans(spans)


def joined_spans(spans: Sequence[tuple[int, int]]) -> Spans:
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
