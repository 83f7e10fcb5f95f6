"""What goes to the process that renders conversations, and back.

There go settings as JSON, and a batch of conversations; from there comes a `RENDERED` batch. Batches are Arrow streams,
since neither side is to build a Python object a row to write or read them.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pyarrow as pa

__all__ = [
    "DATE_UNKNOWN",
    "DIFFERS",
    "INVALID",
    "OVER_LIMIT",
    "RENDERED",
    "Limits",
    "Settings",
    "TemplateFacts",
    "batch_of",
    "message_of",
]

# Reasons: a row over a limit; and why a template serves no row at all.
OVER_LIMIT, INVALID = "template_limit", "template_invalid"
DATE_UNKNOWN, DIFFERS = "template_date", "template_differs"
# What became of each row: the text in UTF-8, the bytes [start, stop, start, stop, …] of it that are to be learned, in
# order and apart from each other; and why the row cannot be used, empty where it can.
RENDERED = pa.schema(
    {"text": pa.large_binary(), "learned": pa.large_list(pa.int64()), "reason": pa.string(), "detail": pa.string()}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TemplateFacts:
    """All that a template's renderings depend on.

    `source` is the template, `tools_source` the one for conversations with tools; `variables` are what it sees besides
    the messages, `added_tokens` the contents of the tokenizer's added tokens. A template that asks for the date is told
    `date` (ISO).
    """

    source: str
    tools_source: str
    variables: dict[str, Any]
    added_tokens: list[str]
    date: str | None = None


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
