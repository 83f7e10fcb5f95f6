"""Render a batch of conversations in a worker process (see `template`).

A template is untrusted code, and Jinja's sandbox lets it loop and grow without end. So the kernel limits the process's
processor time and memory. Settings arrive as JSON, conversations as an Arrow stream.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.prepare.sources.columns.messages import objects_of
from pipelines.prepare.tokenize.chat.answers import AnswerFinder, joined
from pipelines.prepare.tokenize.chat.conversation import (
    OVER_LIMIT,
    Conversation,
    Needs,
    Rejected,
    check_parts_read,
    conversation_of,
    plain_rows,
)
from pipelines.prepare.tokenize.chat.environment import Spans
from pipelines.prepare.tokenize.chat.pairs import pair_of
from pipelines.prepare.tokenize.chat.part_masks import skipped_spans
from pipelines.prepare.tokenize.chat.program import Program, Rendering, Settings
from pipelines.prepare.tokenize.chat.unlearned_parts import part_spans

TOO_MUCH_MEMORY = "the chat template takes more memory than it may"
# One or more results per row, in order. The text is that of its first `num_messages` messages; byte spans are [start,
# stop, start, stop, …], in order and disjoint. An unusable row has one result, with a reason and a detail. A preference
# pair (column `chosen`) has three: the prompt with the generation prompt, with the chosen and with the rejected answer.
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
# The limits apply to the process, and Jinja holds the GIL anyway.
_one_at_a_time = threading.Lock()


class ChatTemplate:
    """Renderer of single conversations.

    `start_clock` is called before compiling and each rendering, which may run forever.
    """

    def __init__(self, settings: Settings, *, start_clock: Callable[[], object]) -> None:
        self.settings = settings
        self._start_clock = start_clock
        self._finders: dict[str, AnswerFinder] = {}
        self.needs = Needs(lambda messages, tools: self._run(Conversation(messages, tools)))

    def finder(self, conversation: Conversation) -> AnswerFinder:
        """Return the finder for the conversation's template, with or without tools."""
        source = self.settings.source if conversation.tools is None else self.settings.tools_source
        if source not in self._finders:
            self._finders[source] = AnswerFinder(Program(source, self.settings, start_clock=self._start_clock))
        return self._finders[source]

    def render(self, conversation: Conversation, *, are_plain: bool = False) -> list[tuple[bytes, Spans, int, Spans]]:
        """Render a conversation and find its answers. `are_plain`: all contents are known to be texts.

        Returns: UTF-8 texts, each with its learned byte spans, number of messages, and skipped spans. With `learn`
            each, one text per answer; otherwise a single one.
        Raises: Rejected if the template refuses or cannot read the messages, or an answer's place is uncertain.
        """
        finder, answers, learn = self.finder(conversation), conversation.learned(), self.settings.learn
        parts = [(conversation, answers if learn == "all" else answers[-1:])]
        if learn == "each" and answers:
            parts = [(conversation.until(answer + 1), [answer]) for answer in answers]
        texts = []
        for part, learned in parts:
            found = self._rendering(finder.program, part)
            if not are_plain:
                check_parts_read(part.messages, found.text)
            spans, skipped = finder.spans(part, found, learned), self._skipped(finder, part, found, learned)
            texts.append((found.text, spans, len(part.messages), skipped))
        return texts

    @staticmethod
    def _rendering(program: Program, part: Conversation) -> Rendering:
        try:
            return program.run(part)
        except Rejected as rejected:
            messages = [message for message in part.messages if isinstance(message, dict)]  # a filter may add texts
            lacking = [at for at, message in enumerate(messages) if "content" not in message]
            if not lacking or rejected.reason != "template_rejected":
                raise
            with contextlib.suppress(Rejected):
                program.run(dataclasses.replace(part, messages=[{"content": "", **message} for message in messages]))
                detail = 'has no content, which this template cannot write; give it "" as content with a --map'
                rejected = Rejected(rejected.reason, f"message {lacking[0]} {detail} ({rejected.detail})")
            raise rejected from None

    def text(self, conversation: Conversation, *, prompt: bool, are_plain: bool = False) -> bytes:
        """Render a conversation. Raises: as `render`."""
        text = self._run(conversation, prompt=prompt)
        if not are_plain:
            check_parts_read(conversation.messages, text)
        return text

    def _skipped(self, finder: AnswerFinder, part: Conversation, found: Rendering, learned: Sequence[int]) -> Spans:
        skipped: Spans = []
        for index in part.withheld.keys() & learned:
            if own := finder.spans(part, found, [index]):
                for field in part.withheld[index]:
                    skipped += skipped_spans(self._run, part, found.text, index, field, own)
        for index, kind in itertools.product(learned, self.settings.learn_not):
            skipped += part_spans(finder, part, found, index, kind)
        return joined(skipped)

    def _run(self, conversation: Conversation, *, prompt: bool = False) -> bytes:
        return self.finder(conversation).program.run(conversation, prompt=prompt).text


def message_of(batch: pa.RecordBatch) -> bytes:
    """Serialize a record batch as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def batch_of(message: bytes) -> pa.RecordBatch:
    """Return the record batch of an Arrow stream, without a copy."""
    return pa.ipc.open_stream(message).read_next_batch()


def render(settings: str, message: bytes) -> bytes:
    """Render a serialized batch to a serialized `RENDERED` batch.

    Raises: MemoryError if memory runs out between two rows.
    """
    template = _template(settings)
    with _one_at_a_time, _limited(template.settings.memory_bytes):
        batch = batch_of(message)
        names = batch.schema.names
        plain = {name: plain_rows(batch.column(name)) for name in _CONVERSATIONS if name in names}
        of_rows = {**plain, **{name: objects_of(batch.column(name)) for name in names if plain.get(name) is None}}
        are_plain = None not in plain.values()
        found = [
            (row, *result)
            for row, values in enumerate(zip(*of_rows.values(), strict=True))
            for result in _rendered(template, dict(zip(of_rows, values, strict=True)), are_plain=are_plain)
        ]
    columns = [pa.array([each[i] for each in found], kind.type) for i, kind in enumerate(RENDERED)]
    return message_of(pa.record_batch(columns, RENDERED))


@functools.lru_cache(maxsize=4)
def _template(settings: str) -> ChatTemplate:
    found = Settings(**json.loads(settings))
    return ChatTemplate(found, start_clock=functools.partial(signal.setitimer, signal.ITIMER_PROF, found.cpu_seconds))


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
            pair = pair_of(row.get("messages"), row["chosen"], row["rejected"])
            parts = ((pair.prompt, True), (pair.prompt + pair.chosen, False), (pair.prompt + pair.rejected, False))
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
    except RecursionError as error:  # tools that are too deep
        reason, detail = "template_rejected", str(error)
    return [(0, b"", [], [], reason, detail)]
