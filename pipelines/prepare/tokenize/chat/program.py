"""A compiled chat template: it renders a conversation, and tells which bytes it writes for each message."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pipelines.prepare.options.layout_config import Learn
from pipelines.prepare.tokenize.chat.conversation import INVALID, OVER_LIMIT, Conversation, Message, Rejected
from pipelines.prepare.tokenize.chat.environment import Notes, Spans, create_environment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Template, its variables, and the limits of one rendering.

    `source` is the template, `tools_source` the one for conversations with tools; `variables` are what it sees besides
    the messages, `added_tokens` the contents of the tokenizer's added tokens. `date` (ISO) is what a template gets for
    today's. `learn`: which answers are learned; `learns_prompts`: also those in a prompt that a completion follows;
    `whole_turns`: all of a turn behind its role, instead of what a model has to generate.

    The limits are seconds of a core, memory (of a batch), and UTF-8 bytes of text. An ordinary rendering takes 5 to
    100 µs; a row takes one, or one for each message. How much fits into the seconds depends on the machine, but this
    far from ordinary use only templates that are broken or malicious reach the limit.
    """

    source: str
    tools_source: str
    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    added_tokens: list[str] = dataclasses.field(default_factory=list)
    date: str | None = None
    learn: Learn = "all"
    learns_prompts: bool = False
    whole_turns: bool = False
    cpu_seconds: float = 5.0
    memory_bytes: int = 3 << 29
    text_bytes: int = 1 << 24


class Rendering(NamedTuple):
    """Text of a conversation in UTF-8; its byte spans within {% generation %} markers; and those of its messages.

    `turns`: the span that a loop writes for each message; an empty one if none does, or several do. `end`: the end of
    the last loop.
    """

    text: bytes
    marked: Spans
    turns: Spans
    end: int

    def turn(self, index: int) -> bytes:
        """Return the text of one message's turn."""
        start, stop = self.turns[index]
        return self.text[start:stop]


class Program:
    """Compiled template. Raises: Rejected if it cannot be compiled.

    `start_clock` is called before anything that may take forever: before compiling, and before each rendering.
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
        except Exception as error:  # Jinja's errors, and Python's for templates that are nested too deeply
            raise Rejected(INVALID, str(error) or type(error).__name__) from error
        self.settings = settings
        self._start_clock = start_clock
        self._variables = {**self._template.globals, **settings.variables, "documents": None}
        # Otherwise Jinja would copy them, and their names, for every rendering, which takes twice the time.
        self._template.globals = {}

    def run(self, conversation: Conversation, *, prompt: bool = False) -> Rendering:
        """Render a conversation, with the generation prompt or without.

        Raises: Rejected if the template refuses the messages, or writes too much.
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
                    raise Rejected(OVER_LIMIT, f"the chat template makes a text of more than {most:,} bytes")
        except (Rejected, MemoryError):
            raise
        except Exception as error:  # Jinja's errors, and Python's for values that the template cannot handle
            raise Rejected("template_rejected", str(error) or type(error).__name__) from error
        text = b"".join(pieces)
        turns, end = _turns(conversation.messages, notes.items)
        return Rendering(text, notes.spans, turns, end)


def _turns(messages: Sequence[Message], items: Sequence[tuple[int, int]]) -> tuple[Spans, int]:
    """Return the bytes of each message's turn, and the end of the last loop, from the items that loops took."""
    spans: dict[int, tuple[int, int]] = {}
    item, start = 0, 0
    for following, stop in items:
        if stop > start:
            spans[item] = (start, stop) if item not in spans else (0, 0)
        item, start = following, stop
    return [spans.get(id(message), (0, 0)) for message in messages], start
