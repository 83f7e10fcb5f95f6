"""Render a batch of conversations in a worker process, which the module `template` starts.

A template is untrusted code. Jinja's sandbox limits neither its time nor its memory, so the operating system does.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.prepare.sources.columns.messages import objects_of
from pipelines.prepare.tokenize.chat.answers import AnswerFinder
from pipelines.prepare.tokenize.chat.conversation import (
    OVER_LIMIT,
    Conversation,
    Needs,
    Refused,
    Rejected,
    check_parts_read,
    conversation_of,
    plain_rows,
)
from pipelines.prepare.tokenize.chat.environment import Spans
from pipelines.prepare.tokenize.chat.pairs import split_pair
from pipelines.prepare.tokenize.chat.program import Program, Rendering, Settings
from pipelines.prepare.tokenize.chat.unlearned_parts import unlearned_spans

TOO_MUCH_MEMORY = "the chat template takes more memory than allowed"
# Results in the order of the rows, at least one per row. `text`: the first `num_messages` messages. `learned`,
# `skipped`: byte spans [start, stop, start, stop, …], in order and disjoint. An unusable row has one result, with a
# reason and a detail. A preference pair (column `chosen`) has three, as in `ChatRenderer.render`.
RENDERED = pa.schema(
    {
        "row": pa.int64(),
        "num_messages": pa.int64(),
        "text": pa.large_binary(),
        "learned": pa.large_list(pa.int64()),
        "skipped": pa.large_list(pa.int64()),
        "reason": pa.string(),
        "detail": pa.string(),
    }
)

_CONVERSATIONS = ("messages", "chosen", "rejected")
# The limits apply to the whole process, and Jinja holds the GIL.
_one_at_a_time = threading.Lock()


class ChatTemplate:
    """Renders single conversations with a chat template. `start_clock`: as in `Program`."""

    def __init__(self, settings: Settings, *, start_clock: Callable[[], object]) -> None:
        self.settings = settings
        self._start_clock = start_clock
        self._finders: dict[str, AnswerFinder] = {}
        self.needs = Needs(lambda messages, tools: self._run(Conversation(messages, tools)))

    def finder(self, conversation: Conversation) -> AnswerFinder:
        """Return the answer finder for the conversation's template, which depends on whether it has tools."""
        source = self.settings.source if conversation.tools is None else self.settings.tools_source
        if source not in self._finders:
            self._finders[source] = AnswerFinder(Program(source, self.settings, start_clock=self._start_clock))
        return self._finders[source]

    def render(self, conversation: Conversation, *, are_plain: bool = False) -> list[tuple[bytes, Spans, int, Spans]]:
        """Render a conversation and find its answers. `are_plain`: all contents are known to be texts.

        Returns: one result, or one per answer if --learn is "each". A result is the UTF-8 text, learned byte spans,
        number of messages and skipped byte spans.
        Raises: Rejected.
        """
        finder, answers, learn = self.finder(conversation), conversation.learned(), self.settings.learn
        parts = [(conversation, answers if learn == "all" else answers[-1:])]
        if learn == "each" and answers:
            parts = [(conversation.until(answer + 1), [answer]) for answer in answers]
        texts = []
        for part, learned in parts:
            rendering = self._rendering(finder.program, part)
            if not are_plain:
                check_parts_read(part.messages, rendering.text)
            spans = finder.spans(part, rendering, learned)
            texts.append((rendering.text, spans, len(part.messages), unlearned_spans(finder, part, rendering, learned)))
        return texts

    @staticmethod
    def _rendering(program: Program, part: Conversation) -> Rendering:
        try:
            return program.run(part)
        except Refused as refused:
            messages = [message for message in part.messages if isinstance(message, dict)]  # a filter may add texts
            lacking = [at for at, message in enumerate(messages) if "content" not in message]
            if not lacking:
                raise
            with contextlib.suppress(Rejected):
                program.run(dataclasses.replace(part, messages=[{"content": "", **message} for message in messages]))
                detail = 'has no content, which this template requires; set it to "" with a function and --map'
                refused = Refused(f"message {lacking[0]} {detail} ({refused.detail})")
            raise refused from None

    def text(self, conversation: Conversation, *, prompt: bool, are_plain: bool = False) -> bytes:
        """Render a conversation to UTF-8; with `prompt`, add the generation prompt. Raises: as `render`."""
        text = self._run(conversation, prompt=prompt)
        if not are_plain:
            check_parts_read(conversation.messages, text)
        return text

    def _run(self, conversation: Conversation, *, prompt: bool = False) -> bytes:
        return self.finder(conversation).program.run(conversation, prompt=prompt).text


