"""Rendering a batch of conversations by a chat template, in a worker process (see `template`).

A template is a stranger's program, and Jinja's sandbox lets it loop and grow without end. So the kernel ends the
process once a rendering has taken its share of processor time, and refuses it memory beyond a limit: that holds
whatever a template does, inside of Python's own functions too.

Settings go to the process as JSON, and conversations as an Arrow stream; from there comes a stream of `RENDERED`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.prepare.tokenize.chat.conversation import (
    OVER_LIMIT,
    Rejected,
    are_plain,
    checked_messages,
    checked_tools,
    objects_of,
)
from pipelines.prepare.tokenize.chat.rendering import ChatTemplate, Rendering, TemplateFacts

__all__ = ["RENDERED", "TOO_MUCH_MEMORY", "Limits", "Settings", "batch_of", "message_of", "render"]

TOO_MUCH_MEMORY = "the chat template takes more memory than it may"
# What became of each row: the text in UTF-8, the bytes [start, stop, start, stop, …] of it that are to be learned, in
# order and apart from each other; and why the row cannot be used, empty where it can.
RENDERED = pa.schema(
    {"text": pa.large_binary(), "learned": pa.large_list(pa.int64()), "reason": pa.string(), "detail": pa.string()}
)

_Row = tuple[bytes, list[int], str, str]

# The limits are those of the process, and Jinja holds the interpreter anyway.
_one_at_a_time = threading.Lock()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What one rendering may take: seconds of a core, bytes of memory (of a batch), characters of text.

    An ordinary one takes 5 to 100 µs; a row takes one, or one for each message. Seconds depend on the machine, unlike
    counts of what a template does; at this distance only templates that are broken, or meant to do harm, can tell.
    """

    cpu_seconds: float = 5.0
    memory_bytes: int = 3 << 29
    chars: int = 1 << 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """A template, and what each rendering by it may take."""

    template: TemplateFacts
    limits: Limits

    def to_json(self) -> str:
        """Return the settings as JSON."""
        return json.dumps(dataclasses.asdict(self), default=str)

    @classmethod
    def of(cls, document: str) -> Settings:
        """Return the settings that `to_json` gave."""
        parts = json.loads(document)
        return cls(template=TemplateFacts(**parts["template"]), limits=Limits(**parts["limits"]))


def message_of(batch: pa.RecordBatch) -> bytes:
    """Return a batch as a message."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def batch_of(message: bytes) -> pa.RecordBatch:
    """Return the batch in a message, without a copy."""
    return pa.ipc.open_stream(message).read_next_batch()


def render(settings: str, message: bytes) -> bytes:
    """Render the conversations in a message; return a message with a `RENDERED` batch.

    Raises: MemoryError if there is none left between two rows.
    """
    with _one_at_a_time, _limited(Settings.of(settings).limits):
        rows = _rendered(_template(settings), batch_of(message))
    columns = [pa.array([row[i] for row in rows], kind.type) for i, kind in enumerate(RENDERED)]
    return message_of(pa.record_batch(columns, RENDERED))


@functools.lru_cache(maxsize=4)
def _template(settings: str) -> ChatTemplate:
    found = Settings.of(settings)
    start_clock = functools.partial(signal.setitimer, signal.ITIMER_PROF, found.limits.cpu_seconds)
    return ChatTemplate(found.template, most_chars=found.limits.chars, start_clock=start_clock)


@contextlib.contextmanager
def _limited(limits: Limits) -> Iterator[None]:
    """Hold what the process takes within the limits. Where there is no Linux, none counts its memory."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        possible = [limit for limit in (*before, used + limits.memory_bytes) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(possible), before[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _rendered(template: ChatTemplate, batch: pa.RecordBatch) -> list[_Row]:
    column = batch.column("messages")
    plain, conversations = are_plain(column), objects_of(column)
    tools = objects_of(batch.column("tools")) if "tools" in batch.schema.names else itertools.repeat(None)
    rows = zip(conversations, tools, strict=False)
    return [_rendered_row(template, messages, each, are_plain=plain) for messages, each in rows]


def _rendered_row(template: ChatTemplate, messages: Any, tools: Any, *, are_plain: bool) -> _Row:
    try:
        checked = checked_messages(messages, are_plain=are_plain)
        return (*_in_bytes(template.render(checked, checked_tools(tools))), "", "")
    except Rejected as rejected:
        return b"", [], rejected.reason, rejected.detail
    except MemoryError:
        return b"", [], OVER_LIMIT, TOO_MUCH_MEMORY
    except (UnicodeEncodeError, RecursionError) as error:  # half of a surrogate pair; tools that are too deep
        return b"", [], "template_rejected", str(error)


def _in_bytes(rendering: Rendering) -> tuple[bytes, list[int]]:
    """Return the text in UTF-8, and where its spans begin and end in there."""
    edges = [edge for span in rendering.spans for edge in span]
    encoded = rendering.text.encode()
    if len(encoded) > len(rendering.text):
        pieces = (rendering.text[start:stop] for start, stop in itertools.pairwise([0, *edges]))
        edges = list(itertools.accumulate(len(piece.encode()) for piece in pieces))
    return encoded, edges
