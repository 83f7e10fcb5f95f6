"""The process that renders conversations by a chat template: reads standard input, writes standard output.

A template is a stranger's program, and Jinja's sandbox lets it loop and grow without end. So the kernel ends this
process once a rendering has taken its share of processor time, and refuses it memory beyond a limit: that holds
whatever a template does, inside of Python's own functions too.
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
import sys
from typing import Any

import pyarrow as pa

from pipelines.prepare.tokenize.chat import protocol
from pipelines.prepare.tokenize.chat.conversation import Rejected, checked_messages, checked_tools, objects_of
from pipelines.prepare.tokenize.chat.rendering import ChatTemplate, Rendering

__all__ = ["main"]

_Row = tuple[bytes, list[int], str, str]


def main() -> None:
    """Serve standard input until it ends."""
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    settings = protocol.Settings.of(protocol.receive(requests) or b"")

    def start_clock() -> None:
        signal.setitimer(signal.ITIMER_PROF, settings.limits.cpu_seconds)

    template = ChatTemplate(settings.template, most_chars=settings.limits.chars, start_clock=start_clock)
    _limit_process(memory_bytes=settings.limits.memory_bytes)
    protocol.send(replies, b"")
    try:
        while (request := protocol.receive(requests)) is not None:
            rows = _rendered(template, protocol.batch_of(request))
            signal.setitimer(signal.ITIMER_PROF, 0)
            columns = [pa.array([row[i] for row in rows], kind.type) for i, kind in enumerate(protocol.RENDERED)]
            protocol.send(replies, protocol.message_of(pa.record_batch(columns, protocol.RENDERED)))
    except MemoryError:
        sys.exit(protocol.OUT_OF_MEMORY)
    except BrokenPipeError:  # nobody is waiting any more
        os._exit(0)  # and Python would try once more to write what is left


def _limit_process(*, memory_bytes: int) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    if sys.platform != "linux":  # macOS has the limit's name, but refuses to set it or does not keep it
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


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
