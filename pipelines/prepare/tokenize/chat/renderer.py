"""Rendering a batch of conversations by a chat template, in a worker process (see `template`).

A template is a stranger's program, and Jinja's sandbox lets it loop and grow without end. So the kernel ends the
process once a rendering has taken its share of processor time, and refuses it memory beyond a limit: that holds
whatever a template does, inside of Python's own functions too.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.prepare.tokenize.chat import protocol
from pipelines.prepare.tokenize.chat.conversation import Rejected, checked_messages, checked_tools, objects_of
from pipelines.prepare.tokenize.chat.protocol import Limits, Settings
from pipelines.prepare.tokenize.chat.rendering import ChatTemplate, Rendering

__all__ = ["render"]

_Row = tuple[bytes, list[int], str, str]

# The limits are those of the process, and Jinja holds the interpreter anyway.
_one_at_a_time = threading.Lock()


def render(settings: str, message: bytes) -> bytes:
    """Render the conversations in a message; return a message with a `RENDERED` batch.

    Raises: MemoryError if there is none left between two rows.
    """
    with _one_at_a_time, _limited(Settings.of(settings).limits):
        rows = _rendered(_template(settings), protocol.batch_of(message))
    columns = [pa.array([row[i] for row in rows], kind.type) for i, kind in enumerate(protocol.RENDERED)]
    return protocol.message_of(pa.record_batch(columns, protocol.RENDERED))


@functools.lru_cache(maxsize=4)
def _template(settings: str) -> ChatTemplate:
    found = Settings.of(settings)

    def start_clock() -> None:
        signal.setitimer(signal.ITIMER_PROF, found.limits.cpu_seconds)

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
    conversations = objects_of(batch.column("messages"))
    tools = objects_of(batch.column("tools")) if "tools" in batch.schema.names else itertools.repeat(None)
    return [_rendered_row(template, messages, each) for messages, each in zip(conversations, tools, strict=False)]


def _rendered_row(template: ChatTemplate, messages: Any, tools: Any) -> _Row:
    try:
        return (*_in_bytes(template.render(checked_messages(messages), checked_tools(tools))), "", "")
    except Rejected as rejected:
        return b"", [], rejected.reason, rejected.detail
    except MemoryError:
        return b"", [], protocol.OVER_LIMIT, "the chat template takes more memory than it may"
    except (UnicodeEncodeError, RecursionError) as error:  # half of a surrogate pair; tools that are too deep
        return b"", [], "template_rejected", str(error)


def _in_bytes(rendering: Rendering) -> tuple[bytes, list[int]]:
    """The text in UTF-8, and where its spans begin and end in there."""
    edges = [edge for span in rendering.spans for edge in span]
    encoded = rendering.text.encode()
    if len(encoded) > len(rendering.text):
        pieces = (rendering.text[start:stop] for start, stop in itertools.pairwise([0, *edges]))
        edges = list(itertools.accumulate(len(piece.encode()) for piece in pieces))
    return encoded, edges
