"""A tokenizer's chat template, by which worker processes render conversations.

A worker that makes shards renders by itself. Any other process has children for it (see `process.workers`), one for
each thread that renders at a time: Jinja holds the interpreter, and a child can be ended whatever a template does.
"""

from __future__ import annotations

import dataclasses
import functools
import signal

import numpy as np
import pyarrow as pa

from pipelines.prepare.process import workers
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.process.workers import WorkerDiedError
from pipelines.prepare.tokenize.chat import protocol, renderer
from pipelines.prepare.tokenize.chat.messages import Conversations
from pipelines.prepare.tokenize.chat.texts import Texts
from tfrecord_io.errors import TokenizerError

__all__ = ["Rendered", "Template"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendered:
    """N conversations as texts, empty where one cannot be used; the reasons (object [N]), '' where it can; and details
    by row where there is a reason.
    """

    texts: Texts
    reasons: np.ndarray
    details: dict[int, str]


class Template:
    """Renders batches of conversations for any number of threads."""

    def __init__(self, settings: protocol.Settings) -> None:
        self._limits = settings.limits
        self._settings = settings.to_json()

    def render(self, conversations: Conversations) -> Rendered:
        """Render each conversation. Raises: TokenizerError if the template can serve none."""
        batch = self._rendered(conversations.batch)
        reasons = np.array(batch["reason"].to_pylist(), dtype=object)
        details = {row: batch["detail"][row].as_py() for row in np.flatnonzero(reasons != "").tolist()}
        for row, detail in details.items():
            _require_template(reasons[row], detail)
        texts = Texts.of(batch["text"].view(pa.large_string()), batch["learned"])
        return Rendered(texts=texts, reasons=reasons, details=details)

    def probe(self, conversations: Conversations) -> Rendered:
        """Render as `render` does, after comparing what two processes make of it, whose hashes and addresses differ.

        Raises: TokenizerError, also if the texts differ.
        """
        rendered = self.render(conversations)
        if not rendered.reasons.any():
            batches = [protocol.message_of(conversations.batch)] * 2
            render = functools.partial(_render, self._settings)
            made = {text for _, text in workers.run(render, batches, processes=len(batches), keep=True)}
            if len(made) > 1:
                _require_template(protocol.DIFFERS, "two processes have made two texts of one conversation")
        return rendered

    def _rendered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """As `protocol.RENDERED`. A batch that ends its process is taken row by row, to tell which row does."""
        try:
            return protocol.batch_of(workers.call(renderer.render, self._settings, protocol.message_of(batch)))
        except (WorkerDiedError, MemoryError) as error:
            if batch.num_rows == 1:
                row = {"text": b"", "learned": [], "reason": protocol.OVER_LIMIT, "detail": self._detail(error)}
                return pa.RecordBatch.from_pylist([row], protocol.RENDERED)
        parts = [self._rendered(batch.slice(row, 1)) for row in range(batch.num_rows)]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]

    def _detail(self, error: WorkerDiedError | MemoryError) -> str:
        if isinstance(error, MemoryError):
            return "the chat template takes more memory than it may"
        if error.exit_code == -signal.SIGPROF:
            return f"the chat template takes more than {self._limits.cpu_seconds:g} seconds of a core"
        return f"the process that renders by the chat template {error.how}"


def _render(settings: str, message: bytes, _: Progress) -> bytes:
    return renderer.render(settings, message)


def _require_template(reason: str, detail: str) -> None:
    if reason == protocol.INVALID:
        raise TokenizerError(
            f"the chat template cannot be compiled: {detail}",
            remedy="choose another tokenizer, or mend the template in a copy of this one",
        )
    if reason == protocol.DIFFERS:
        raise TokenizerError(
            f"the chat template gives the same conversation another text each time: {detail}",
            remedy="choose another tokenizer, or mend the template in a copy of this one",
        )
    if reason == protocol.DATE_UNKNOWN:
        raise TokenizerError(
            "the chat template writes today's date, so that rows made tomorrow would differ from today's",
            remedy="give the date that all rows are to say, such as --chat-date 2024-07-26",
        )
