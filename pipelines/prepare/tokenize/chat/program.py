"""Compile a chat template so that it reports which bytes it writes for each message."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pipelines.prepare.options.layout_config import Learn
from pipelines.prepare.tokenize.chat.conversation import INVALID, OVER_LIMIT, Conversation, Message, Refused, Rejected
from pipelines.prepare.tokenize.chat.environment import Notes, Spans, create_environment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a chat template, with the limits of one rendering.

    `source`, `tools_source`: the template for conversations without and with tools. `date` (ISO) replaces today's date.
    `learn`: which answers are learned. `learns_prompts`: also learn answers in the prompt of a row with prompt and
    completion. `whole_turns`: learn all of an answer's turn after the role. `learn_not`: any of "thoughts" and
    "tool_calls". `joins_line_breaks`: the tokenizer has one token for two line breaks. `cpu_seconds`: processor time.
    `memory_bytes`: for a whole batch. `text_bytes`: for the UTF-8 text.
    """

    source: str
    tools_source: str
    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    added_tokens: list[str] = dataclasses.field(default_factory=list)
    date: str | None = None
    learn: Learn = "all"
    learns_prompts: bool = False
    whole_turns: bool = False
    learn_not: list[str] = dataclasses.field(default_factory=list)
    joins_line_breaks: bool = False
    cpu_seconds: float = 5.0
    memory_bytes: int = 3 << 29
    text_bytes: int = 1 << 24


class Rendering(NamedTuple):
    """A rendered conversation: UTF-8 text, and byte spans [start, stop) in it.

    `marked`: spans between {% generation %} markers. `turns`: for each message, the span that the template's loop
    writes; (0, 0) if not exactly one loop writes it. `end`: the position where the last loop ends.
    """

    text: bytes
    marked: Spans
    turns: Spans
    end: int

    def turn(self, index: int) -> bytes:
        """Return the text that the template's loop wrote for one message."""
        start, stop = self.turns[index]
        return self.text[start:stop]


class Program:
    """Compiled chat template. Raises: Rejected if it cannot be compiled.

    `start_clock` is called before compiling and before each rendering. It must start a time limit, because a template
    may never end.
    """

    def __init__(self, source: str, settings: Settings, *, start_clock: Callable[[], object]) -> None:
        environment: Any = create_environment(settings.date)
        self.notes: Notes = environment.extensions[Notes.identifier]
        start_clock()
        try:
            self.tree = environment.parse(source)
            self._template = environment.from_string(self.notes.watch(environment.parse(source)))
        except MemoryError:
            raise
        except Exception as error:
            raise Rejected(INVALID, str(error) or type(error).__name__) from error
        self.settings = settings
        self._start_clock = start_clock
        self._variables = {**self._template.globals, **settings.variables, "documents": None}
        # Jinja would copy the globals for every rendering, doubling its time.
        self._template.globals = {}

    def run(self, conversation: Conversation, *, prompt: bool = False) -> Rendering:
        """Render a conversation; with `prompt`, end with the start of the next answer.

        Raises: Rejected if the template fails, or writes more than `settings.text_bytes` bytes.
        """
        notes, pieces, most = self.notes, [], self.settings.text_bytes
        notes.start()
        variables = {**self._variables, **conversation.options, "messages": conversation.messages}
        variables |= {"tools": conversation.tools, "add_generation_prompt": prompt}
        self._start_clock()
        try:
            for piece in self._template.root_render_func(self._template.new_context(variables, shared=True)):
                pieces.append(encoded := piece.encode())
                notes.num_written += len(encoded)
                if notes.num_written > most:
                    raise Rejected(OVER_LIMIT, f"the chat template writes a text of more than {most:,} bytes")
        except (Rejected, MemoryError):
            raise
        except Exception as error:
            raise Refused(str(error) or type(error).__name__) from error
        text = b"".join(pieces)
        turns, end = _turns(conversation.messages, notes.items)
        return Rendering(text, notes.spans, turns, end)


def _turns(messages: Sequence[Message], items: Sequence[tuple[int, int]]) -> tuple[Spans, int]:
    spans: dict[int, tuple[int, int]] = {}
    item, start = 0, 0
    for following, stop in items:
        if stop > start:
            spans[item] = (start, stop) if item not in spans else (0, 0)
        item, start = following, stop
    return [spans.get(id(message), (0, 0)) for message in messages], start