def message_of(batch: pa.RecordBatch) -> bytes:
    """Serialize a record batch to an Arrow stream, for `batch_of`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def batch_of(message: bytes) -> pa.RecordBatch:
    """Return the record batch of an Arrow stream from `message_of`, without a copy."""
    return pa.ipc.open_stream(message).read_next_batch()


def render(settings: str, message: bytes) -> bytes:
    """Render a batch of conversations. Input and output are Arrow streams; the output has the schema `RENDERED`.

    `settings`: a `Settings` as JSON.
    Raises: MemoryError if memory runs out, except while a row is rendered: then that row is rejected.
    """
    template = _template(settings)
    with _one_at_a_time, _limited(template.settings.memory_bytes):
        batch = batch_of(message)
        names = batch.schema.names
        plain = {name: plain_rows(batch.column(name)) for name in _CONVERSATIONS if name in names}
        of_rows = {**plain, **{name: objects_of(batch.column(name)) for name in names if plain.get(name) is None}}
        are_plain = None not in plain.values()
        results = [
            (row, *result)
            for row, values in enumerate(zip(*of_rows.values(), strict=True))
            for result in _rendered(template, dict(zip(of_rows, values, strict=True)), are_plain=are_plain)
        ]
    columns = [pa.array([result[at] for result in results], field.type) for at, field in enumerate(RENDERED)]
    return message_of(pa.record_batch(columns, RENDERED))


@functools.lru_cache(maxsize=4)
def _template(settings: str) -> ChatTemplate:
    parsed = Settings(**json.loads(settings))
    return ChatTemplate(parsed, start_clock=functools.partial(signal.setitimer, signal.ITIMER_PROF, parsed.cpu_seconds))


@contextlib.contextmanager
def _limited(memory_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        possible = [limit for limit in (*before, used + memory_bytes) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(possible), before[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _rendered(
    template: ChatTemplate, row: Mapping[str, Any], *, are_plain: bool
) -> list[tuple[int, bytes, list[int], list[int], str, str]]:
    tools, options = row.get("tools"), row.get("options")

    def conversation_with(messages: list[Any]) -> Conversation:
        if are_plain and tools is options is None:
            return Conversation(messages)
        learns_prompts = template.settings.learns_prompts
        return conversation_of(messages, tools, options, needs=template.needs, learns_prompts=learns_prompts)

    try:
        if "chosen" in row:
            start, chosen, rejected = split_pair(row.get("messages"), row["chosen"], row["rejected"])
            parts = ((start, True), (start + chosen, False), (start + rejected, False))
            return [
                (len(part), template.text(conversation_with(part), prompt=prompt, are_plain=are_plain), [], [], "", "")
                for part, prompt in parts
            ]
        if not row["messages"]:
            raise Rejected("messages_empty")
        conversation = conversation_with(row["messages"])
        return [
            (count, text, list(itertools.chain(*spans)), list(itertools.chain(*skipped)), "", "")
            for text, spans, count, skipped in template.render(conversation, are_plain=are_plain)
        ]
    except Rejected as rejected:
        reason, detail = rejected.reason, rejected.detail
    except MemoryError:
        reason, detail = OVER_LIMIT, TOO_MUCH_MEMORY
    except RecursionError as error:  # tools that are nested too deeply
        reason, detail = "template_rejected", str(error)
    return [(0, b"", [], [], reason, detail)]
